"""Installs a server from its pinned requirements, each into an environment of its own."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).parents[3]
CACHE = ROOT / ".venv-servers"
_REQUIREMENTS = Path(__file__).parent / "requirements"
_SECONDS = 1_200
_STAMP = ".installed"


def miss(reason: str) -> NoReturn:
    """Skip the test; where all of them are to be tried, as by `make test-servers`, it fails."""
    if os.environ.get("TRY_ALL_SERVERS"):
        pytest.fail(reason)
    pytest.skip(reason)


def python_server(name: str) -> Path:
    """The directory of its commands. What cannot be installed is missed."""
    lock = _REQUIREMENTS / f"{name}.lock"
    place = CACHE / name
    python, options = str(place / "bin" / "python"), ("-q", "--disable-pip-version-check", "--no-deps")
    pip = [python, "-m", "pip", "install", *options, "-r", str(lock)]
    _install(place, lock, [sys.executable, "-m", "venv", "--clear", str(place)], pip)
    return place / "bin"


def node_server(name: str) -> Path:
    """The directory of its commands, from `NAME/package.json` and its lock."""
    lock = _REQUIREMENTS / name / "package-lock.json"
    place = CACHE / name
    if shutil.which("npm") is None:
        miss("there is no npm on this machine")
    copy = [
        sys.executable,
        "-c",
        "import shutil, sys; shutil.copytree(*sys.argv[1:])",
        str(lock.parent),
        str(place),
    ]
    _install(place, lock, copy, ["npm", "ci", "--silent", "--no-audit", "--no-fund", "--prefix", str(place)])
    return place / "node_modules" / ".bin"


def pinned(name: str, package: str) -> str:
    """The version of a package among the requirements of a Python server."""
    found = re.search(rf"^{re.escape(package)}==(\S+)", (_REQUIREMENTS / f"{name}.lock").read_text(), re.MULTILINE)
    assert found is not None, f"{package} is not among the requirements of {name}"
    return found[1]


def _install(place: Path, lock: Path, *commands: list[str]) -> None:
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    stamp = place / _STAMP
    if stamp.exists() and stamp.read_text() == digest:
        return
    shutil.rmtree(place, ignore_errors=True)
    for command in commands:
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=_SECONDS)
        except subprocess.SubprocessError as error:
            reason = (getattr(error, "stderr", "") or str(error)).strip()
            miss(f"{place.name} cannot be installed: {reason[-500:]}")
    stamp.write_text(digest)
