"""How much of other people's documents the double models: prints the table of the manual.

    python -m tests.integration.servers.modelled_documents

Packages are downloaded, and two servers installed and asked for their documents. What cannot be had is told.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from _pytest.outcomes import OutcomeException

from app.apis.documents.protocols import read_document
from app.apis.double.model import read_model
from app.apis.double.service import Double
from tests.bench.record_tasks import KINTO
from tests.integration.servers.installed import pinned, python_server
from tests.integration.servers.packaged_documents import Packaged, read_packaged
from tests.integration.servers.server_process import server_process
from tests.integration.servers.test_packaged_documents import DOCUMENTS, directory
from tests.support.processes import free_ports

_HEAD = ("document", "operations", "modelled", "collections", "seconds")
_MORE: Mapping[str, Packaged] = {
    "DigitalOcean": directory("digitalocean.com"),
    "GitHub": Packaged("npm", "@octokit/openapi", "23.0.2", "package/generated/api.github.com.json"),
    "NetBox": directory("netbox.dev"),
    "Stripe": directory("stripe.com"),
}


def _changedetection() -> Any:
    commands, (port,) = python_server("changedetection"), free_ports(1)
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as place:
        start = ("-C", "-d", Path(place) / "data", "-h", "127.0.0.1", "-p", str(port))
        with server_process((commands / "changedetection.io", *start), Path(place) / "cd", url):
            return read_document(httpx.get(f"{url}/api/v1/full-spec").content)


def _kinto() -> Any:
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory() as place, KINTO.run(Path(place), port):
        return httpx.get(f"http://127.0.0.1:{port}/v1/__api__").json()


def _sources() -> Iterator[tuple[str, Callable[[], Any]]]:
    yield f"changedetection.io {pinned('changedetection', 'changedetection.io')}", _changedetection
    yield f"Kinto {pinned('kinto', 'kinto')}", _kinto
    packaged = {**{name: each.source for name, each in DOCUMENTS.items()}, **_MORE}
    for name in sorted(packaged, key=str.casefold):
        yield name, partial(read_packaged, packaged[name])


def _row(name: str, document: Any) -> tuple[str, ...]:
    started = time.process_time()
    model = read_model("api", document, server="http://api.test")
    Double(model, "first")
    every = len(model.operations) + len(model.left_out)
    spent = f"{time.process_time() - started:.1f}"
    return name, f"{every:,}", f"{len(model.operations):,}", str(len(model.collections)), spent


def main() -> None:
    rows: list[tuple[str, ...]] = []
    for name, read in _sources():
        try:
            document = read()
        except (OutcomeException, json.JSONDecodeError, httpx.HTTPError, KeyError) as error:
            sys.stderr.write(f"{name}: not had: {error}\n")
        else:
            rows.append(_row(name, document))
            sys.stderr.write(f"{rows[-1]}\n")
    lines = ["| " + " | ".join(each) + " |" for each in (_HEAD, ("---",) * len(_HEAD), *rows)]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
