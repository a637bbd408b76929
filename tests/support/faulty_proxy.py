"""A real HTTP proxy before a real model server that fails as servers and networks do."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx

Reply = tuple[int, Any]  # status, and JSON or text
Forward = Callable[[], Awaitable[Reply]]
Fault = Callable[[str, Any, Forward], Awaitable[Reply | None]]
"""The reply to a request to a path, or None to cut the connection."""

COMPLETIONS = "/v1/completions"


async def sound(_: str, __: Any, forward: Forward) -> Reply | None:
    return await forward()


def answering(status: int, reply: Any, *paths: str) -> Fault:
    async def fault(path: str, _: Any, forward: Forward) -> Reply | None:
        return (status, reply) if path in paths else await forward()

    return fault


def hanging(*paths: str) -> Fault:
    """Without paths: every request."""

    async def fault(path: str, _: Any, forward: Forward) -> Reply | None:
        if not paths or path in paths:
            await asyncio.Event().wait()
        return await forward()

    return fault


def held(gate: asyncio.Event, *paths: str) -> Fault:
    """Replies after the gate opens."""

    async def fault(path: str, _: Any, forward: Forward) -> Reply | None:
        if path in paths:
            await gate.wait()
        return await forward()

    return fault


def cutting(*paths: str) -> Fault:
    async def fault(path: str, _: Any, forward: Forward) -> Reply | None:
        return None if path in paths else await forward()

    return fault


def rewriting(path: str, change: Callable[[Any, Any], Any]) -> Fault:
    """`change` gets the request's body and the server's answer, and returns another answer."""

    async def fault(asked: str, body: Any, forward: Forward) -> Reply | None:
        status, reply = await forward()
        return (status, change(body, reply) if asked == path and status == 200 else reply)

    return fault


async def _some_rounds() -> None:
    """Let the event loop do what it has begun."""
    for _ in range(5):
        await asyncio.sleep(0)


class FaultyProxy:
    """Serves one reply per connection. `fault` may be replaced at any time."""

    def __init__(self, upstream: str, fault: Fault = sound) -> None:
        self.upstream, self.fault = upstream, fault
        self.url = ""
        self.bodies: list[Any] = []  # of the completion requests, in order
        self.at_once, self.most = 0, 0  # completions under way, now and at most
        self._http = httpx.AsyncClient(timeout=300, trust_env=False)
        self._listener: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def up(self) -> None:
        """Listens on the same port as before."""
        port = int(self.url.rpartition(":")[2]) if self.url else 0
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.url = f"http://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    async def down(self) -> None:
        """Like a killed process: connections break, and new ones are refused."""
        if self._listener is not None:
            for listening in self._listener.sockets:
                asyncio.get_running_loop().remove_reader(listening)
            await _some_rounds()  # a listener that closes while it accepts leaves that socket open
            self._listener.close()
        for connection in list(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await _some_rounds()  # transports close in the round after
        self._listener = None

    async def close(self) -> None:
        await self.down()
        await self._http.aclose()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._answer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client went away
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            self._connections.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next((line for line in head.splitlines() if line.lower().startswith("content-length")), ":0")
        content = await reader.readexactly(int(length.partition(":")[2]))
        method, path = head.split()[:2]
        reply = await _while_connected(reader, self._reply(method, path, content))
        if reply is None:
            writer.transport.abort()
            return
        status, body = reply
        sent = (body if isinstance(body, str) else json.dumps(body)).encode()
        heading = f"HTTP/1.1 {status} x\r\nContent-Length: {len(sent)}\r\nConnection: close\r\n\r\n"
        writer.write(heading.encode() + sent)
        await writer.drain()

    async def _reply(self, method: str, path: str, content: bytes) -> Reply | None:
        body = json.loads(content or b"null")
        if path != COMPLETIONS:
            return await self.fault(path, body, lambda: self._forward(method, path, content))
        self.bodies.append(body)
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            return await self.fault(path, body, lambda: self._forward(method, path, content))
        finally:
            self.at_once -= 1

    async def _forward(self, method: str, path: str, content: bytes) -> Reply:
        headers = {"content-type": "application/json"}
        answer = await self._http.request(method, f"{self.upstream}{path}", content=content, headers=headers)
        try:
            return answer.status_code, answer.json()
        except ValueError:
            return answer.status_code, answer.text


async def _while_connected(reader: asyncio.StreamReader, work: Any) -> Any:
    """The result of `work`; None if the client disconnects first, which cancels the work."""
    working, gone = asyncio.ensure_future(work), asyncio.ensure_future(reader.read())
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        gone.cancel()
        working.cancel()
        await asyncio.wait({working, gone})  # until then a request holds a connection of the client


def freezing(proxy: FaultyProxy, at: str) -> Fault:
    """Accepts one such request, and then answers nothing."""

    async def fault(path: str, _: Any, forward: Forward) -> Reply | None:
        if path != at:
            return await forward()
        proxy.fault = hanging()
        await asyncio.Event().wait()
        return None

    return fault


def dying(proxy: FaultyProxy, at: str) -> Fault:
    """Accepts one such request, and then stops."""

    async def fault(path: str, _: Any, forward: Forward) -> Reply | None:
        if path != at:
            return await forward()
        asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(proxy.down()))
        await asyncio.Event().wait()
        return None

    return fault


@asynccontextmanager
async def faulty_proxy(upstream: str, fault: Fault = sound) -> AsyncIterator[FaultyProxy]:
    proxy = FaultyProxy(upstream, fault)
    await proxy.up()
    try:
        yield proxy
    finally:
        await proxy.close()


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110  what is waited for tells nobody
        await asyncio.sleep(0.01)
