"""Wheels that carry the parts of a GGUF file, and an index that lists them."""

import hashlib
import io
import json
import zipfile
from pathlib import Path

from app.base.model_catalog import CatalogModel, Wheel
from tests.support.file_server import FileServer


def model_in_wheels(gguf: Path, parts: int = 1, *, sha256: str = "") -> tuple[CatalogModel, dict[str, bytes]]:
    """The catalogue's entry for a file, and its wheels by file name. `sha256` replaces the true hash."""
    content = gguf.read_bytes()
    step = -(-len(content) // parts)
    wheels, files = [], {}
    for number in range(parts):
        name = f"tiny_part{number}-1.0-py3-none-any.whl"
        part = content[number * step : (number + 1) * step]
        files[name] = make_wheel(f"tiny_part{number}/data/part{number}.bin", part)
        digest = hashlib.sha256(files[name]).hexdigest() if parts == 1 else ""
        wheels.append(Wheel(f"tiny-part{number}", "1.0", f"part{number}.bin", digest))
    model = CatalogModel(
        name="tiny",
        title="Tiny",
        licence="apache-2.0",
        parameters=100_000,
        file=gguf.name,
        size=len(content),
        sha256=sha256 or hashlib.sha256(content).hexdigest(),
        hub="nobody/tiny-gguf",
        wheels=tuple(wheels),
        prompt_profile="compact",
    )
    return model, files


def make_wheel(member: str, content: bytes) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("tiny/__init__.py", "")
        opened.writestr(zipfile.ZipInfo(member), content)
    return archive.getvalue()


def publish_wheels(server: FileServer, wheels: dict[str, bytes], *, as_json: bool = True) -> None:
    """Lists each wheel on the page of its package, between other files, by a relative URL."""
    for name, content in wheels.items():
        page = f"/simple/{name.partition('-')[0].replace('_', '-')}/"
        server.files[f"/files/{name}"] = content
        listed = {name.replace("1.0", "0.9"): "0" * 64, name: hashlib.sha256(content).hexdigest()}
        if as_json:
            entries = [
                {"filename": each, "url": f"../../files/{each}", "hashes": {"sha256": digest}}
                for each, digest in listed.items()
            ]
            server.files[page] = json.dumps({"files": entries}).encode()
            server.types[page] = "application/vnd.pypi.simple.v1+json"
        else:
            links = [f'<a href="../../files/{each}#sha256={digest}">{each}</a>' for each, digest in listed.items()]
            server.files[page] = ("<!DOCTYPE html><html><body>" + "<br>".join(links)).encode()
            server.types[page] = "text/html"
