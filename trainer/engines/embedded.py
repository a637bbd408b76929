"""The embedded engine in a child process over a socket, for a trainer that rolls out on its own machine.

A child process, because two threads of one process share the interpreter lock: rollouts would wait whenever the
engine computes, and the other way round. A socket, because it is measurably faster than the engine's HTTP API.
"""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

from app.engine.protocol import Completion, Sampling
from app.errors import EngineError, EngineRefusalError, ModelError
from app.python_process import python_module
from app.settings import EngineDtype
from trainer.engines.engine_messages import (
    CancelRequest,
    EngineReply,
    EngineRequest,
    ErrorReply,
    LoadRequest,
    ReadyReply,
    SampleReply,
    SampleRequest,
    UnloadRequest,
    read_reply,
    write,
)

_MAX_ADAPTERS = 8


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
