"""A session that is killed while its turns are run again: the turns are run in another one."""

import os
import signal

from app.base.values import Stop, Turn
from app.db.tables import TaskState
from app.tasks import queue, turns
from tests.support.ledger_project import OPTIONS, LedgerProject, until
from tests.support.processes import cpu_seconds_of, descendants
from tests.support.scripted_engine import END, ScriptedEngine, block

SLOW = "n = 0\nfor i in range(30_000_000):\n    n += i"


async def test_a_session_that_is_killed_while_a_turn_is_run_again_is_no_doubt(project: LedgerProject) -> None:
    task_id = await project.submit(use_skills=False)
    ids = tuple(project.tokenizer.encode(block(SLOW) + END))
    opening = tuple(project.tokenizer.encode("..."))
    turn = Turn(context_ids=opening, sampled_ids=ids, logprobs=(0.0,) * len(ids), text=block(SLOW), outcome="ok")
    async with project.sessions.begin() as session:
        assert await queue.claim(session, "left", 30) is not None
        await turns.begin(session, task_id, "left", 0, turn)
        await turns.end(session, task_id, "left", 0, turn)
        await queue.hand_back(session, "left")
    before = descendants(os.getpid())
    engine = ScriptedEngine(project.tokenizer, block("apis.supervisor.complete_task(answer=1)"))
    async with project.runner(engine, OPTIONS):
        await until(lambda: sum(map(cpu_seconds_of, descendants(os.getpid()) - before)) > 0.1)  # its code runs
        for pid in descendants(os.getpid()) - before:
            os.kill(pid, signal.SIGKILL)
        row = await project.ended(task_id)
    assert (row.state, row.stop, row.failure, row.sandbox_failures) == (TaskState.DONE, Stop.COMPLETED, None, 0)
