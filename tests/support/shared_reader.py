"""One reader of API documents for all tests of a process: to start one takes a seventh of a second."""

from functools import cache

from app.apis.documents.reader import DocumentReader


@cache
def shared_reader() -> DocumentReader:
    """Its processes end with the session of pytest."""
    return DocumentReader()


async def close_shared_reader() -> None:
    if shared_reader.cache_info().currsize:
        await shared_reader().__aexit__()
