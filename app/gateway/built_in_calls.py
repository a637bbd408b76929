"""The calls that the gateway answers itself: look-ups in the documents, and the answer of a completed task."""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from app.apis import api_docs
from app.apis.catalog import Catalog, Operation
from app.errors import HostError
from app.records import Json

MAX_ANSWER_BYTES = 1_000_000  # as JSON

_LOOK_UPS: Final[dict[str, Callable[..., Json]]] = {
    "show_app_descriptions": api_docs.show_app_descriptions,
    "show_api_descriptions": api_docs.show_api_descriptions,
    "show_api_doc": api_docs.show_api_doc,
    "search": api_docs.search,
}


def look_up(catalog: Catalog, operation: Operation, arguments: Mapping[str, Json], instruction: str) -> Json:
    """`instruction` is that of the task. Raises HostError for what the catalog lacks."""
    if operation.name == "show_signatures":
        return api_docs.show_signatures(catalog, **arguments, instruction=instruction)
    return _LOOK_UPS[operation.name](catalog, **arguments)


def checked_answer(answer: Json) -> Json:
    """Raises HostError if an answer is too large to be stored, shown and checked."""
    size = len(msgspec.json.encode(answer))
    if size > MAX_ANSWER_BYTES:
        raise HostError(
            "ValueError",
            f"the answer takes {size:,} bytes as JSON, at most {MAX_ANSWER_BYTES:,} are allowed. "
            "The task goes on: complete it with a shorter answer",
        )
    return answer
