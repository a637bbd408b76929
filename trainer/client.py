"""A REST client for a running server, as the commands use it."""

import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import UUID

import httpx
import msgspec
from httpx_sse import EventSource, SSEError

from app.errors import AppError

_TIMEOUT = httpx.Timeout(60)  # an event stream sends a ping every 15 s
_RETRIES = 10  # in a row, where an event stream breaks off
_PAUSE_SECONDS = 1.0  # between them


class ServerError(AppError):
    """The server refused a request, or does not answer."""


class RunEvent(msgspec.Struct, frozen=True):
    """A message of a run's event stream."""

    kind: str
    data: dict[str, Any]


class SageClient:
    """Use it as a context manager."""

    def __init__(self, url: str, key: str) -> None:
        headers = {"Authorization": f"Bearer {key}"}
        self._http = httpx.Client(base_url=url.rstrip("/"), headers=headers, timeout=_TIMEOUT, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._http.close()

    def request(self, method: str, path: str, body: object = None, **query: object) -> Any:
        """The response's JSON. Query values of None are left out. Raises ServerError with the server's reason."""
        params = {name: str(value) for name, value in query.items() if value is not None}
        try:
            response = self._http.request(method, path, json=body, params=params)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        return _json(response)

    def upload(self, path: str, file: Path, **query: object) -> Any:
        """Send the file as the body. The response's JSON. Raises ServerError with the server's reason."""
        params = {name: str(value) for name, value in query.items() if value is not None}
        try:
            with file.open("rb") as content:
                response = self._http.post(path, content=content, params=params)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        return _json(response)

    def run_events(self, run_id: UUID) -> Iterator[RunEvent]:
        """The events of a training run, up to `done`. A stream that breaks off is resumed. Raises ServerError."""
        last_id, retries = "0", _RETRIES
        while True:
            try:
                for event_id, event in self._stream(f"/v1/training-runs/{run_id}/events", last_id):
                    yield event
                    last_id, retries = event_id or last_id, _RETRIES
                    if event.kind == "done":
                        return
            except SSEError as error:
                raise ServerError(f"{self._http.base_url} sends no events ({error}): check the address") from error
            except httpx.HTTPError as error:
                if not retries:
                    raise self._unreachable(error) from error
            if not retries:
                raise ServerError(f"the events of run {run_id} break off: check whether its project was deleted")
            retries -= 1
            time.sleep(_PAUSE_SECONDS)

    def _stream(self, path: str, last_id: str) -> Iterator[tuple[str, RunEvent]]:
        """Events after `last_id`, each with its id."""
        with self._http.stream("GET", path, headers={"Last-Event-ID": last_id}) as response:
            if not response.is_success:
                response.read()
                _json(response)
            for message in EventSource(response).iter_sse():
                if message.data:  # a ping has none
                    yield message.id, RunEvent(message.event, message.json())

    def _unreachable(self, error: httpx.HTTPError) -> ServerError:
        reason = error or type(error).__name__
        return ServerError(f"{self._http.base_url} does not answer ({reason}): start it, or name it by --url")


def _json(response: httpx.Response) -> Any:
    try:
        body: Any = response.json() if response.content else None
    except ValueError as error:
        raise ServerError(
            f"{response.request.url.copy_with(query=None)} does not answer in JSON: check the address"
        ) from error
    if response.is_success:
        return body
    named = isinstance(body, dict) and body.get("detail")
    raise ServerError(f"{body['error']}: {body['detail']}" if named else f"{response.status_code}: {body}")
