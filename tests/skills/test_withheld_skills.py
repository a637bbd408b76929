"""Tasks that do without skills by chance, and what skills are worth by comparison."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from sqlalchemy import update

from app.base.settings import Settings
from app.db import tables
from app.db.database import Sessions
from app.skills import offers
from app.skills import store as skills
from app.skills.routes import SkillValue
from app.skills.selection import is_withheld
from app.skills.value import ComparedTask, compared_tasks
from app.tasks import store as tasks
from tests.support.ledger_project import LedgerProject
from tests.support.rows import offer_of, project_row, record_offers
from tests.support.scripted_engine import Answer, ScriptedEngine, block

SOURCE = "def write_entry(text: str) -> int:\n    return apis.ledger.add_entry(text=text)['id']"
INSTRUCTION = "write hello into the ledger"


def new_skill(name: str = "write_entry") -> skills.NewSkill:
    return skills.NewSkill(
        name=name,
        signature=f"{name}(text: str) -> int",
        source=SOURCE,
        apis=["ledger.add_entry"],
        instruction=INSTRUCTION,
    )


def test_the_share_is_kept_and_a_larger_one_contains_a_smaller_one() -> None:
    ids = [UUID(int=number << 64) for number in range(20_000)]
    small, large = (
        {each for each in ids if is_withheld(each, share)} for share in (Settings().skills_withheld, 0.2)
    )
    assert small < large
    assert len(small) / len(ids) == pytest.approx(0.05, abs=0.005)
    assert not any(is_withheld(each, 0) for each in ids)
    assert all(is_withheld(each, 1) for each in ids)


def complete(prompt: str, turn: int) -> Answer:  # noqa: ARG001 - the signature of scripts
    return block("apis.supervisor.complete_task()" if turn else "print('I look around')")


@pytest.mark.parametrize("share", [0.0, 1.0])
async def test_a_task_that_does_without_is_shown_no_skill_and_says_which(
    project: LedgerProject, share: float
) -> None:
    project.withheld = share
    async with project.sessions.begin() as session:
        skill = await skills.add(session, project.id, new_skill())
    engine = ScriptedEngine(project.tokenizer, script=complete)
    async with project.runner(engine):
        row = await project.ended(await project.submit(INSTRUCTION))
    shown = [data["status"] for kind, data in await project.events(row.id) if kind == "skill"]
    async with project.sessions() as session:
        offered = [each.skill_id for each, _ in await offers.to_task(session, row.id)]
        withheld = [each.id for each in await offers.withheld_from(session, row.id)]
    if share:
        assert (shown, offered, withheld) == (["withheld"], [], [skill.id])
        assert "write_entry" not in engine.prompts[0]
    else:
        assert (shown, offered, withheld) == (["offered"], [skill.id], [])
        assert "write_entry" in engine.prompts[0]


async def test_scores_are_compared_by_project_skill_scenario_and_time(sessions: Sessions) -> None:
    dawn = datetime(2026, 5, 1, tzinfo=UTC)
    async with sessions.begin() as session:
        project, other = await project_row(session), await project_row(session)
        one, two = [await skills.add(session, project.id, new_skill(name)) for name in ("one", "two")]
        plan = [  # scenario, skill, withheld, score
            ("a", one, False, 1.0), ("a", one, True, 0.0), ("b", one, False, 0.5),
            ("b", two, True, 0.25), ("b", two, False, None), ("a", None, False, 1.0),
        ]  # fmt: skip
        for day, (scenario, skill, withheld, score) in enumerate(plan):
            for owner in (project, other):
                new = tasks.NewTask(instruction="x", scenario=scenario)
                task = await tasks.submit(session, owner.id, new)
                ended = {"score": score, "finished_at": dawn + timedelta(days=day)}
                await session.execute(update(tables.Task).where(tables.Task.id == task.id).values(ended))
                if owner is other or skill is None:
                    continue
                if withheld:
                    session.add(tables.WithheldSkill(task_id=task.id, skill_id=skill.id))
                else:
                    await record_offers(session, task.id, [offer_of(skill, query_ngram=1)])
    first, second, third, fourth = (
        ComparedTask("a", False, 1.0), ComparedTask("a", True, 0.0),
        ComparedTask("b", False, 0.5), ComparedTask("b", True, 0.25),
    )  # fmt: skip
    async with sessions() as session:
        assert await compared_tasks(session, project.id) == [first, second, third, fourth]
        assert await compared_tasks(session, project.id, skill_id=one.id) == [first, second, third]
        assert await compared_tasks(session, project.id, scenario="b") == [third, fourth]
        assert await compared_tasks(session, project.id, since=dawn + timedelta(days=1)) == [second, third, fourth]
        assert await compared_tasks(session, other.id) == []


def test_the_value_is_the_difference_of_the_means_and_unknown_without_both() -> None:
    found = SkillValue.of(
        [
            *[ComparedTask("a", False, 1.0)] * 400,
            *[ComparedTask("a", True, 0.0)] * 400,
            *[ComparedTask("b", False, 0.5)] * 200,
        ]
    )
    assert (found.offered.tasks, found.withheld.tasks) == (600, 400)
    assert found.offered.score == pytest.approx(5 / 6)
    assert found.difference is not None
    assert 0.7 < found.difference.low < found.difference.mean == pytest.approx(5 / 6)
    assert [(each.scenario, each.difference is None) for each in found.scenarios] == [("a", False), ("b", True)]
    assert found.scenarios[1].withheld.score is None


def test_a_difference_that_may_be_chance_has_zero_in_its_interval() -> None:
    few = [ComparedTask(None, withheld, score) for withheld in (False, True) for score in (1.0, 0.0, 1.0)]
    difference = SkillValue.of(few).difference
    assert difference is not None
    assert difference.low < 0 < difference.high
    assert SkillValue.of([]).difference is None
