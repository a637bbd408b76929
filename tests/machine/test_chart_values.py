"""The Helm chart's values are those that the manual lists, and its versions those of the package."""

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "docker" / "helm"
OPEN = {"settings", "podAnnotations"}  # their keys are the user's


def value_names(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        group = isinstance(value, dict) and name not in OPEN and name not in {"resources", "nodeSelector"}
        yield from value_names(value, f"{prefix}{name}.") if group else [prefix + name]


def test_the_manual_lists_every_value_of_the_chart_and_no_other() -> None:
    page = (ROOT / "app/manual/operations.md").read_text()
    chapter = page.partition("\n### The Helm chart\n")[2].partition("\n### ")[0]
    rows = [line.split("|")[1] for line in chapter.splitlines() if line.startswith("| `")]
    listed = [name for row in rows for name in re.findall(r"`([\w.]+)`", row)]
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert sorted(listed) == sorted(value_names(values))


def test_the_schema_knows_every_value() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert values.keys() <= schema["properties"].keys()
    for name, value in values.items():
        part = schema["properties"][name]
        part = schema["definitions"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part
        assert not isinstance(value, dict) or name in OPEN or value.keys() <= part["properties"].keys()


def test_the_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["version"] == chart["appVersion"] == project["version"]
