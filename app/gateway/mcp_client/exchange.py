"""What belongs to one request to an MCP server, wherever the SDK's tasks carry it out."""

from contextvars import ContextVar
from typing import Final

from app.base.errors import HostError
from app.base.values import CallResponse
from app.gateway.wire_request import Sending, WireRequest
from app.sandbox.protocol import RefusalError

MAX_BYTES: Final = 3 << 20  # of one answer, or of all notifications of a session


class ForgottenError(Exception):
    """The server does not know the session any more; it did nothing."""


class AccessRefusedError(RefusalError):
    """The server answered 401 or 403."""

    def __init__(self, message: str, status: int, challenge: str) -> None:
        super().__init__(message, CallResponse(status=status), challenge)


class Exchange:
    """A request and its answers: their size, what is told before it goes out, and why it failed below JSON-RPC.

    The SDK's tasks run in the context of the caller who caused them, so that `exchange` there is this one.
    """

    def __init__(
        self, max_bytes: int, seconds: float, sending: Sending | None = None, *, request: WireRequest | None = None
    ) -> None:
        self.bytes_left = max_bytes
        self.seconds = seconds  # for each part of an answer
        self.sending = sending
        self.request = request  # the call, if it is one: what may become of it when it is redirected
        self.failure: HostError | None = None  # of the latest HTTP request
        self.unreachable = False  # the latest HTTP request got no answer
        self.forgotten = False  # the server does not know the session any more, so it did nothing
        self.withheld: BaseException | None = None  # what `sending` raised, or ShortageError: nothing was sent
        self.endless = False  # an answer that goes on while the session is open


exchange: ContextVar[Exchange] = ContextVar("exchange")
