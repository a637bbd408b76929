"""API documents are read in processes of their own, within limits."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from app.apis.document_reader import DocumentReader
from app.errors import ApiDocumentError, InvalidError

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
BOMB = "\n".join(
    ["a0: &a0 {x: 1}"] + [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 12)]
)


async def read(reader: DocumentReader, content: bytes, **bind: str) -> list[str]:
    app, document = await reader.read("mail", content, source=None, server=None, bind=bind)
    assert json.loads(document)["info"]["title"] == "M\N{REPLACEMENT CHARACTER}"
    return [each.signature for each in app.operations]


def children() -> list[str]:
    """Ids of the processes that this one has started and not ended."""
    return Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()


async def test_a_document_is_described_and_stored_without_nul() -> None:
    reader = DocumentReader()
    assert await read(reader, DOCUMENT) == ["x(q=None)"]
    assert await read(reader, DOCUMENT, q="secret:mail") == ["x()"]
    with pytest.raises(InvalidError, match="has no parameter 'z'"):
        await read(reader, DOCUMENT, z="secret:mail")
    with pytest.raises(ApiDocumentError, match="not UTF-8"):
        await read(reader, b"\xff")


async def test_a_document_that_takes_too_much_to_read_ends_its_reader_alone() -> None:
    before = children()
    with pytest.raises(ApiDocumentError, match=r"takes (longer|more) than (1 s|400 MB) to read"):
        await read(DocumentReader(cpu_seconds=1, memory_bytes=400 << 20), BOMB.encode())
    with pytest.raises(ApiDocumentError, match="takes longer than"):
        await read(DocumentReader(timeout=0.05), DOCUMENT)
    assert children() == before


async def test_a_reader_ends_with_the_request_that_wants_it() -> None:
    before = children()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await read(DocumentReader(), BOMB.encode())
    assert children() == before
