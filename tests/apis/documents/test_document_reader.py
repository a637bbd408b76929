"""API documents are read in processes of their own, within limits."""

import asyncio
import json
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from app.apis.documents.read_process import ReadRequest
from app.apis.documents.reader import DocumentReader
from app.base.errors import ApiDocumentError, InvalidError
from tests.support.document_parts import openapi, query

DOCUMENT = json.dumps(
    {
        "openapi": "3.1.0",
        "info": {"title": "M\u0000", "x-large": 10**300},
        "servers": [{"url": "http://a.test"}],
        "paths": {
            "/x": {"get": {"operationId": "x", "parameters": [{"name": "q", "in": "query"}]}},
        },
    }
).encode()
COLLIDING = "\n".join(f"{number * (2**61 - 1)}: 1" for number in range(1, 60_000)).encode()  # equal hashes
LARGE = b"- {}\n" * 900_000


async def read(reader: DocumentReader, content: bytes, **bind: str) -> list[str]:
    app, document = await reader.read(ReadRequest(name="mail", bind=dict(bind)), content)
    assert json.loads(document)["info"]["title"] == "M\N{REPLACEMENT CHARACTER}"
    return [each.signature for each in app.operations]


def children() -> list[str]:
    """Ids of the processes that this one has started and not ended."""
    return Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()


async def test_a_document_is_described_and_stored_without_nul() -> None:
    async with DocumentReader() as reader:
        assert await read(reader, DOCUMENT) == ["x(q=None)"]
        assert await read(reader, DOCUMENT, q="secret:mail") == ["x()"]
        with pytest.raises(InvalidError, match="has no parameter 'z'"):
            await read(reader, DOCUMENT, z="secret:mail")
        with pytest.raises(ApiDocumentError, match="not UTF-8"):
            await read(reader, b"\xff")


async def test_a_new_document_with_a_misspelled_risk_is_refused_and_a_stored_one_stays_readable() -> None:
    content = DOCUMENT.replace(b'{"/x": ', b'{"/y": {"get": {"x-risk": "hihg"}}, "/x": ')
    async with DocumentReader() as reader:
        with pytest.raises(ApiDocumentError, match=r"GET /y: `x-risk` is one of none, low, .* not 'hihg'"):
            await reader.read(ReadRequest(name="mail"), content)
        stored = await reader.view(ReadRequest(name="mail"), content, "digest")
    assert [each.operation for each in stored.left_out] == ["GET /y"]


async def test_a_document_that_takes_too_much_to_read_is_refused_and_the_next_one_is_read() -> None:
    before = children()
    async with DocumentReader(cpu_seconds=1, memory_bytes=400 << 20) as reader:
        for content, reason in ((COLLIDING, "longer than 1 s"), (LARGE, r"more than 400 MB|longer than 1 s")):
            with pytest.raises(ApiDocumentError, match=reason):
                await read(reader, content)
            assert await read(reader, DOCUMENT) == ["x(q=None)"]
    assert children() == before


async def test_a_document_with_endless_signatures_is_refused() -> None:
    shared = {f"Q{number}": query(f"q{number}" + "y" * 1_000) for number in range(20)}
    listed = [{"$ref": f"#/components/parameters/{name}"} for name in shared]
    paths = {f"/p{number}": {"get": {"parameters": listed}} for number in range(1_000)}
    async with DocumentReader() as reader:
        with pytest.raises(ApiDocumentError, match="signatures and summaries take more than 8 MB"):
            await read(reader, json.dumps(openapi(paths) | {"components": {"parameters": shared}}).encode())


async def test_a_reader_that_is_too_slow_on_the_clock_is_ended() -> None:
    before = children()
    async with DocumentReader(timeout=0.05) as reader:
        with pytest.raises(ApiDocumentError, match="takes longer than"):
            await read(reader, COLLIDING)
        assert children() == before


async def test_a_reader_ends_with_the_request_that_wants_it() -> None:
    before = children()
    async with DocumentReader() as reader:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await read(reader, COLLIDING)
        assert children() == before


async def test_documents_are_read_by_forks_of_one_process_which_a_killed_one_does_not_stop() -> None:
    before = set(children())
    async with DocumentReader() as reader:
        await read(reader, DOCUMENT)
        [process] = set(children()) - before
        await read(reader, DOCUMENT)
        assert set(children()) - before == {process}
        os.kill(int(process), signal.SIGKILL)
        with suppress(ApiDocumentError):  # it may be noticed only now
            await read(reader, DOCUMENT)
        assert await read(reader, DOCUMENT) == ["x(q=None)"]
