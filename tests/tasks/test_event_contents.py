"""What the events of a task tell about its calls, its check and the selection of its skills."""

from typing import Any
from uuid import UUID

import pytest

from app.db.tables import TaskState
from app.skills import offers
from app.skills import store as skills
from tests.support.ledger import Entry
from tests.support.ledger_project import LedgerProject
from tests.support.scripted_engine import Answer, ScriptedEngine, block

SKILL = "def write_entry(text: str) -> int:\n    return apis.ledger.add_entry(text=text)['id']"
INSTRUCTION = "write hello into the ledger"


def script(*codes: str) -> Any:
    def answer(_: str, turn: int) -> Answer:
        return block(codes[turn] if turn < len(codes) else "apis.supervisor.complete_task()")

    return answer


async def run(project: LedgerProject, *codes: str, **more: Any) -> tuple[UUID, list[tuple[str, dict[str, Any]]]]:
    async with project.runner(ScriptedEngine(project.tokenizer, script=script(*codes))):
        task_id = await project.submit(INSTRUCTION, **more)
        await project.ended(task_id)
    return task_id, await project.events(task_id)


async def keep(project: LedgerProject, name: str, instruction: str = INSTRUCTION) -> UUID:
    new = skills.NewSkill(
        name=name,
        signature=f"{name}(text: str) -> int",
        source=SKILL.replace("write_entry", name),
        apis=["ledger.add_entry"],
        instruction=instruction,
    )
    async with project.sessions.begin() as session:
        return (await skills.add(session, project.id, new)).id


async def test_a_call_event_has_the_result_and_the_skill_that_made_it(project: LedgerProject) -> None:
    await keep(project, "write_entry")
    _, events = await run(project, "write_entry('hello')\napis.ledger.add_entry(text='own')")
    calls = [data for kind, data in events if kind == "call"]
    assert [(call["api"], call["skill"], call["result"]) for call in calls] == [
        ("ledger.add_entry", "write_entry", {"id": 1}),
        ("ledger.add_entry", None, {"id": 2}),
    ]
    assert not any("cut" in call for call in calls)
    assert [call["http_status"] for call in calls] == [201, 201]


async def test_a_large_result_is_cut_and_a_secret_in_it_is_masked(project: LedgerProject) -> None:
    project.ledger.entries += [Entry("word " * 200) for _ in range(5)]
    _, events = await run(project, "apis.ledger.list_entries()")
    [call] = [data for kind, data in events if kind == "call"]
    assert call["cut"] is True
    assert call["result"].startswith('[{"text": "word word')
    assert 1_900 < len(call["result"]) <= 2_000
    project.ledger.entries[:] = [Entry("the password is hunter2secret")]
    _, events = await run(project, "apis.ledger.list_entries()", variables={"password": "hunter2secret"})
    [call] = [data for kind, data in events if kind == "call"]
    assert call["result"] == [{"text": "the password is ***", "amount": 1}]


async def test_the_events_show_the_calls_and_the_output_of_a_check(project: LedgerProject) -> None:
    check = "rows = apis.ledger.list_entries()\nprint('rows:', len(rows))\nscore = len(rows) / 2"
    task_id, events = await run(project, "apis.ledger.add_entry(text='hello')", check_code=check)
    called, scored = [data for kind, data in events if kind == "check"]
    assert (called["status"], called["api"]) == ("called", "ledger.list_entries")
    assert called["result"] == [{"text": "hello", "amount": 1}]
    assert called["http_status"] == 200
    assert scored == {"status": "scored", "output": "rows: 1\n", "calls": 1, "score": 0.5, "error": None}
    assert [kind for kind, _ in events][-3:] == ["check", "check", "done"]
    assert (await project.row(task_id)).calls == 1, "those of the check are not the task's"


@pytest.mark.parametrize(
    ("check", "error"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("score = 7", "it set `score` to 7, which must lie between 0 and 1"),
        ("scor = 1", "it must set `score`, to a number from 0 to 1"),
        ("total = 1\nscore = totel", "NameError: name 'totel' is not defined. Hint: did you mean total?"),
        ("score = zzqqx(answer)", "NameError: name 'zzqqx' is not defined"),
    ],
)
async def test_a_check_that_breaks_says_why(project: LedgerProject, check: str, error: str) -> None:
    _, events = await run(project, check_code=f"print('looking')\n{check}")
    [failed] = [data for kind, data in events if kind == "check"]
    assert (failed["status"], failed["output"], failed["score"]) == ("failed", "looking\n", None)
    assert failed["error"] == f"the check failed, so it scores 0: {error}"


async def test_a_task_knows_why_each_skill_was_offered_or_not(project: LedgerProject) -> None:
    near = [await keep(project, f"write_{letter}") for letter in "abcd"]
    far = await keep(project, "rename", "write the first hello into a ledger of ours and rename it afterwards")
    task_id, _ = await run(project)
    async with project.sessions() as session:
        record = await offers.selection_of(session, task_id)
    assert record is not None
    assert record["thresholds"] == {"query_ngram": 0.75}
    choices = {UUID(each["skill_id"]): each for each in record["choices"]}
    offered = [each for each in record["choices"] if each["offered"]]
    assert [each["name"] for each in offered] == ["write_a", "write_b", "write_c"]
    assert offered[0]["scores"]["query_ngram"] == pytest.approx(1.0, abs=0.001)
    assert offered[0]["ranks"] == {"query_ngram": 1}
    assert choices[near[3]]["reason"] == "better skills took all places"
    assert "threshold" in choices[far]["reason"]
    assert 0 < choices[far]["scores"]["query_ngram"] < 0.75


async def test_a_task_that_does_without_skills_for_comparison_says_so(project: LedgerProject) -> None:
    project.withheld = 1.0
    await keep(project, "write_entry")
    task_id, _ = await run(project)
    async with project.sessions() as session:
        record = await offers.selection_of(session, task_id)
    assert record is not None
    [choice] = record["choices"]
    assert (choice["offered"], choice["reason"][:8]) == (False, "withheld")


async def test_nothing_is_recorded_where_no_skill_was_found(project: LedgerProject) -> None:
    task_id, _ = await run(project)
    async with project.sessions() as session:
        assert await offers.selection_of(session, task_id) is None
    assert (await project.row(task_id)).state is TaskState.FAILED  # nothing was done
