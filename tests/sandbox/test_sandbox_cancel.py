"""The opening of a session is cancelled half-way, as when a task is cancelled."""

import asyncio
import gc
import os
import signal
from contextlib import suppress

import pytest

from app.base.values import Json
from app.sandbox.forked_sandbox import ForkedSandbox
from app.sandbox.protocol import SessionLimits
from tests.support.processes import descendants, gone
from tests.support.zygote_limits import zygote_pid


async def no_call(api: str, args: list[Json], kwargs: dict[str, Json], **_: object) -> Json:
    raise LookupError(f"{api} {args} {kwargs}")


async def test_sessions_opened_after_a_cancelled_one_are_not_mixed_up() -> None:
    async with ForkedSandbox(bwrap=False) as sandbox:
        for turns in range(1, 12, 2):  # of the event loop, until it is called off
            opening = asyncio.ensure_future(sandbox.open({}, no_call, SessionLimits()))
            for _ in range(turns):
                await asyncio.sleep(0)
            opening.cancel()
            with suppress(asyncio.CancelledError):
                await (await opening).close()
            session = await sandbox.open({}, no_call, SessionLimits(cpu_seconds=0.2))
            assert (await session.run("print(1)")).stdout == "1\n"
            assert (await session.run("sum(range(10**10))")).stop == "cpu", "the host kills the right process"
            await session.close()


@pytest.mark.parametrize("seconds", [0, 0.05])
async def test_a_warm_process_that_is_cancelled_as_it_starts_ends(seconds: float) -> None:
    async with ForkedSandbox(bwrap=False) as sandbox:
        others = set(descendants(os.getpid()))
        os.kill(zygote_pid(sandbox), signal.SIGKILL)
        opening = asyncio.ensure_future(sandbox.open({}, no_call, SessionLimits()))
        while not (started := set(descendants(os.getpid())) - others):  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0)
        for pid in started:
            os.kill(pid, signal.SIGSTOP)  # it stays in its start until it is called off
        await asyncio.sleep(seconds)
        opening.cancel()
        await asyncio.wait([opening])
        gc.collect()
        await gone(started)
