"""What remembers the calls of a task, so that none goes out twice after a crash."""

from typing import Protocol

from app.records import Call


class InDoubtError(Exception):
    """A call began, its result was lost, and it is not safe to send it again."""

    def __init__(self, api: str) -> None:
        super().__init__(f"{api} was called, its result was lost, and it may not be repeated")
        self.api = api


class CallJournal(Protocol):
    """Told of every call before it goes out and after it came back. The call's `seq` tells one from another."""

    async def begin(self, call: Call, repeatable: bool) -> Call | None:
        """A recorded call to be replayed instead of sending, or None to send. Raises InDoubt."""
        ...

    async def end(self, call: Call) -> None: ...
