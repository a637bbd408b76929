"""Records the calls of a task, so that none is sent twice after a crash."""

from typing import Protocol

from app.base.values import Call, Json


class InDoubtError(Exception):
    """A call went out, its result was lost, and repeating it is not safe.

    The message is the sandbox's; `known` is for people. `cause` is what happened before the result was recorded.
    """

    def __init__(self, api: str, arguments: dict[str, Json], cause: str) -> None:
        super().__init__(f"{api} was called, its result was lost, and it may not be repeated")
        self.api = api
        self.arguments = arguments
        self.known = (
            f"{api} was sent, and {cause} before its answer was recorded: whether the call arrived is not known, "
            "and it may not be repeated"
        )


class CallJournal(Protocol):
    """Notified of every call before it is prepared and after it returned. Calls are identified by their `seq`."""

    async def begin(self, call: Call, repeatable: bool) -> Call | None:
        """The recorded call, to be used instead of sending it; None to send it. Raises InDoubtError."""
        ...

    async def sending(self) -> None:
        """Record the call that began, if it must not be repeated: its connection is open, and the request goes out
        right after. Raises if it must not.
        """
        ...

    async def end(self, call: Call) -> None:
        """Record the call's result or error."""
        ...

    async def abort(self) -> None:
        """The call that began will have no result. Undo its record if it was not sent."""
        ...
