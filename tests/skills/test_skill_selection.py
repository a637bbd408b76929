"""Tasks are offered only skills that their sandbox can load."""

from uuid import UUID

import msgspec
import pytest
from structlog.testing import capture_logs

from app.db.tables import TaskState
from app.skills import offers
from app.skills import store as skills
from tests.support.ledger_project import LedgerProject
from tests.support.scripted_engine import Answer, ScriptedEngine, block

GOOD = "def write_entry(text: str) -> int:\n    return apis.ledger.add_entry(text=text)['id']"
INSTRUCTION = "write hello into the ledger"


async def _keep(project: LedgerProject, name: str, source: str) -> UUID:
    new = skills.NewSkill(
        name=name,
        signature=f"{name}(text: str) -> int",
        source=source,
        apis=["ledger.add_entry"],
        instruction=INSTRUCTION,
    )
    async with project.sessions.begin() as session:
        return (await skills.add(session, project.id, new)).id


def _using(_: str, turn: int) -> Answer:
    return block("apis.supervisor.complete_task()" if turn else "write_entry('hello')")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def write_line(text: str) -> int:", "IndentationError"),
        ("def another(text: str) -> int:\n    return 1", "does not define"),
        (
            "def write_line(text: str = apis.ledger.list_entries()) -> int:\n    return 1",
            "computed when it is loaded",
        ),
    ],
)
async def test_a_skill_that_does_not_load_is_skipped_with_an_event_and_stops_no_task(
    project: LedgerProject, source: str, reason: str
) -> None:
    good, bad = await _keep(project, "write_entry", GOOD), await _keep(project, "write_line", source)
    with capture_logs() as logs:
        async with project.runner(ScriptedEngine(project.tokenizer, script=_using)):
            row = await project.ended(await project.submit(INSTRUCTION))
    assert (row.state, row.failure) == (TaskState.DONE, None)
    async with project.sessions() as session:
        assert [(skill.id, offer.returned) for offer, skill in await offers.to_task(session, row.id)] == [
            (good, 1)
        ]
    skipped = [data for kind, data in await project.events(row.id) if data.get("status") == "skipped"]
    assert [each["id"] for each in skipped] == [str(bad)]
    assert reason in skipped[0]["reason"]
    assert [line["skill"] for line in logs if line["event"] == "a skill does not load"] == [str(bad)]


async def test_a_skill_of_operations_that_are_gone_leaves_its_place_to_others(project: LedgerProject) -> None:
    """Three that call what the API no longer has, and one that is the least similar, are found."""
    gone = skills.NewSkill(
        name="post_entry",
        signature="post_entry(text: str) -> int",
        source="def post_entry(text: str) -> int:\n    return apis.ledger.post_entry(text=text)",
        apis=["ledger.post_entry"],
        instruction=INSTRUCTION,
    )
    async with project.sessions.begin() as session:
        old = []
        for name in ("post_a", "post_b", "post_c"):
            source = gone.source.replace("def post_entry", f"def {name}")
            renamed = msgspec.structs.replace(gone, name=name, source=source)
            old.append(await skills.add(session, project.id, renamed))
    good = await _keep(project, "write_entry", GOOD)
    async with project.runner(ScriptedEngine(project.tokenizer, script=_using)):
        row = await project.ended(await project.submit(INSTRUCTION))
    async with project.sessions() as session:
        assert [skill.id for _, skill in await offers.to_task(session, row.id)] == [good]
    skipped = [data for kind, data in await project.events(row.id) if data.get("status") == "skipped"]
    assert {each["id"] for each in skipped} == {str(each.id) for each in old}
    assert {each["reason"] for each in skipped} == {"no longer what they were: ledger.post_entry"}
