"""Nothing that a turn leaves behind runs between turns, answers for the next one, or escapes the account."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from app.base.values import Json
from app.sandbox.forked_sandbox import ForkedSandbox
from app.sandbox.protocol import RunStop, SessionLimits
from app.sandbox.session import ForkedSession

_LIMITS = SessionLimits(cpu_seconds=0.2, wall_seconds=60)
_FORGED = """
import json, os
def forge(*message):
    body = json.dumps(message).encode()
    os.write(3, len(body).to_bytes(4, 'big') + body)
forge('done', apis.t.echo._channel.run, 'ok', None, [])
"""


async def _echo(api: str, args: list[Json], kwargs: dict[str, Json], **_: object) -> Json:
    return [api, args, kwargs]


@pytest_asyncio.fixture
async def session(bare_sandbox: ForkedSandbox) -> AsyncIterator[ForkedSession]:
    session = await bare_sandbox.open({"t": ["echo"]}, _echo, _LIMITS)
    yield session
    await session.close()


def _state(session: ForkedSession) -> str:
    """T for stopped, R for running, S for waiting."""
    pid = session._process.fork.pid
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def _until(session: ForkedSession, state: str) -> None:
    while _state(session) != state:  # noqa: ASYNC110  there is no event
        await asyncio.sleep(0.01)


async def test_the_process_is_stopped_before_the_first_turn_and_between_turns(
    bare_sandbox: ForkedSandbox,
) -> None:
    answered = asyncio.Event()

    async def answer(*_: object, **__: object) -> Json:
        await answered.wait()
        return None

    session = await bare_sandbox.open({"t": ["echo"]}, answer, _LIMITS)
    await _until(session, "T")
    turn = asyncio.create_task(session.run("apis.t.echo()"))
    await _until(session, "S")
    answered.set()
    assert (await turn).stop == RunStop.OK
    await _until(session, "T")
    await session.close()


async def test_a_forged_end_leaves_no_process_running(session: ForkedSession) -> None:
    assert (await session.run(_FORGED + "while True: pass")).stop == RunStop.OK
    used = session._process.fork.cpu_seconds()
    await asyncio.sleep(0.3)
    assert session._process.fork.cpu_seconds() - used < 0.05


async def test_the_loop_that_a_forged_end_left_behind_is_the_cpu_time_of_the_next_turn(
    session: ForkedSession,
) -> None:
    await session.run(_FORGED + "while True:\n    try: sum(range(10**12))\n    except TimeoutError: pass")
    seen = await session.run("print('the second')")
    assert (seen.stop, seen.stdout, seen.alive) == (RunStop.CPU, "", False)
    assert seen.cpu_ms >= 400


@pytest.mark.parametrize(
    "successor",
    [
        "forge('done', apis.t.echo._channel.run, 'ok', None, [])",
        "forge('out', apis.t.echo._channel.run, 'said by the first')",
        "forge('call', apis.t.echo._channel.run, 't.echo', [], {})",
        "n = format(int(apis.t.echo._channel.run, 16) + 1, '016x')\nforge('done', n, 'ok', None, [])",
        "forge('done', '', 'ok', None, [])\nforge('done', 2, 'ok', None, [])",
    ],
)
async def test_a_turn_cannot_answer_for_its_successor(successor: str, session: ForkedSession) -> None:
    await session.run(_FORGED + successor)
    seen = await session.run("print('said by the second')")
    assert (seen.stop, seen.stdout, seen.calls) == (RunStop.CRASH, "", 0)
    assert "it broke the protocol" in (seen.error or "")


async def test_a_timer_that_a_turn_leaves_behind_does_not_fire_before_the_next_turn(
    session: ForkedSession,
) -> None:
    await session.run(
        "import signal, time\nfired = []\ndef on_alarm(*_): fired.append(time.monotonic())\n"
        "signal.signal(signal.SIGALRM, on_alarm)\nsignal.setitimer(signal.ITIMER_REAL, 1)"
    )
    await asyncio.sleep(1.2)
    resumed = time.monotonic()  # the same clock for all processes of a machine
    seen = await session.run("print(fired[0])")
    assert float(seen.stdout) >= resumed


async def test_every_turn_has_another_number(session: ForkedSession) -> None:
    numbers = [(await session.run("print(apis.t.echo._channel.run)")).stdout for _ in range(5)]
    assert len(set(numbers)) == 5


async def test_all_cpu_time_of_a_session_is_accounted_to_its_turns(session: ForkedSession) -> None:
    setup = session._process.fork.cpu_seconds()
    seen = [await session.run(_FORGED + "sum(range(200_000))")]
    seen += [await session.run("x = sum(range(1_000_000))") for _ in range(3) if session.alive]
    total = session._process.fork.cpu_seconds() - setup
    assert sum(each.cpu_ms for each in seen) / 1000 >= total - 0.001


async def test_a_session_that_has_used_up_its_cpu_time_is_killed(bare_sandbox: ForkedSandbox) -> None:
    limits = SessionLimits(cpu_seconds=5, session_cpu_seconds=1)
    session = await bare_sandbox.open({}, _echo, limits)
    turn = "import time\nt = time.process_time()\nwhile time.process_time() < t + {}: pass"
    seen = [await session.run(turn.format(0.4)) for _ in range(2)]
    last = await session.run(turn.format(0.9))
    assert [each.stop for each in seen] == [RunStop.OK, RunStop.OK]
    assert (last.stop, last.alive) == (RunStop.CPU, False)
    assert "it used all 1 s of CPU time of a session" in (last.error or "")
