"""The OpenAPI document without a server, and the manual's pages made from the code: `make manual` writes them."""

from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec

from app.processes.api import create_app
from app.processes.dependencies import Dependencies
from app.processes.reference import reference_pages
from app.web.manual import DIRECTORY


def openapi_document() -> dict[str, Any]:
    def closed() -> AbstractAsyncContextManager[Dependencies]:
        raise AssertionError("the document needs no running part")

    schema = create_app(closed).openapi_schema.to_schema()
    document: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(schema))
    return document


if __name__ == "__main__":
    for name, text in reference_pages(openapi_document()).items():
        (DIRECTORY / f"{name}.md").write_text(text, encoding="utf-8")
