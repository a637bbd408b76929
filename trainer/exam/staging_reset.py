"""What restores a staging server before each trial: an operation of its API, or a signed POST."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol
from uuid import uuid4

import httpx
import msgspec

from app.errors import HostError
from app.gateway.gateway import Gateway
from app.project.signed_post import PostError, SignedPost, post, status_problem

EVENT = "staging.reset"


class ResetError(Exception):
    """A reset failed. `again`: another attempt may succeed."""

    def __init__(self, message: str, *, again: bool) -> None:
        super().__init__(message)
        self.again = again


class Reset(Protocol):
    async def __call__(self, gateway: Gateway) -> None:
        """Restore one server; `gateway` calls the staging servers. Raises ResetError."""
        ...


@dataclass(frozen=True)
class ResetOperation:
    """Fulfils `Reset` by calling an operation without arguments."""

    app: str
    operation: str

    async def __call__(self, gateway: Gateway) -> None:
        try:
            await gateway(f"{self.app}.{self.operation}", [], {})
        except HostError as error:
            reason = f"{self.operation}() raised {error.kind}: {error.message}"
            raise ResetError(reason, again=error.kind == "ApiError") from error


@dataclass(frozen=True, kw_only=True)
class ResetMessage:
    """Fulfils `Reset` by a POST that is signed as messages to webhooks are. It is done once that is answered."""

    client: httpx.AsyncClient
    url: str
    key: bytes
    project: str
    app: str
    seconds: float = 60

    async def __call__(self, gateway: Gateway) -> None:  # noqa: ARG002
        data = {"project": self.project, "api": self.app}
        body = msgspec.json.encode({"type": EVENT, "timestamp": datetime.now(UTC).isoformat(), "data": data})
        message = SignedPost(self.url, self.key, f"msg_{uuid4().hex}", body)
        try:
            status, _ = await post(self.client, message, seconds=self.seconds)
        except PostError as error:
            raise ResetError(f"reset_url: {error}", again=True) from error
        if (problem := status_problem(status)) is not None:
            raise ResetError(f"reset_url: {problem}", again=status >= 500)
