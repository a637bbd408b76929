"""Look-ups in large documents: they end, and other tasks do not wait for them."""

import threading
from collections.abc import Iterator, ValuesView
from contextlib import suppress
from time import process_time
from typing import Any

import httpx
import msgspec
import pytest

from app.apis.calls.gateway import Gateway
from app.apis.catalog import App, Catalog, Operation
from app.apis.documents.protocols import parse_document
from app.apis.listing import SignatureWords
from app.apis.look_ups import (
    Room,
    search,
    show_api_descriptions,
    show_api_doc,
    show_app_descriptions,
    show_signatures,
)
from app.base.errors import HostError
from tests.support.document_parts import openapi

FAR = (100, 10**9)  # pages
LOOK_UPS: list[tuple[str, list[Any]]] = [
    ("api_docs.show_app_descriptions", []),
    ("api_docs.show_api_descriptions", ["t"]),
    ("api_docs.show_api_doc", ["t", "get_thing_1"]),
    ("api_docs.show_signatures", ["t"]),
    ("api_docs.search", ["things"]),
    ("t.get_thnig", []),
    ("u.get_thing", []),
]


class Watched(dict[str, Operation]):
    """Operations that note which threads go through them."""

    threads: set[threading.Thread]

    def __iter__(self) -> Iterator[str]:
        self.threads.add(threading.current_thread())
        return super().__iter__()

    def values(self) -> ValuesView[Operation]:  # type: ignore[override]
        self.threads.add(threading.current_thread())
        return super().values()


def app(size: int) -> App:
    given = [{"name": f"thing_{each}", "in": "query", "required": True, "schema": {}} for each in range(5)]
    paths = {
        f"/{each}": {"get": {"operationId": f"get_thing_{each}", "summary": "a thing " * 9, "parameters": given}}
        for each in range(size)
    }
    return parse_document("t", openapi(paths))


async def test_look_ups_and_unknown_names_are_computed_beside_the_loop() -> None:
    operations = Watched(app(50).operations)
    operations.threads = set()
    catalog = Catalog({"t": msgspec.structs.replace(app(1), operations=operations)})
    async with httpx.AsyncClient() as client:
        gateway = Gateway(catalog, client)
        for api, given in LOOK_UPS:
            with suppress(HostError):
                await gateway(api, given, {})
    assert operations.threads
    assert threading.main_thread() not in operations.threads


@pytest.mark.parametrize("page", FAR)
def test_a_page_after_the_last_is_empty_and_takes_no_time(page: int) -> None:
    catalog, room = Catalog({"t": app(100)}), Room(2_000, "the things")
    began = process_time()
    assert show_app_descriptions(catalog, page, room=room) == []
    assert show_api_descriptions(catalog, "t", page, room=room) == []
    assert search(catalog, "thing", 30, page, room=room) == []
    assert show_signatures(catalog, "t", page, room=room) == ""
    assert show_api_doc(catalog, "t", "get_thing_1", page, room=room)["parameters"] == []
    assert process_time() - began < 2


def test_the_names_that_operations_require_are_gathered_once_for_a_document() -> None:
    operations = Watched(app(50).operations)
    operations.threads = set()
    large = msgspec.structs.replace(app(1), operations=operations)
    for _ in range(2):
        assert SignatureWords(large, "").rank("thing_4") < SignatureWords(large, "").rank("other_4")
        seen = set(operations.threads)
        operations.threads.clear()
    assert not seen
