"""The engine in a child process: completions, refusals, and the end of either side."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
import torch

from app.base.errors import EngineError, EngineRefusalError, ModelError
from app.engine.protocol import Completion, Sampling
from app.engine.replica import BLOCK_TOKENS
from tests.support.tiny_adapter import make_adapter, reference
from tests.support.tiny_model import make_model_dir
from trainer.engines.embedded import (
    CancelRequest,
    EnginePool,
    SampleRequest,
    SubprocessEngine,
    read_request,
    subprocess_engine,
)
from trainer.engines.engine_child import RequestHandler

PROMPT = (5, 17, 33, 80, 81)
SAMPLING = Sampling(max_tokens=12, temperature=1.0, seed=3)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model_dir(tmp_path_factory.mktemp("model"))


async def test_the_engine_returns_the_logprobs_of_base_and_adapter(model_dir: Path, tmp_path: Path) -> None:
    adapter = make_adapter(model_dir, tmp_path / "adapter", 1)
    async with subprocess_engine(model_dir, "cpu", rows=4) as engine:
        await asyncio.gather(*(engine.load_adapter("adapter", adapter) for _ in range(2)))  # safe to repeat
        base, same, with_adapter = await asyncio.gather(
            *(engine.complete(PROMPT, model=model, sampling=SAMPLING) for model in ("base", "base", "adapter"))
        )
        await engine.unload_adapter("adapter")
        await engine.unload_adapter("adapter")
        with pytest.raises(EngineRefusalError, match="adapter") as refusal:
            await engine.complete(PROMPT, model="adapter", sampling=SAMPLING)
        assert refusal.value.code == 404
        with pytest.raises(EngineRefusalError, match="no adapter found"):
            await engine.load_adapter("none", tmp_path / "none")
    assert base.ids == same.ids
    for path, completion in ((None, base), (adapter, with_adapter)):
        expected = reference(model_dir, path, list(PROMPT), list(completion.ids))
        assert completion.logprobs == pytest.approx(expected, abs=1e-3)
    assert base.logprobs != with_adapter.logprobs


async def test_several_engines_answer_as_one_and_prompts_go_where_their_beginning_is_cached(
    model_dir: Path, tmp_path: Path
) -> None:
    adapter = make_adapter(model_dir, tmp_path / "adapter", 1)
    first, second = (tuple(range(start, start + BLOCK_TOKENS)) for start in (0, 10))
    asked = list[SubprocessEngine]()

    def note(engine: SubprocessEngine) -> None:
        complete = engine.complete

        async def noted(prompt_ids: Sequence[int], *, model: str, sampling: Sampling) -> Completion:
            asked.append(engine)
            return await complete(prompt_ids, model=model, sampling=sampling)

        engine.complete = noted  # type: ignore[method-assign]

    async with (
        subprocess_engine(model_dir, "cpu", rows=4) as one,
        subprocess_engine(model_dir, "cpu", rows=4) as other,
    ):
        alone = [await one.complete(each, model="base", sampling=SAMPLING) for each in (first, second)]
        pool = EnginePool([one, other])
        note(one)
        note(other)
        await pool.load_adapter("adapter", adapter)
        ask = partial(pool.complete, sampling=SAMPLING)
        together = await asyncio.gather(*(ask(each, model="base") for each in (first, second)))
        for beginning in (second, first, second):
            await ask((*beginning, 1, 2), model="base")
        await ask(first, model="adapter")
        await pool.unload_adapter("adapter")
        for engine in (one, other):
            with pytest.raises(EngineRefusalError, match="adapter"):
                await engine.complete(first, model="adapter", sampling=SAMPLING)
    assert [each.ids for each in together] == [each.ids for each in alone]
    assert asked[:5] == [one, other, other, one, other]


async def test_a_directory_without_a_model_is_reported_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=str(tmp_path)):
        async with subprocess_engine(tmp_path, "cpu"):
            raise AssertionError("it must not start")


def test_the_child_ends_when_its_trainer_is_gone(model_dir: Path) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-m", "trainer.engines.engine_child", "--socket", str(theirs.fileno())]
        options = [
            "--model",
            str(model_dir),
            "--device",
            "cpu",
            "--rows",
            "2",
            "--dtype",
            "float32",
            "--kv-mb",
            "64",
            "--adapters",
            "1",
            "--threads",
            "1",
        ]
        child = subprocess.Popen([*command, *options], pass_fds=[theirs.fileno()])
    ours.recv(1)  # the engine is ready
    ours.close()
    assert child.wait(60) == 0


async def test_a_cancelled_request_is_cancelled_in_the_engine() -> None:
    async with _other_end() as (engine, reader, _):
        asking = asyncio.create_task(_ask(engine))
        asked = await read_request(reader)
        assert isinstance(asked, SampleRequest)
        assert (asked.prompt_ids, asked.sampling.seed) == (PROMPT, 3)
        asking.cancel()
        assert await read_request(reader) == CancelRequest(asked.number)


async def test_pending_requests_fail_when_the_engine_is_gone() -> None:
    async with _other_end() as (engine, reader, writer):
        asking = asyncio.create_task(_ask(engine))
        await read_request(reader)
        writer.close()
        with pytest.raises(EngineError, match="has ended"):
            await asking
        with pytest.raises(EngineError, match="has ended"):
            await _ask(engine)


class Broken:
    """A service with an unforeseen error."""

    loaded: ClassVar[dict[str, object]] = {}

    async def load(self, _: object) -> None:
        raise ZeroDivisionError


async def test_an_unforeseen_error_leaves_no_request_waiting() -> None:
    logged: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
    async with _other_end() as (engine, reader, writer):
        handler = asyncio.create_task(RequestHandler(cast(Any, Broken()), writer).serve(reader))
        with pytest.raises(EngineError, match="has ended"):
            await engine.load_adapter("any", Path("any"))
        await handler
    assert [type(context["exception"]) for context in logged] == [ZeroDivisionError]


async def _ask(engine: SubprocessEngine) -> Completion:
    return await engine.complete(PROMPT, model="base", sampling=SAMPLING)


@asynccontextmanager
async def _other_end() -> AsyncIterator[tuple[SubprocessEngine, asyncio.StreamReader, asyncio.StreamWriter]]:
    """An engine, and the child's end of its socket."""
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_unix_connection(sock=theirs)
    engine = SubprocessEngine(*await asyncio.open_unix_connection(sock=ours), max_length=512)
    try:
        yield engine, reader, writer
    finally:
        await engine.close()
        writer.close()
