"""Prints the dependencies in pyproject.toml, with the given extras, to install them before the code is copied."""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
extras = [each for extra in sys.argv[1:] for each in project["optional-dependencies"][extra]]
sys.stdout.write("\n".join([*project["dependencies"], *extras]) + "\n")
