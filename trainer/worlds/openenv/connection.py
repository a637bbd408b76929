"""The client's end of OpenEnv's protocol (openenv 0.10): one session of a server, over a WebSocket.

A message has a `type` and `data`; each gets one reply. The protocol has no number of its version on the wire, so
another one shows by replies of another form.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final, Self
from urllib.parse import urlsplit

import httpx
import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from app.apis.calls.network import Certificates, OwnServices, open_client
from app.base.errors import InvalidError, NoConnectionError, WorldError, first_line
from app.base.settings import Settings
from app.base.values import Json

_MAX_BYTES: Final = 32 << 20  # of a reply
_GOODBYE_SECONDS: Final = 2.0
_PAUSE: Final = 0.2  # until a server without a free session is asked again
_FULL: Final = "CAPACITY_REACHED"
UNKNOWN: Final = "another version of OpenEnv's protocol than 0.10, or none"


class ServerError(Exception):
    """The server replies with an error. `code` is OpenEnv's; the session goes on."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class FullError(WorldError):
    """The server has no free session."""


class Step(msgspec.Struct, frozen=True):
    """What a reset or a step gives."""

    observation: dict[str, Json]
    reward: bool | float | None = None
    done: bool = False


class ListedTool(msgspec.Struct, frozen=True):
    name: str
    description: str = ""
    input_schema: dict[str, Json] = {}


class _Listing(msgspec.Struct, frozen=True):
    tools: list[ListedTool]


class _Reply(msgspec.Struct, frozen=True):
    type: str
    data: dict[str, Json]


class ServerAddress(msgspec.Struct, frozen=True):
    """`url` is http or https; `seconds` limits each reply."""

    url: str
    seconds: float

    @classmethod
    def of(cls, url: str, seconds: float) -> Self:
        """Raises InvalidError."""
        try:
            parts = urlsplit(url)
            known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            known = False
        if not known:
            raise InvalidError(f"url={url}: name the address of an OpenEnv server, such as http://127.0.0.1:8000")
        return cls(url.rstrip("/"), seconds)

    async def ask(self, path: str, data: Json = None) -> Json:
        """The JSON there, or that answers `data`, by a client that reaches no service of this deployment.

        Raises WorldError.
        """
        settings = Settings.from_env()
        client = open_client(
            allow_private_hosts=settings.allow_private_hosts,
            certificates=Certificates.of(settings),
            own=OwnServices.of(settings),
            timeout=self.seconds,
        )
        try:
            async with client, asyncio.timeout(self.seconds):
                url = f"{self.url}{path}"
                answer = await (client.get(url) if data is None else client.post(url, json=data))
                return msgspec.json.decode(answer.raise_for_status().content)
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
            raise WorldError(f"{self.url} answers {path} with status {status}: it speaks {UNKNOWN}") from error
        except (msgspec.DecodeError, RecursionError) as error:
            raise WorldError(f"{self.url} answers {path} with no JSON: it speaks {UNKNOWN}") from error
        except TimeoutError as error:
            raise WorldError(f"{self.url} gave no answer within {self.seconds:g} s") from error
        except (httpx.HTTPError, NoConnectionError) as error:
            raise WorldError(f"{self.url} cannot be reached: {first_line(error)}") from error

    @asynccontextmanager
    async def session(self, arguments: Mapping[str, Json]) -> AsyncIterator["Connection"]:
        """A session that was reset with these arguments, as soon as the server has one free. Raises WorldError."""
        deadline = asyncio.get_running_loop().time() + self.seconds
        while True:
            async with self._connected() as connection:
                try:
                    await connection.reset(arguments)
                except FullError:
                    if asyncio.get_running_loop().time() > deadline:
                        raise
                else:
                    yield connection
                    return
            await asyncio.sleep(_PAUSE)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator["Connection"]:
        address = f"ws{self.url.removeprefix('http')}/ws"
        tls = Certificates.of(Settings.from_env()).context() if address.startswith("wss:") else None
        try:
            socket = await connect(
                address,
                ssl=tls,
                proxy=None,
                max_size=_MAX_BYTES,
                open_timeout=self.seconds,
                close_timeout=_GOODBYE_SECONDS,
            )
        except InvalidStatus as error:
            status = error.response.status_code
            raise WorldError(f"{address} answers with status {status}: the server speaks {UNKNOWN}") from error
        except (OSError, TimeoutError, InvalidURI, InvalidHandshake) as error:
            raise WorldError(f"{self.url} cannot be reached: {first_line(error)}") from error
        connection = Connection(socket, self)
        try:
            yield connection
        finally:
            await connection.close()


class Connection:
    """One session. Requests wait for the one before. `last` is the reply to the latest reset or step."""

    def __init__(self, socket: ClientConnection, address: ServerAddress) -> None:
        self.last = Step({})
        self.seconds = address.seconds
        self._socket, self._address = socket, address
        self._lock = asyncio.Lock()
        self._lost = ""

    @property
    def busy(self) -> bool:
        """Whether a reply is awaited."""
        return self._lock.locked()

    async def reset(self, arguments: Mapping[str, Json]) -> Step:
        """Raises WorldError, and FullError where there is no free session."""
        try:
            return await self._step("reset", arguments)
        except ServerError as error:
            if error.code == _FULL:
                raise FullError(
                    f"{self._address.url} has no free session: {error}. Lower the option sessions"
                ) from error
            raise WorldError(f"{self._address.url} could not begin a task: {error}") from error

    async def step(self, action: Mapping[str, Json]) -> Step:
        """Raises ServerError, and WorldError where the server fails or gives no answer in time: then the session
        is lost.

        A caller that is cancelled does not end it: the reply is awaited nevertheless.
        """
        return await self._step("step", action)

    async def list_tools(self) -> list[ListedTool]:
        """Raises WorldError. `last` stays."""
        url, last = self._address.url, self.last
        try:
            return msgspec.convert((await self.step({"type": "list_tools"})).observation, _Listing).tools
        except ServerError as error:
            raise WorldError(f"{url} cannot list its tools: {error}") from error
        except msgspec.ValidationError as error:
            raise WorldError(f"{url} lists its tools in another form ({error}): it speaks {UNKNOWN}") from error
        finally:
            self.last = last

    async def settled(self) -> None:
        """Wait for what callers no longer wait for. Raises WorldError if the session is lost."""
        async with self._lock:
            self._check()

    async def _step(self, kind: str, data: Mapping[str, Json]) -> Step:
        exchange = asyncio.create_task(self._exchange(kind, data))
        exchange.add_done_callback(lambda each: each.cancelled() or each.exception())  # whoever waits has it
        return await asyncio.shield(exchange)

    async def _exchange(self, kind: str, data: Mapping[str, Json]) -> Step:
        async with self._lock:
            self._check()
            reply = await self._reply({"type": kind, "data": data})
            try:
                if reply.type == "error":
                    raise ServerError(str(reply.data.get("code")), _message(reply.data))
                if reply.type != "observation":
                    raise self._lose(f"it replies to a {kind} with {reply.type[:50]!r}: it speaks {UNKNOWN}")
                self.last = msgspec.convert(reply.data, Step)
            except msgspec.ValidationError as error:
                raise self._lose(
                    f"its reply to a {kind} is of another form ({error}): it speaks {UNKNOWN}"
                ) from error
            return self.last

    async def _reply(self, message: Mapping[str, Json]) -> _Reply:
        try:
            async with asyncio.timeout(self.seconds):
                with suppress(ConnectionClosed):  # a refused session: the reason may have arrived before its end
                    await self._socket.send(json.dumps(message))
                return msgspec.json.decode(await self._socket.recv(), type=_Reply)
        except TimeoutError as error:
            raise self._lose(f"it gave no answer within {self.seconds:g} s") from error
        except (ConnectionClosed, OSError) as error:
            raise self._lose(f"the connection ended: {first_line(error)}") from error
        except (msgspec.DecodeError, RecursionError) as error:
            raise self._lose(f"its reply is of another form ({error}): it speaks {UNKNOWN}") from error

    def _check(self) -> None:
        if self._lost:
            raise WorldError(self._lost)

    def _lose(self, reason: str) -> WorldError:
        self._lost = f"a session of {self._address.url} was lost: {reason}"
        return WorldError(self._lost)

    async def close(self) -> None:
        if not self.busy:
            with suppress(ConnectionClosed, TimeoutError):
                async with asyncio.timeout(_GOODBYE_SECONDS):
                    await self._socket.send(json.dumps({"type": "close"}))
        await self._socket.close()


def _message(data: Mapping[str, Json]) -> str:
    """What an error says, and which fields it means."""
    fields = [
        f"{'.'.join(map(str, each.get('loc', ())))}: {each.get('msg')}"
        for each in data.get("errors") or ()
        if isinstance(each, dict)
    ]
    return "; ".join([str(data.get("message", "")), *fields])
