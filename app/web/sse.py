"""Server-sent events from the database: the body that all event streams share."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from uuid import UUID

import msgspec
from anyio import CancelScope
from litestar import Response
from litestar.openapi.datastructures import ResponseSpec
from litestar.response import ServerSentEvent
from litestar.response.sse import ServerSentEventMessage
from litestar.status_codes import HTTP_204_NO_CONTENT
from litestar.types import Receive, Scope, Send

from app.db.notify import NotificationListener
from app.web.access import Access

BATCH_SIZE = 500  # rows read by one query


class EventBatch(msgspec.Struct, frozen=True):
    """The messages since the last read, oldest first. `ended`: the stream ends after them."""

    messages: list[ServerSentEventMessage]
    ended: bool = False


Read = Callable[[], Awaitable[EventBatch]]
"""Reads what is new, in a database session of its own."""


async def event_stream(
    listener: NotificationListener,
    subject: UUID,
    access: Access,
    read: Read,
    on_hang_up: Callable[[], Awaitable[None]] | None = None,
) -> Response[Any]:
    """A response that sends what `read` returns, and reads again whenever `subject` may have news.

    It ends, after at most one ping, when the `access` has.
    `on_hang_up` is called if the client does not stay until the end.

    204 if there is nothing left to send: on any other response a browser's `EventSource` connects again.
    """
    first = await read()
    if first.ended and not first.messages:
        return Response(None, status_code=HTTP_204_NO_CONTENT)
    messages = _messages(listener, subject, access, read, first)
    return ServerSentEvent(messages) if on_hang_up is None else _WatchedStream(messages, on_hang_up)


class _WatchedStream(ServerSentEvent):
    """Watches the response, not the generator of its messages: one that has not begun runs no `finally`."""

    def __init__(
        self, messages: AsyncIterator[ServerSentEventMessage], on_hang_up: Callable[[], Awaitable[None]]
    ) -> None:
        super().__init__(self._until_ended(messages))
        self._ended, self._on_hang_up = False, on_hang_up

    async def _until_ended(
        self, messages: AsyncIterator[ServerSentEventMessage]
    ) -> AsyncIterator[ServerSentEventMessage]:
        async for each in messages:
            yield each
        self._ended = True

    def to_asgi_response(self, *given: Any, **named: Any) -> Any:
        respond = super().to_asgi_response(*given, **named)

        async def watched(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                await respond(scope, receive, send)
            finally:
                if not self._ended:
                    with CancelScope(shield=True):  # the server may be cancelling the request
                        await self._on_hang_up()

        return watched


async def _messages(
    listener: NotificationListener, subject: UUID, access: Access, read: Read, first: EventBatch
) -> AsyncIterator[ServerSentEventMessage]:
    """No database session is held between two reads, so an idle stream costs a dictionary entry."""
    for each in first.messages:
        yield each
    if first.ended:
        return
    with listener.subscribe(subject) as news:
        while True:
            news.clear()  # before reading: events during the read wake the stream again
            with CancelScope(shield=True):  # a client that hangs up would cost the connection of a query
                if await access.has_ended():
                    return
                batch = await read()
            for each in batch.messages:
                yield each
            if batch.ended:
                return
            if not batch.messages and not await listener.wait(news):
                yield ServerSentEventMessage(comment="ping", data=None)


def message(event: str, data: object, number: int | None = None) -> ServerSentEventMessage:
    return ServerSentEventMessage(data=msgspec.json.encode(data), event=event, id=number)


def stream_specs(description: str) -> dict[int, ResponseSpec]:
    """For the OpenAPI document."""
    ends = "A comment is sent at least every 15 s; the stream ends after `done`, and with the key."
    return {
        200: ResponseSpec(
            Any, description=f"{description} {ends}", media_type="text/event-stream", generate_examples=False
        ),
        204: ResponseSpec(None, description="It ended with the event `Last-Event-ID`: do not connect again"),
    }
