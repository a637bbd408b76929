"""A task that its agent ends without a single call or answer has failed, unless its check is content."""

import pytest

from app.db import training_data
from app.db.models import TaskState
from app.records import Stop
from tests.approving import ApprovingProject
from tests.scripted_engine import ScriptedEngine, block
from trainer.experience.drop_reasons import DropReason
from trainer.experience.window import why_dropped

LOOK = "print(apis.api_docs.show_app_descriptions())"
DONE = "apis.supervisor.complete_task()"
ANSWER = "apis.supervisor.complete_task(answer='')"
WRITE = "apis.ledger.add_entry(text='one')"


@pytest.mark.parametrize(
    ("turns", "check", "state", "stop", "score"),
    [
        ((LOOK, DONE), None, TaskState.FAILED, Stop.NOTHING_DONE, None),
        ((DONE,), "score = 0", TaskState.FAILED, Stop.NOTHING_DONE, 0.0),
        ((DONE,), "score = 1", TaskState.DONE, Stop.COMPLETED, 1.0),
        ((ANSWER,), None, TaskState.DONE, Stop.COMPLETED, None),
        ((WRITE, DONE), None, TaskState.DONE, Stop.COMPLETED, None),
    ],
)
async def test_only_calls_an_answer_or_a_score_make_a_task_completed(
    demo: ApprovingProject,
    turns: tuple[str, ...],
    check: str | None,
    state: TaskState,
    stop: Stop,
    score: float | None,
) -> None:
    answers = [*map(block, turns)]
    engine = ScriptedEngine(demo.project.tokenizer, script=lambda _, turn: answers[turn])
    task_id = await demo.project.submit(check_code=check)
    async with demo.project.runner(engine):
        row = await demo.project.ended(task_id)
    assert (row.state, row.stop, row.score) == (state, stop, score)
    assert bool(row.failure) is (stop is Stop.NOTHING_DONE)
    kind, data = (await demo.project.events(task_id))[-1]
    assert (kind, data["state"], data["stop_reason"]) == ("done", state, stop)
    trajectory = (await demo.api.client.get(f"/v1/tasks/{task_id}/trajectory")).json()
    assert trajectory["stop_reason"] == stop
    async with demo.project.sessions() as session:
        [logged] = await training_data.ended(session, [task_id])
    dropped = why_dropped(logged, set())
    assert dropped is (DropReason.UNSCORED if score is None else None), "runs learn from a score of 0"
