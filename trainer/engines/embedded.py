"""The embedded engine in a child process over a socket, and the embedding model, for a trainer without a server.

A child process, because two threads of one process share the interpreter lock: rollouts would wait whenever the
engine computes, and the other way round. A socket, because it is measurably faster than the engine's HTTP API.
A message is a 4-byte length, then MessagePack. Several engines are used as one.
"""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np

from app.base.errors import EngineError, EngineRefusalError, ModelError
from app.base.processes import python_module
from app.base.settings import EngineDtype
from app.engine.protocol import Completion, Sampling, Vector
from app.engine.replica import RecentPrefixes, ReplicaLoad, choose_replica, hash_blocks
from app.model_server.embeddings import EmbeddingModel

_LENGTH_BYTES = 4
_MAX_ADAPTERS = 8


class _Message(msgspec.Struct, frozen=True, array_like=True):
    number: int  # of the request; its reply has the same


class SampleRequest(_Message, frozen=True, tag="sample"):
    """Sample one completion."""

    model: str
    prompt_ids: tuple[int, ...]
    sampling: Sampling


class CancelRequest(_Message, frozen=True, tag="cancel"):
    """Cancel the request of this number, and send no reply."""


class LoadRequest(_Message, frozen=True, tag="load"):
    """Load an adapter from a directory. Safe to repeat."""

    name: str
    path: str


class UnloadRequest(_Message, frozen=True, tag="unload"):
    """Unload an adapter. Safe to repeat."""

    name: str


class SampleReply(_Message, frozen=True, tag="completion"):
    completion: Completion


class OkReply(_Message, frozen=True, tag="ok"):
    """The reply to LoadRequest and UnloadRequest."""


class ReadyReply(_Message, frozen=True, tag="ready"):
    """The engine is ready. Sent once, with number 0."""

    max_length: int  # of a sequence, prompt included: of the model, or of the KV cache


class ErrorReply(_Message, frozen=True, tag="error"):
    reason: str
    status: int  # as in HTTP


EngineRequest: TypeAlias = SampleRequest | CancelRequest | LoadRequest | UnloadRequest
EngineReply: TypeAlias = SampleReply | OkReply | ReadyReply | ErrorReply
_REQUESTS: msgspec.msgpack.Decoder[EngineRequest] = msgspec.msgpack.Decoder(EngineRequest)
_REPLIES: msgspec.msgpack.Decoder[EngineReply] = msgspec.msgpack.Decoder(EngineReply)


def write(writer: asyncio.StreamWriter, message: EngineRequest | EngineReply) -> None:
    """Write a message to an unlimited buffer: senders wait for their replies, so few messages are under way."""
    body = msgspec.msgpack.encode(message)
    writer.write(len(body).to_bytes(_LENGTH_BYTES, "big") + body)


async def read_request(reader: asyncio.StreamReader) -> EngineRequest:
    """Raises IncompleteReadError or ConnectionError at the end of the stream."""
    return _REQUESTS.decode(await _read_frame(reader))


async def read_reply(reader: asyncio.StreamReader) -> EngineReply:
    """Raises IncompleteReadError or ConnectionError at the end of the stream."""
    return _REPLIES.decode(await _read_frame(reader))


async def _read_frame(reader: asyncio.StreamReader) -> bytes:
    length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
    return await reader.readexactly(length)


class SubprocessEngine:
    """Implements `Engine`, and loads and unloads adapters as a model server does."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, max_length: int) -> None:
        """max_length: of a sequence, prompt included."""
        self.max_length = max_length
        self._writer = writer
        self._numbers = count(1)
        self._pending: dict[int, asyncio.Future[EngineReply]] = {}
        self._alive = True
        self._adapter_lock = asyncio.Lock()  # so that concurrent loads of an adapter do not conflict
        self._receiver = asyncio.create_task(self._receive(reader))

    async def complete(self, prompt_ids: Sequence[int], *, model: str, sampling: Sampling) -> Completion:
        """Cancelling the calling task ends the generation."""
        reply = await self._request(SampleRequest(next(self._numbers), model, tuple(prompt_ids), sampling))
        assert isinstance(reply, SampleReply)
        return reply.completion

    async def load_adapter(self, name: str, path: Path) -> None:
        """Safe to repeat, since a name always stands for the same weights."""
        async with self._adapter_lock:
            await self._request(LoadRequest(next(self._numbers), name, str(path)))

    async def unload_adapter(self, name: str) -> None:
        async with self._adapter_lock:
            await self._request(UnloadRequest(next(self._numbers), name))

    async def close(self) -> None:
        self._receiver.cancel()
        self._fail_pending()
        self._writer.close()

    async def _request(self, request: EngineRequest) -> EngineReply:
        """Raises EngineRefusalError if the engine refuses, EngineError if its process has ended."""
        if not self._alive:
            raise _ended()
        pending: asyncio.Future[EngineReply] = asyncio.get_running_loop().create_future()
        self._pending[request.number] = pending
        write(self._writer, request)
        try:
            reply = await pending
        except asyncio.CancelledError:
            if self._alive:
                write(self._writer, CancelRequest(request.number))
            raise
        finally:
            self._pending.pop(request.number, None)
        if isinstance(reply, ErrorReply):
            refused = reply.status < 500
            raise EngineRefusalError(reply.reason, reply.status) if refused else EngineError(reply.reason)
        return reply

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                reply = await read_reply(reader)
                pending = self._pending.get(reply.number)
                if pending is not None and not pending.done():
                    pending.set_result(reply)
        except (EOFError, ConnectionError):
            return
        finally:
            self._fail_pending()

    def _fail_pending(self) -> None:
        self._alive = False
        for pending in self._pending.values():
            if not pending.done():
                pending.set_exception(_ended())


@asynccontextmanager
async def subprocess_engine(
    model: Path,
    device: str = "auto",
    *,
    dtype: EngineDtype = "auto",
    rows: int = 64,
    kv_mb: int = 512,
    threads: int = 1,
) -> AsyncIterator[SubprocessEngine]:
    """`rows` is the maximum batch size, `kv_mb` the memory of the KV cache; a dtype of "auto" is float32.

    Raises ModelError if the model cannot be served.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with theirs:
        process = await asyncio.create_subprocess_exec(
            *python_module("trainer.engines.engine_child", "--socket", str(theirs.fileno())),
            *("--model", str(model), "--device", device, "--dtype", "float32" if dtype == "auto" else dtype),
            *("--rows", str(rows), "--kv-mb", str(kv_mb)),
            *("--adapters", str(_MAX_ADAPTERS), "--threads", str(threads)),
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C ends the trainer, which ends the engine
        )
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    try:
        ready = await _wait_until_ready(reader)
        engine = SubprocessEngine(reader, writer, ready.max_length)
        try:
            yield engine
        finally:
            await engine.close()
    finally:
        writer.close()
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)  # it has no state to save
        await process.wait()


async def _wait_until_ready(reader: asyncio.StreamReader) -> ReadyReply:
    try:
        reply = await read_reply(reader)
    except (EOFError, ConnectionError) as error:
        raise EngineError("the engine's process ended before it was ready: see its output above") from error
    if isinstance(reply, ErrorReply):
        raise ModelError(reply.reason)
    assert isinstance(reply, ReadyReply)
    return reply


def _ended() -> EngineError:
    return EngineError("the engine's process has ended: check the log, then start the run again")


class EnginePool:
    """Does what one of them does. A prompt goes where its beginning is cached, unless others are much idler."""

    def __init__(self, engines: Sequence[SubprocessEngine]) -> None:
        self._members = [_Member(engine) for engine in engines]
        self.max_length = min(engine.max_length for engine in engines)

    async def complete(self, prompt_ids: Sequence[int], *, model: str, sampling: Sampling) -> Completion:
        blocks = hash_blocks(model, prompt_ids)
        loads = [ReplicaLoad(each.in_flight, each.recent.match(blocks)) for each in self._members]
        member = self._members[choose_replica(loads)]
        member.recent.add(blocks)
        member.in_flight += 1
        try:
            return await member.engine.complete(prompt_ids, model=model, sampling=sampling)
        finally:
            member.in_flight -= 1

    async def load_adapter(self, name: str, path: Path) -> None:
        await asyncio.gather(*(each.engine.load_adapter(name, path) for each in self._members))

    async def unload_adapter(self, name: str) -> None:
        await asyncio.gather(*(each.engine.unload_adapter(name) for each in self._members))


class _Member:
    def __init__(self, engine: SubprocessEngine) -> None:
        self.engine, self.in_flight, self.recent = engine, 0, RecentPrefixes()


class LocalEmbedder:
    """Implements `Embedder`."""

    def __init__(self, embeddings: EmbeddingModel) -> None:
        self._embeddings = embeddings

    @property
    def model(self) -> str:
        return self._embeddings.name

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        vectors, _ = await self._embeddings.embed(list(texts))
        return [np.asarray(vector, np.float32) for vector in vectors]


@asynccontextmanager
async def local_embedder(device: str = "cpu") -> AsyncIterator[LocalEmbedder]:
    """All-MiniLM-L6-v2, loaded; its vectors equal those of the server.

    A library waits for vectors for seconds only. If they came with the loading, the policy that is evaluated first
    would find its skills without.
    """
    embeddings = EmbeddingModel("minilm", device)
    try:
        embedder = LocalEmbedder(embeddings)
        await embedder.embed(["ready"])
        yield embedder
    finally:
        embeddings.close()
