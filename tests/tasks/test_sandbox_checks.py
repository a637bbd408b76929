"""A check cannot be evaded: one that breaks scores 0 and keeps no skill, whatever the answer."""

import asyncio

import pytest

from app.agent.rollout import RolloutLimits
from app.base.errors import InvalidError
from app.base.values import Json, Stop
from app.db.tables import TaskState
from app.sandbox.forked_sandbox import ForkedSandbox
from app.sandbox.protocol import SessionLimits
from app.tasks.verification import score
from tests.support.ledger import Ledger
from tests.support.ledger_policies import SKILL
from tests.support.ledger_project import LedgerProject
from tests.support.scripted_engine import ScriptedEngine, block
from tests.support.skill_project import changed_since
from tests.support.zygote_limits import limited

_WRITE = block(SKILL.format(word="hello"))
_LIMITS = SessionLimits(cpu_seconds=0.3, wall_seconds=3)  # of checks that would not end
_AMPLE = SessionLimits(cpu_seconds=20)
_BROKEN = {
    "raises": "1 / 0",
    "is too slow": "while True: pass",
    "cannot be interrupted": "sum(range(10**11))",
    "sleeps": "import time\ntime.sleep(9)",
    "needs too much memory": "x = 'x' * (1 << 40)",
    "kills itself": "import os\nos._exit(0)",
    "leaves no score": "pass",
    "leaves text": "score = 'high'",
    "leaves nan": "score = float('nan')",
    "leaves infinity": "score = float('inf')",
    "leaves too much": "score = 1.01",
    "leaves what prints other text": "score = 1\nprint = lambda *_: None",
    "does not parse": "score = ",
    "is interrupted": "raise KeyboardInterrupt",
}
_ANSWERS: dict[str, Json] = {
    "none": None,
    "text of 400 kB": "x" * 400_000,
    "text of 1 MB": "x" * 999_000,
    "quotes": "\"'" * 200_000,
    "backslashes and braces": "\\{}\n" * 150_000,
    "control characters": "\x00\x1f\x7f" * 50_000,
    "emoji": "\U0001f600" * 200_000,
    "unassigned characters": "\U000e0fff" * 200_000,
    "numbers": [2**1000, -1.5, 1e308, 0],
    "objects": {"a": [{"b": [None, True]}] * 20_000},
}


async def _score(sandbox: ForkedSandbox, code: str, answer: Json = None, limits: SessionLimits = _AMPLE) -> float:
    ledger = Ledger()
    async with ledger.client() as client:
        gateway = ledger.gateway(client, read_only=True)
        return await score(code, answer, sandbox=sandbox, gateway=gateway, limits=limits, now=None)


@pytest.mark.parametrize("name", _BROKEN)
async def test_a_check_that_breaks_is_an_error_of_the_check(name: str, bare_sandbox: ForkedSandbox) -> None:
    with pytest.raises(InvalidError, match="the check"):
        await _score(bare_sandbox, _BROKEN[name], limits=_LIMITS)


@pytest.mark.parametrize("name", _ANSWERS)
async def test_a_check_reads_the_answer_as_it_was_given(name: str, bare_sandbox: ForkedSandbox) -> None:
    answer = _ANSWERS[name]
    if isinstance(answer, str):  # too long for a check to spell out
        expected = f"len(answer) == {len(answer)} and set(answer) == set({''.join(sorted(set(answer)))!r})"
    elif isinstance(answer, dict):
        expected = "answer == {'a': [{'b': [None, True]}] * 20_000}"
    else:
        expected = f"answer == {answer!r}"
    assert await _score(bare_sandbox, f"score = float({expected})", answer) == 1.0


@pytest.mark.parametrize("answer", ["'x' * 400_000", "'\\0' * 100_000", "[[]] * 100_000", "{'k' * 300_000: 1}"])
async def test_an_answer_does_not_evade_its_check_by_size(project: LedgerProject, answer: str) -> None:
    done = block(f"apis.supervisor.complete_task(answer={answer})")
    row = await _carry_out(project, "score = float(answer == 4)", _WRITE, done)
    assert (row.state, row.score, row.failure) == (TaskState.DONE, 0.0, None)


@pytest.mark.parametrize("check", ["score = 1 / 0", "score = answer + 1", "while True: pass", "score = None"])
async def test_a_check_that_breaks_scores_0_and_keeps_nothing(project: LedgerProject, check: str) -> None:
    row = await _carry_out(project, check, _WRITE, block("apis.supervisor.complete_task(answer='x')"))
    assert (row.state, row.score) == (TaskState.DONE, 0.0)
    assert "the check" in (row.failure or "")


async def test_an_answer_that_is_too_large_is_refused_to_the_agent(project: LedgerProject) -> None:
    large = block("apis.supervisor.complete_task(answer='x' * 1_000_000)")
    small = block("apis.supervisor.complete_task(answer=4)")
    engine = ScriptedEngine(project.tokenizer, large, small)
    async with project.runner(engine):
        row = await project.ended(await project.submit(check_code="score = float(answer == 4)"))
    assert (
        "ValueError: the answer takes 1,000,002 bytes as JSON, at most 1,000,000 are allowed" in engine.prompts[1]
    )
    assert (row.state, row.stop, row.score) == (TaskState.DONE, Stop.COMPLETED, 1.0)


async def test_a_check_waits_for_a_machine_that_cannot_run_it_at_once(bare_sandbox: ForkedSandbox) -> None:
    with limited(bare_sandbox):
        scoring = asyncio.create_task(_score(bare_sandbox, "score = 1"))
        await asyncio.sleep(0.2)
    assert await scoring == 1.0


async def _carry_out(project: LedgerProject, check: str, *turns: str) -> Json:
    """The row of a task that wrote a skill and kept none."""
    limits = RolloutLimits(session=SessionLimits(cpu_seconds=1) if "while" in check else _AMPLE)
    async with project.runner(ScriptedEngine(project.tokenizer, *turns), limits=limits):
        row = await project.ended(await project.submit(check_code=check))
    assert await _kept(project) == []
    return row


async def _kept(project: LedgerProject) -> list[str]:
    async with project.sessions() as session:
        return [skill.name for skill in await changed_since(session, project.id, 0)]
