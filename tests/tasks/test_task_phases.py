"""The time of a slow task is explained, whatever made it slow."""

import asyncio
from time import perf_counter
from typing import Any

import pytest

from app.base.telemetry import Phase, PhaseClock, phase, phase_seconds, running, span, timed
from app.base.values import Trajectory
from app.db import results
from app.engine.protocol import Completion
from app.tasks import queue
from tests.support.ledger_policies import DONE
from tests.support.ledger_project import LedgerProject
from tests.support.scripted_engine import ScriptedEngine, block

READ = block("print(apis.ledger.list_entries())")
WORK = block("total = 0\nfor number in range(40_000_000):\n    total += number")
CHECK = "total = 0\nfor number in range(20_000_000):\n    total += number\nscore = 1"
SLOW_SECONDS = 1.0


class Slow(ScriptedEngine):
    """Thinks before it answers."""

    async def complete(self, *args: Any, **kwargs: Any) -> Completion:
        await asyncio.sleep(SLOW_SECONDS)
        return await super().complete(*args, **kwargs)


async def trajectory_of(project: LedgerProject, task_id: Any) -> Trajectory:
    async with project.sessions() as session:
        return await results.of_task(session, task_id)


@pytest.mark.parametrize("slow", [Phase.QUEUE, Phase.ENGINE, Phase.CALLS, Phase.SANDBOX, Phase.CHECK])
async def test_the_phases_explain_the_time_of_a_slow_task(project: LedgerProject, slow: Phase) -> None:
    """One try of some has to show it: a busy machine may hold a task up in another phase, or between two."""
    seen = []
    for _ in range(5):
        whole, phases = await _measured(project, slow)
        assert phases.keys() <= {each.value for each in Phase}
        explained = sum(seconds for name, seconds in phases.items() if name != Phase.OTHER)
        assert explained <= whole + 0.001
        if max(phases, key=lambda name: phases[name]) == slow and explained >= 0.95 * whole:
            return
        seen.append((whole, phases))
    pytest.fail(f"{slow} never explained the time: {seen}")


async def _measured(project: LedgerProject, slow: Phase) -> tuple[float, dict[str, float]]:
    """The seconds that a task took, and those of its phases."""
    project.ledger.pause = SLOW_SECONDS if slow is Phase.CALLS else 0
    kind = Slow if slow is Phase.ENGINE else ScriptedEngine
    engine = kind(project.tokenizer, WORK if slow is Phase.SANDBOX else READ, block(DONE))
    task_id = await project.submit(check_code=CHECK if slow is Phase.CHECK else "score = 1")
    if slow is Phase.QUEUE:
        await asyncio.sleep(SLOW_SECONDS)
    async with project.runner(engine):
        row = await project.ended(task_id)
    assert row.finished_at is not None
    return (row.finished_at - row.created_at).total_seconds(), (await trajectory_of(project, task_id)).phases


async def test_a_resumed_task_shows_the_time_of_its_earlier_attempt(project: LedgerProject) -> None:
    task_id = await project.submit()
    async with project.sessions.begin() as session:
        await queue.claim(session, "another", 600)
    await asyncio.sleep(1.1)
    async with project.sessions.begin() as session:
        await queue.hand_back(session, "another")
    async with project.runner(ScriptedEngine(project.tokenizer, block(DONE), block(DONE))):
        await project.ended(task_id)
    phases = (await trajectory_of(project, task_id)).phases
    assert 1.1 <= phases[Phase.INTERRUPTED] < 60


async def test_a_moment_counts_for_the_innermost_phase_only() -> None:
    began, clock = perf_counter(), PhaseClock()

    @timed(Phase.JOURNAL)
    async def write() -> None:
        await asyncio.sleep(0.05)

    with running(clock), phase(Phase.SANDBOX):
        entered = perf_counter()
        await asyncio.sleep(0.1)
        with phase(Phase.CALLS):
            await asyncio.sleep(0.2)
            await write()
        inside = perf_counter() - entered
        found = phase_seconds()
    whole = perf_counter() - began
    assert found[Phase.CALLS] >= 0.2
    assert found[Phase.JOURNAL] >= 0.05
    assert found[Phase.SANDBOX] >= 0.1
    assert inside - 0.001 <= sum(found.values()) <= whole + 0.001


async def test_tasks_at_once_have_clocks_of_their_own() -> None:
    async def spend(which: Phase) -> dict[str, float]:
        with running(PhaseClock()), phase(which):
            await asyncio.sleep(0.05)
            return phase_seconds()

    one, other = await asyncio.gather(spend(Phase.ENGINE), spend(Phase.CHECK))
    assert Phase.CHECK not in one
    assert Phase.ENGINE not in other


def test_outside_of_a_task_nothing_is_measured() -> None:
    with phase(Phase.ENGINE), span("chat", {}) as opened:
        opened.set({"any": 1})
        opened.fail("ValueError")
    assert phase_seconds() == {}
