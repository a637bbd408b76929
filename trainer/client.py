"""A running server, as commands talk to it."""

import json
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self
from uuid import UUID

import httpx
import msgspec

from app.errors import AppError

_TIMEOUT = httpx.Timeout(60)  # an event stream says every 15 s that it lives
_TRIES = 10  # in a row, to hear more where a stream breaks off
_PAUSE_SECONDS = 1.0  # between them


class ServerError(AppError):
    """The server refused, or does not answer."""


class Event(msgspec.Struct, frozen=True):
    """A message of an event stream."""

    kind: str
    number: int | None
    data: dict[str, Any]


class Server:
    """Use it as a context manager."""

    def __init__(self, url: str, key: str) -> None:
        headers = {"Authorization": f"Bearer {key}"}
        self._http = httpx.Client(base_url=url.rstrip("/"), headers=headers, timeout=_TIMEOUT, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._http.close()

    def ask(self, method: str, path: str, body: object = None, **query: object) -> Any:
        """The answer's JSON. A query value of None is left out. Raises ServerError with the server's reason."""
        given = {name: str(value) for name, value in query.items() if value is not None}
        try:
            answer = self._http.request(method, path, json=body, params=given)
        except httpx.HTTPError as error:
            raise self._silent(error) from error
        return self._json(answer)

    def events_of(self, run_id: UUID) -> Iterator[Event]:
        """Of a training run, up to `done`. A stream that breaks off is taken up where it ended.

        Raises ServerError.
        """
        path, seen, left = f"/v1/training-runs/{run_id}/events", 0, _TRIES
        while True:
            try:
                with self._http.stream("GET", path, headers={"Last-Event-ID": str(seen)}) as answer:
                    if not answer.is_success:
                        answer.read()
                        self._json(answer)
                    for event in _events(answer.iter_lines()):
                        yield event
                        seen, left = event.number or seen, _TRIES
                        if event.kind == "done":
                            return
            except httpx.HTTPError as error:
                if not left:
                    raise self._silent(error) from error
            if not left:
                raise ServerError(f"the events of run {run_id} break off: was its project deleted?")
            left -= 1
            time.sleep(_PAUSE_SECONDS)

    def _silent(self, error: httpx.HTTPError) -> ServerError:
        reason = error or type(error).__name__
        return ServerError(f"{self._http.base_url} does not answer ({reason}): start it, or name it by --url")

    def _json(self, answer: httpx.Response) -> Any:
        try:
            body: Any = answer.json() if answer.content else None
        except ValueError as error:
            raise ServerError(
                f"{answer.request.url.copy_with(query=None)} does not answer in JSON: is that the right address?"
            ) from error
        if answer.is_success:
            return body
        known = isinstance(body, dict) and body.get("detail")
        raise ServerError(f"{body['error']}: {body['detail']}" if known else f"{answer.status_code}: {body}")


def _events(lines: Iterator[str]) -> Iterator[Event]:
    """The messages of a stream of server-sent events that are not mere signs of life."""
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        if name:
            fields[name] = value.removeprefix(" ")
        elif fields.keys() >= {"event", "data"}:
            number = int(fields["id"]) if fields.get("id") else None
            yield Event(fields["event"], number, json.loads(fields["data"]))
        if not line:
            fields = {}
