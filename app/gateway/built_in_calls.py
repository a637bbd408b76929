"""The calls that the gateway answers itself: look-ups in the documents, and the answer of a completed task."""

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import msgspec

from app.apis import api_docs
from app.apis.catalog import Catalog, Operation
from app.apis.look_up_room import Room
from app.base.errors import HostError
from app.base.values import Json

MAX_ANSWER_BYTES = 1_000_000  # as JSON

_LOOK_UPS: Final[dict[str, Callable[..., Json]]] = {
    "show_app_descriptions": api_docs.show_app_descriptions,
    "show_api_descriptions": api_docs.show_api_descriptions,
    "show_api_doc": api_docs.show_api_doc,
    "show_signatures": api_docs.show_signatures,
    "search": api_docs.search,
}
_LEAST = 300  # characters of a look-up, however many a turn makes
_READ_CHARS = 10_000  # of an argument
_ROOMS = 1_000  # look-ups whose next pages go on where the first ended


class LookUps:
    """The look-ups of one task. Those of one turn share `chars`: what that turn is shown of all of them."""

    def __init__(self, catalog: Catalog, instruction: str) -> None:
        self.chars = Room().chars
        self._catalog = catalog
        self._instruction = instruction
        self._turn = -1
        self._left = 0
        # that the first page of a look-up had: the others begin where it ended
        self._rooms = dict[bytes, Room]()

    async def answer(self, operation: Operation, arguments: Mapping[str, Json], turn: int) -> Json:
        """Computed in a thread: in a large document a look-up takes a second, which other tasks do not wait for.
        Raises HostError for what the catalog lacks.
        """
        if turn != self._turn:
            self._turn, self._left = turn, self.chars
        room = Room(max(self._left, _LEAST), self._instruction)
        read = {name: each[:_READ_CHARS] if isinstance(each, str) else each for name, each in arguments.items()}
        asked = _digest(operation, read)
        if read.get("page", 1) == 1:
            self._remember(asked, room)
        look_up = partial(_LOOK_UPS[operation.name], self._catalog, **read)
        found = await asyncio.to_thread(look_up, room=self._rooms.get(asked, room))
        self._left -= len(found if isinstance(found, str) else repr(found)) + 1
        return found

    def _remember(self, asked: bytes, room: Room) -> None:
        """As one of the latest."""
        self._rooms.pop(asked, None)
        self._rooms[asked] = room
        if len(self._rooms) > _ROOMS:
            del self._rooms[next(iter(self._rooms))]


def _digest(operation: Operation, arguments: Mapping[str, Json]) -> bytes:
    """Identify a look-up, whatever page of it."""
    exact = repr((operation.name, sorted((name, each) for name, each in arguments.items() if name != "page")))
    return hashlib.sha256(exact.encode("utf-8", "surrogatepass")).digest()


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
