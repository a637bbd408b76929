"""A REST client for a running server, as the commands use it."""

import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self
from uuid import UUID, uuid4

import httpx
import msgspec
from httpx_sse import EventSource, SSEError

from app.base.errors import AppError, first_line

_TIMEOUT = httpx.Timeout(60)  # an event stream sends a ping every 15 s
_RETRIES = 60  # in a row, where an event stream breaks off: a server may restart
_PAUSE_SECONDS = 1.0  # between them


class ServerError(AppError):
    """The server refused a request."""

    exit_code: ClassVar[int] = 6


class UnreachableServerError(ServerError):
    """The server does not answer, or not as this server would."""

    exit_code: ClassVar[int] = 5


class ServerEvent(msgspec.Struct, frozen=True):
    """A message of an event stream."""

    id: str  # "" if the stream cannot be resumed after it
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
        try:
            response = self._http.request(method, path, json=body, params=_params(query))
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        return _json(response)

    def submit(self, task: dict[str, Any]) -> Any:
        """Submit a task once, even if the first answer is lost. Raises ServerError."""
        headers = {"Idempotency-Key": str(uuid4())}
        for last in (False, True):
            try:
                return _json(self._http.post("/v1/tasks", json=task, headers=headers))
            except httpx.HTTPError as error:
                if last or isinstance(error, httpx.ConnectError):
                    raise self._unreachable(error) from error
        raise AssertionError("the last try returns or raises")

    def upload(self, path: str, file: Path, **query: object) -> Any:
        """Send the file as the body. The response's JSON. Raises ServerError with the server's reason."""
        try:
            with file.open("rb") as content:
                response = self._http.post(path, content=content, params=_params(query))
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        return _json(response)

    def lines(self, path: str, **query: object) -> Iterator[bytes]:
        """The lines of a response, as they arrive. Raises ServerError, also where the response breaks off."""
        try:
            with self._http.stream("GET", path, params=_params(query)) as response:
                if not response.is_success:
                    response.read()
                    _json(response)
                rest = b""
                for chunk in response.iter_bytes():
                    *whole, rest = (rest + chunk).split(b"\n")
                    yield from whole
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    def run_events(self, run_id: UUID) -> Iterator[ServerEvent]:
        """The events of a training run, up to `done`. Raises ServerError."""
        return self._events(f"/v1/training-runs/{run_id}/events")

    def task_events(
        self, task_id: UUID, after: str = "0", on_lost: Callable[[], object] | None = None
    ) -> Iterator[ServerEvent]:
        """The events of a task after the one with that id, up to `done`. Raises ServerError.

        `on_lost` is called when the stream breaks off, and when it cannot be resumed yet.
        """
        return self._events(f"/v1/tasks/{task_id}/events", after, on_lost)

    def _events(
        self, path: str, last_id: str = "0", on_lost: Callable[[], object] | None = None
    ) -> Iterator[ServerEvent]:
        """A stream that breaks off is resumed after its last event."""
        retries = _RETRIES
        while True:
            lost: Exception | None = None
            try:
                for event in self._stream(path, last_id):
                    yield event
                    last_id, retries = event.id or last_id, _RETRIES
                    if event.kind == "done":
                        return
            except SSEError as error:
                raise UnreachableServerError(
                    f"{self._http.base_url} sends no events ({error}): check the address"
                ) from error
            except httpx.HTTPError as error:
                lost = error
            if not retries:
                raise self._broken_off(lost) from lost
            if on_lost is not None:
                on_lost()
            retries -= 1
            time.sleep(_PAUSE_SECONDS)

    def _stream(self, path: str, last_id: str) -> Iterator[ServerEvent]:
        """Events after `last_id`. Raises HTTPError also if the server is not ready."""
        with self._http.stream("GET", path, headers={"Last-Event-ID": last_id}) as response:
            if response.is_server_error:
                response.raise_for_status()
            if not response.is_success:
                response.read()
                _json(response)
            for message in EventSource(response).iter_sse():
                if message.data:  # a ping has none
                    yield ServerEvent(message.id, message.event, message.json())

    def _broken_off(self, lost: Exception | None) -> ServerError:
        if isinstance(lost, httpx.HTTPError):
            return self._unreachable(lost)
        return UnreachableServerError("the events break off: check whether the project was deleted")

    def _unreachable(self, error: httpx.HTTPError) -> ServerError:
        where = f"{self._http.base_url} does not answer ({first_line(error)})"
        return UnreachableServerError(f"{where}: start it, or name it by SAGE_URL or --url")


def _params(query: dict[str, object]) -> dict[str, str]:
    given = {name: value for name, value in query.items() if value is not None}
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}


def _json(response: httpx.Response) -> Any:
    try:
        body: Any = response.json() if response.content else None
    except ValueError as error:
        raise UnreachableServerError(
            f"{response.request.url.copy_with(query=None)} does not answer in JSON: check the address"
        ) from error
    if response.is_success:
        return body
    named = isinstance(body, dict) and body.get("detail")
    reason = str(body["detail"]) if named else f"the server answered with status {response.status_code}"
    unknown = response.status_code == HTTPStatus.UNAUTHORIZED
    raise ServerError(f"{reason}: set SAGE_KEY to a key of {response.url.netloc.decode()}" if unknown else reason)
