"""A fork that fails, or comes late, concerns nobody but the request that asked for it."""

import asyncio
import os
import select
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest
import pytest_asyncio

from app.base.errors import SandboxError
from app.base.values import Json
from app.sandbox.forked_sandbox import ForkedSandbox
from app.sandbox.protocol import SessionLimits
from app.sandbox.session import ForkedSession
from tests.support.processes import alive, descendants
from tests.support.zygote_limits import limited, zygote_pid

_FORK_SECONDS = 0.3


async def _no_call(api: str, args: list[Json], kwargs: dict[str, Json], **_: object) -> Json:
    raise LookupError(f"{api} {args} {kwargs}")


@pytest_asyncio.fixture
async def sandbox() -> AsyncIterator[ForkedSandbox]:
    async with ForkedSandbox(bwrap=False) as sandbox:
        yield sandbox


@contextmanager
def _impatient(sandbox: ForkedSandbox) -> Iterator[None]:
    """Forks have little time in this block."""
    usual, sandbox._fork_seconds = sandbox._fork_seconds, _FORK_SECONDS
    try:
        yield
    finally:
        sandbox._fork_seconds = usual


async def _open(sandbox: ForkedSandbox) -> ForkedSession:
    return await sandbox.open({}, _no_call, SessionLimits(cpu_seconds=0.2))


async def _says(session: ForkedSession, text: str) -> bool:
    return (await session.run(f"print({text!r})")).stdout == f"{text}\n"


async def _until_forks(zygote: int, count: int) -> None:
    while sum(map(alive, descendants(zygote))) != count:  # noqa: ASYNC110  there is no event
        await asyncio.sleep(0.01)


@contextmanager
def _stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _block_the_loop(seconds: float) -> None:
    time.sleep(seconds)


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ("nproc", "Resource temporarily unavailable .*pids.max"),
        ("nofile", "Too many open files .*ulimit -n"),
    ],
)
async def test_a_failed_fork_is_an_error_of_its_request_alone(
    limit: str, reason: str, sandbox: ForkedSandbox
) -> None:
    living, zygote = await _open(sandbox), zygote_pid(sandbox)
    with limited(sandbox, limit):
        with pytest.raises(SandboxError, match=reason):
            await _open(sandbox)
        assert await _says(living, "on")
    assert await _says(await _open(sandbox), "new")
    assert await _says(living, "still on")
    assert zygote_pid(sandbox) == zygote


async def test_a_slow_fork_fails_its_request_alone_and_its_late_answer_is_given_to_no_other(
    sandbox: ForkedSandbox,
) -> None:
    living, zygote = await _open(sandbox), zygote_pid(sandbox)
    with _stopped(zygote):
        with _impatient(sandbox):
            late = await asyncio.gather(*(_open(sandbox) for _ in range(3)), return_exceptions=True)
        assert all(
            isinstance(each, SandboxError) and "0.3 s: the machine is overloaded" in str(each) for each in late
        )
        assert await _says(living, "on")
    for number in range(3):
        session = await _open(sandbox)
        assert await _says(session, f"its own {number}")
        assert (await session.run("sum(range(10**10))")).stop == "cpu", (
            "the host measures and kills the right process"
        )
    assert await _says(living, "still on")
    assert zygote_pid(sandbox) == zygote
    await _until_forks(zygote, 1)  # late ones are killed


async def test_a_fork_that_comes_just_as_its_time_ends_is_used(sandbox: ForkedSandbox) -> None:
    assert sandbox._zygote is not None
    with _impatient(sandbox):
        opening = asyncio.ensure_future(_open(sandbox))
        while not sandbox._zygote.requests.silent_seconds():  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0)
    _block_the_loop(_FORK_SECONDS + 1)
    select.select([sandbox._zygote.requests._control], [], [], 60)  # its answer is there
    assert await _says(await opening, "new")


async def test_a_warm_process_that_stays_silent_is_replaced_once_no_session_lives(sandbox: ForkedSandbox) -> None:
    living, zygote = await _open(sandbox), zygote_pid(sandbox)
    os.kill(zygote, signal.SIGSTOP)
    with _impatient(sandbox):
        for _ in range(4):
            with pytest.raises(SandboxError, match="overloaded"):
                await _open(sandbox)
    assert await _says(living, "on"), "while a session lives, it is kept"
    await living.close()
    with _impatient(sandbox):
        await sandbox._living_zygote()  # a launch has more time
    assert await _says(await _open(sandbox), "new")
    assert zygote_pid(sandbox) != zygote


async def test_requests_cancelled_while_the_warm_process_is_slow_leave_nothing_behind(
    sandbox: ForkedSandbox,
) -> None:
    zygote = zygote_pid(sandbox)
    with _stopped(zygote):
        opening = [asyncio.ensure_future(_open(sandbox)) for _ in range(6)]
        await asyncio.sleep(0.05)
        for each in opening[::2]:
            each.cancel()
    sessions = await asyncio.gather(*opening[1::2])
    assert all([await _says(session, f"{number}") for number, session in enumerate(sessions)])
    await _until_forks(zygote, 3)
