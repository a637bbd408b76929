"""The embedded engine without its HTTP: for a trainer that rolls out on the machine it trains on.

It runs in a child process, because two threads of one process take turns: whenever the engine computes, the
rollouts would wait, and the other way round.
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

from app.engine.protocol import Completion, Sampling
from app.errors import EngineError, EngineRefusalError, ModelError
from trainer.engines.engine_messages import (
    Answer,
    Ask,
    Forget,
    Load,
    Question,
    Refused,
    Sampled,
    Unload,
    read_answer,
    write,
)

_ADAPTERS = 8


class LocalEngine:
    """Fulfils `Engine`. Adapters come and go as on a server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._alive = True
        self._changing = asyncio.Lock()  # two who load the same adapter are no conflict
        self._listening = asyncio.create_task(self._listen(reader))

    async def complete(self, prompt_ids: Sequence[int], *, model: str, sampling: Sampling) -> Completion:
        """Cancelling the calling task ends the generation."""
        number = next(self._numbers)
        ask = Ask(
            number,
            model,
            tuple(prompt_ids),
            sampling.max_tokens,
            sampling.temperature,
            sampling.seed,
            sampling.stop_token_ids,
        )
        answer = await self._asked(ask)
        assert isinstance(answer, Sampled)
        return Completion(answer.ids, answer.logprobs, answer.finish)

    async def load_adapter(self, name: str, path: Path) -> None:
        """A name stands for one set of weights for ever, so one that is loaded is done."""
        async with self._changing:
            await self._asked(Load(next(self._numbers), name, str(path)))

    async def unload_adapter(self, name: str) -> None:
        async with self._changing:
            await self._asked(Unload(next(self._numbers), name))

    async def close(self) -> None:
        self._listening.cancel()
        self._end()
        self._writer.close()

    async def _asked(self, question: Question) -> Answer:
        """Raises EngineRefusalError where the engine says no, EngineError where it is gone."""
        if not self._alive:
            raise _gone()
        waiting: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[question.number] = waiting
        write(self._writer, question)
        try:
            answer = await waiting
        except asyncio.CancelledError:
            if self._alive:
                write(self._writer, Forget(question.number))
            raise
        finally:
            self._waiting.pop(question.number, None)
        if isinstance(answer, Refused):
            raise _refusal(answer)
        return answer

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                answer = await read_answer(reader)
                waiting = self._waiting.get(answer.number)
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
        except (EOFError, ConnectionError):
            return
        finally:
            self._end()

    def _end(self) -> None:
        self._alive = False
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(_gone())


@asynccontextmanager
async def local_engine(
    model: Path, device: str = "auto", *, rows: int = 64, threads: int = 1
) -> AsyncIterator[LocalEngine]:
    """`rows` is how many requests are decoded together. Raises ModelError where the model cannot be served."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with theirs:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "trainer.engines.engine_child", "--socket", str(theirs.fileno())),
            *("--model", str(model), "--device", device, "--rows", str(rows)),
            *("--adapters", str(_ADAPTERS), "--threads", str(threads)),
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # a key pressed in the terminal ends the trainer, and that ends the engine
        )
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    try:
        await _ready(reader)
        engine = LocalEngine(reader, writer)
        try:
            yield engine
        finally:
            await engine.close()
    finally:
        writer.close()
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)  # it keeps nothing
        await process.wait()


async def _ready(reader: asyncio.StreamReader) -> None:
    try:
        answer = await read_answer(reader)
    except (EOFError, ConnectionError) as error:
        raise EngineError("the engine's process ended before it was ready: see what it wrote above") from error
    if isinstance(answer, Refused):
        raise ModelError(answer.reason)


def _refusal(answer: Refused) -> EngineError:
    final = answer.status < 500
    return EngineRefusalError(answer.reason, answer.status) if final else EngineError(answer.reason)


def _gone() -> EngineError:
    return EngineError("the engine's process has ended: look into the log, then start the run again")
