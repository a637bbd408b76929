"""A receiver of webhooks on a socket, which answers as it is told and keeps what it got."""

import asyncio
import base64
import hashlib
import hmac
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from litestar import Litestar, Request, Response, post

from tests.support.listening_app import listening_app

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()


class Received(msgspec.Struct, frozen=True):
    headers: dict[str, str]
    body: bytes

    @property
    def event(self) -> str:
        return str(msgspec.json.decode(self.body)["type"])


class WebhookReceiver:
    """`statuses` are those of the next answers, 204 after them; `pause` delays them, in seconds."""

    def __init__(self, *statuses: int, pause: float = 0.0, location: str = "") -> None:
        self.received: list[Received] = []
        self.statuses = list(statuses)
        self.pause = pause
        self.location = location

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Serve on a socket; yields the URL."""

        @post("/{path:path}")
        async def receive(request: Request[Any, Any, Any]) -> Response[bytes]:
            self.received.append(Received(dict(request.headers), await request.body()))
            status = self.statuses.pop(0) if self.statuses else 204
            await self.wait()
            if status < 300:
                self.act()
            headers = {"location": self.location} if self.location else {}
            return Response(b"", status_code=status, headers=headers)

        app = Litestar([receive], openapi_config=None, logging_config=None)
        async with listening_app(app, lifespan="off") as url:
            yield f"{url}/hook"

    async def wait(self) -> None:
        """Until it answers the latest message."""
        await asyncio.sleep(self.pause)

    def act(self) -> None:
        """What a message causes, before it is answered."""

    async def count(self, number: int) -> bool:
        return len(self.received) >= number


def is_signed(message: Received, secret: str = SECRET) -> bool:
    """Verified as a receiver would, by the specification alone."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{message.headers['webhook-id']}.{message.headers['webhook-timestamp']}.".encode() + message.body
    expected = "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    recent = abs(time.time() - int(message.headers["webhook-timestamp"])) < 60
    return recent and hmac.compare_digest(expected, message.headers["webhook-signature"])
