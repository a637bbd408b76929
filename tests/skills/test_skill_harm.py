"""Skills that have not proved themselves replace none that has, and those that do harm are taken out."""

import pytest
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis.catalog import Catalog
from app.base.values import ScoreSource
from app.db import tables
from app.db.tables import SkillState
from app.skills import admission, moves, offers
from app.skills import evidence as evidence
from app.skills import store as skills
from app.skills.admission import admit, is_harmful
from app.skills.evidence import Outcomes
from app.skills.value import compared_tasks
from app.tasks import feedback
from tests.support.rows import offer_of, project_row, record_offers
from tests.support.skill_project import SkillProject

QUARANTINED, PROBATION, ACTIVE, SUPERSEDED, RETIRED, DELETED = SkillState


@pytest.fixture
async def project(session: AsyncSession) -> SkillProject:
    return SkillProject(session, (await project_row(session)).id)


async def score(project: SkillProject, skill: tables.Skill, value: float) -> None:
    """Score the task that wrote it."""
    assert skill.task_id is not None
    await feedback.add(project.session, skill.task_id, value)
    await admission.scored(project.session, skill.task_id, value)
    await project.session.refresh(skill)


async def raise_in(project: SkillProject, skill: tables.Skill) -> None:
    """A task without a score in which it only raised."""
    task = await project.task()
    await record_offers(project.session, task.id, [offer_of(skill)])
    [(offer, _)] = await offers.to_task(project.session, task.id)
    offer.calls = 1
    await project.session.flush()


async def test_a_version_of_an_unscored_task_does_not_hide_one_that_has_proved_itself(
    project: SkillProject,
) -> None:
    await project.write(score=1.0)
    second = await project.write("two")
    assert await project.states() == [(2, SUPERSEDED), (1, PROBATION)]
    assert [await project.offered(who) for who in ("ann", "bob")] == [1, 1]
    assert second.reason == "the present version has proved itself: it waits for a good score of its task"
    assert (await project.write("three", principal="bob")).state is SUPERSEDED


async def test_a_good_score_lets_it_in_once_the_present_one_fails(project: SkillProject) -> None:
    first = await project.write(score=1.0)
    second = await project.write("two")
    await score(project, second, 1.0)
    assert await project.offered("ann") == 1, "the first one still succeeds"
    await project.use(first, "ann", 0.0)
    third = await project.write("three")
    assert await project.offered("ann") == 3, "as many failures as successes"
    assert third.state is PROBATION


async def test_one_that_raises_has_not_proved_itself_though_nobody_scores(project: SkillProject) -> None:
    first = await project.write(score=1.0)
    await raise_in(project, first)
    assert (await project.write("two")).state is PROBATION


async def test_the_same_source_waits_once_for_the_score_of_the_latest_task_that_wrote_it(
    project: SkillProject,
) -> None:
    first = await project.write(score=1.0)
    second = await project.write("two")
    again = await project.write("two")
    assert again is second
    assert await project.states() == [(2, SUPERSEDED), (1, PROBATION)]
    await project.use(first, "ann", 0.0)
    await score(project, again, 1.0)
    assert await project.states() == [(2, PROBATION), (1, PROBATION)]
    assert [await project.offered(who) for who in ("ann", "bob")] == [2, 1], "the other one is tried on all"


async def test_a_source_that_waits_is_offered_when_it_is_written_after_the_present_one_failed(
    project: SkillProject,
) -> None:
    first = await project.write(score=1.0)
    second = await project.write("two")
    await project.use(first, "ann", 0.0)
    again = await project.write("two")
    assert (again.version, again.state) == (second.version + 1, PROBATION)


async def test_the_skill_of_a_badly_scored_task_is_taken_out_and_what_it_replaced_returns(
    project: SkillProject,
) -> None:
    await project.write()
    await project.write("two")
    third = await project.write("three")
    assert await project.states() == [(3, PROBATION), (2, SUPERSEDED), (1, PROBATION)]
    await score(project, third, 0.0)
    assert await project.states() == [(3, RETIRED), (2, SUPERSEDED), (1, PROBATION)]
    assert (third.moved_by, third.reason) == (moves.SCORES, "the task that wrote it was scored 0")
    assert await project.offered("ann") == 1


async def test_the_only_version_of_a_badly_scored_task_serves_again_once_the_score_is_corrected(
    project: SkillProject,
) -> None:
    first = await project.write()
    await score(project, first, 0.0)
    assert await project.offered("ann") is None
    await score(project, first, 1.0)
    assert (first.state, await project.offered("ann")) == (PROBATION, 1)


async def test_the_source_of_a_badly_scored_task_is_offered_again_only_after_a_good_score(
    project: SkillProject,
) -> None:
    first = await project.write()
    await score(project, first, 0.0)
    again = await project.write()
    assert again is first
    assert await project.offered("ann") is None
    await score(project, again, 1.0)
    assert await project.offered("ann") == 1


async def test_a_person_who_retired_a_name_is_not_overruled_by_a_score(project: SkillProject) -> None:
    first = await project.write()
    await moves.retire(project.session, first.id, "key me")
    await score(project, first, 1.0)
    assert first.state is RETIRED


async def test_an_active_skill_that_does_harm_goes_back_on_probation_and_then_out(project: SkillProject) -> None:
    skill = await project.write(score=1.0)
    await moves.approve(project.session, skill.id, "key me")
    for _ in range(20):
        await project.task(score=1.0)
    for _ in range(3):
        await project.use(skill, "ann", 0.0)
    assert skill.state is PROBATION
    assert skill.reason == "3 of the 4 latest tasks with it failed, 0 of 20 without it"
    await project.use(skill, "ann", 0.0)
    assert (skill.state, skill.moved_by) == (RETIRED, moves.SCORES)


async def test_a_skill_without_a_scenario_is_compared_with_tasks_from_which_chance_withheld_it(
    project: SkillProject,
) -> None:
    project.scenario = None
    skill = await project.write(score=1.0)
    for _ in range(8):
        await project.use(skill, "ann", 0.0)
    assert skill.state is PROBATION, "nothing says that tasks do better without it"
    for _ in range(4):
        await project.withhold(skill, 1.0)
    await project.use(skill, "ann", 0.0)
    assert (skill.state, skill.moved_by) == (RETIRED, moves.SCORES)
    assert skill.reason == "9 of the 9 latest tasks that were offered it failed, 0 of 4 from which it was withheld"


async def test_what_chance_says_of_a_skill_counts_for_more_than_tasks_that_chose_to_do_without(
    project: SkillProject,
) -> None:
    """The easy tasks of its scenario do not need it."""
    skill = await project.write(score=1.0)
    for _ in range(10):
        await project.withhold(skill, 0.0)
    for _ in range(20):
        await project.task(score=1.0)
    for number in range(12):
        await project.use(skill, "ann", float(number % 4 == 0))
    assert skill.state is not RETIRED
    assert "an outcome no worse than without it" not in (await admission.judge(project.session, skill))[1].missing


async def test_a_skill_that_lowers_the_successes_of_those_offered_it_is_not_made_active(
    project: SkillProject,
) -> None:
    project.scenario = None
    skill = await project.write(score=1.0)
    for _ in range(8):
        await project.withhold(skill, 1.0)
    for number in range(8):
        await project.use(skill, "ann", float(number % 2))
    assert skill.state is PROBATION
    missing = (await admission.judge(project.session, skill))[1].missing
    assert missing == ("an outcome no worse than without it",)


async def test_scores_of_judges_are_no_evidence_about_the_effect_of_a_skill(project: SkillProject) -> None:
    skill = await project.write(score=1.0)
    for _ in range(2):
        await project.withhold(skill, 1.0)
    await project.session.execute(update(tables.Task).values(score_source=ScoreSource.JUDGE))
    await project.use(skill, "ann", 0.0)
    evidence, _ = await admission.judge(project.session, skill)
    assert (evidence.offered, evidence.withheld) == (Outcomes(0, 1), Outcomes())
    compared = await compared_tasks(project.session, project.id)
    assert [(each.withheld, each.score) for each in compared] == [(False, 0.0)]
    records = await offers.of_project(project.session, project.id)
    assert records.with_it(skill.id).score.number == 1
    assert records.without_it(skill.id).score.number == 0


async def test_a_skill_of_hard_tasks_stays(project: SkillProject) -> None:
    """It succeeds seldom, but no more seldom than tasks without it."""
    skill = await project.write(score=1.0)
    for number in range(12):
        await project.task(score=float(number % 6 == 0))
        await project.use(skill, "ann", float(number % 6 == 0))
    assert skill.state in (PROBATION, ACTIVE)


@pytest.mark.parametrize(
    ("latest", "without", "harm"),
    [
        (Outcomes(0, 10), Outcomes(10, 0), True),
        (Outcomes(5, 5), Outcomes(100, 2), True),
        (Outcomes(0, 3), Outcomes(2, 1), False),
        (Outcomes(0, 10), Outcomes(0, 10), False),
        (Outcomes(0, 10), Outcomes(), False),
        (Outcomes(), Outcomes(10, 0), False),
        (Outcomes(900, 90), Outcomes(10, 0), False),
        (Outcomes(500, 490), Outcomes(10, 0), True),
    ],
)
def test_harm_is_what_chance_hardly_explains(latest: Outcomes, without: Outcomes, harm: bool) -> None:
    assert is_harmful(latest, without) is harm


async def test_a_version_for_changed_apis_replaces_the_one_for_the_former_ones(project: SkillProject) -> None:
    """Else a skill that can only fail would hide it, and what it calls instead would count as more than before."""
    first = await project.write(score=1.0)
    await moves.approve(project.session, first.id, "key me")
    task = await project.task()
    new = skills.NewSkill(
        name="greet",
        signature="greet()",
        source="two",
        apis=[],
        instruction="go",
        task_id=task.id,
        principal="bob",
    )
    second = await admit(project.session, project.id, new, Catalog({}))
    assert await project.states() == [(2, PROBATION), (1, SUPERSEDED)]
    assert second.state is PROBATION
    assert [await project.offered(who) for who in ("ann", "bob")] == [2, 2]


async def test_only_the_latest_tasks_are_evidence(project: SkillProject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "_LATEST", 3)
    skill = await project.write(score=1.0)
    for value in (0.0, 0.0, 1.0):
        await project.use(skill, "bob", value, replayed=False)
        await project.withhold(skill, value)
    await project.use(skill, "bob", 1.0, replayed=False)
    found = await evidence.of_skill(project.session, skill)
    assert found.uses == {"bob": Outcomes(2, 1)}
    assert (found.offered, found.withheld) == (Outcomes(2, 0), Outcomes(1, 0)), "three of both together"
    assert found.with_it.total + found.without_it.total == 3
    assert await evidence.latest_outcomes(project.session, skill, 10) == Outcomes(3, 1), "and its own task"
