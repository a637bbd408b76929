"""Records the calls of a task, so that none is sent twice after a crash."""

from typing import Protocol

from app.records import Call


class InDoubtError(Exception):
    """A call was started, its result was lost, and repeating it is not safe.

    The message is the sandbox's; `known` is for people.
    """

    def __init__(self, api: str) -> None:
        super().__init__(f"{api} was called, its result was lost, and it may not be repeated")
        self.api = api
        self.known = (
            f"{api} was about to be called when its runner stopped: whether the call arrived is not known, "
            "and it may not be repeated"
        )


class CallJournal(Protocol):
    """Notified of every call before it is sent and after it returned. Calls are identified by their `seq`."""

    async def begin(self, call: Call, repeatable: bool) -> Call | None:
        """The recorded call, to be used instead of sending it; None to send it. Raises InDoubtError."""
        ...

    async def sending(self) -> None:
        """Called when a call's connection is open, right before the request. Raises if it must not go out."""
        ...

    async def end(self, call: Call) -> None:
        """Record the call's result or error."""
        ...
