"""The states of skills that their evidence gives them: where one starts, and what moves it."""

from uuid import UUID

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import ConflictError
from app.db.tables import SkillState
from app.projects import audit
from app.skills import admission, moves
from app.tasks import feedback
from tests.support.rows import project_row
from tests.support.skill_project import WIDE, SkillProject

QUARANTINED, PROBATION, ACTIVE, SUPERSEDED, RETIRED, DELETED = SkillState


@pytest.fixture
async def project(session: AsyncSession) -> SkillProject:
    return SkillProject(session, (await project_row(session)).id)


async def test_a_skill_starts_on_probation_and_is_offered_to_all(project: SkillProject) -> None:
    skill = await project.write()
    assert (skill.state, skill.reason) == (PROBATION, "it has to prove itself")
    assert [await project.offered(who) for who in ("ann", "bob", "")] == [1, 1, 1]
    assert await project.audited() == [(1, None, "probation", "it has to prove itself")]


async def test_a_skill_written_after_text_from_outside_is_offered_to_its_principal_alone(
    project: SkillProject,
) -> None:
    skill = await project.write(taint="an answer of mail.list")
    assert skill.state is QUARANTINED
    assert skill.reason == "it was written after text from outside: an answer of mail.list"
    assert [await project.offered(who) for who in ("ann", "bob", "")] == [1, None, None]


async def test_an_open_project_offers_a_skill_to_all_at_once(project: SkillProject) -> None:
    await project.policy("open")
    await project.write()
    skill = await project.write("two", taint="an answer of mail.list", manifest=WIDE)
    assert await project.states() == [(2, ACTIVE), (1, SUPERSEDED)]
    await admission.scored(project.session, skill.task_id or UUID(int=0), 0.0)
    assert await project.states() == [(2, ACTIVE), (1, SUPERSEDED)], "nor does a bad score take it back"


async def test_in_a_reviewed_project_a_person_approves_each_move(project: SkillProject) -> None:
    await project.policy("review")
    skill = await project.write(score=1.0)
    assert (skill.state, skill.reason) == (QUARANTINED, "it waits for a person")
    for _ in range(4):
        await project.use(skill, "ann")
    assert skill.state is QUARANTINED
    assert (await moves.approve(project.session, skill.id, "key me")).state is PROBATION
    assert (await moves.approve(project.session, skill.id, "key me")).state is ACTIVE
    with pytest.raises(ConflictError, match="greet version 1 is active: only a skill that is quarantined"):
        await moves.approve(project.session, skill.id, "key me")
    assert (await project.audited())[1:] == [
        (1, "quarantined", "probation", "it was approved"),
        (1, "probation", "active", "it was approved"),
    ]


async def test_probation_is_left_by_uses_of_two_other_principals(project: SkillProject) -> None:
    skill = await project.write(score=1.0)
    for who in ("ann", "bob", "bob", "bob"):
        await project.use(skill, who)
    assert skill.state is PROBATION
    await project.use(skill, "eve")
    assert skill.state is ACTIVE
    [*_, last] = (await audit.page(project.session, project.id, limit=1)).items
    assert last.detail["reason"] == "the evidence is for it"
    assert last.detail["evidence"]["uses"]["bob"] == {"successes": 3, "failures": 0}


async def test_in_a_project_of_one_principal_any_tasks_count_but_the_one_that_wrote_it(
    project: SkillProject,
) -> None:
    skill = await project.write(principal="", score=1.0)
    await project.use(skill, "")
    await project.use(skill, "")
    assert skill.state is PROBATION
    await project.use(skill, "")
    assert skill.state is ACTIVE


async def test_quarantine_is_left_for_probation_by_tasks_of_its_own_principal(project: SkillProject) -> None:
    skill = await project.write(taint="an answer of mail.list", score=1.0)
    for _ in range(3):
        await project.use(skill, "ann")
    assert skill.state is PROBATION
    assert await project.offered("bob") == 1


async def test_without_a_replay_no_number_of_uses_is_enough(project: SkillProject) -> None:
    skill = await project.write(principal="", score=1.0)
    for _ in range(5):
        await project.use(skill, "", replayed=False)
    assert skill.state is PROBATION
    await project.use(skill, "")
    assert skill.state is ACTIVE


async def test_a_skill_of_an_unscored_task_waits_until_feedback_arrives(project: SkillProject) -> None:
    skill = await project.write(principal="")
    for _ in range(3):
        await project.use(skill, "")
    assert skill.state is PROBATION
    assert skill.task_id is not None
    await feedback.add(project.session, skill.task_id, 1.0)
    await admission.scored(project.session, skill.task_id, 1.0)
    await project.session.refresh(skill)
    assert skill.state is ACTIVE


async def test_a_bad_score_of_the_task_that_wrote_it_takes_an_active_skill_back(project: SkillProject) -> None:
    skill = await project.write(principal="", score=1.0)
    for _ in range(3):
        await project.use(skill, "")
    assert skill.state is ACTIVE
    assert skill.task_id is not None
    await feedback.add(project.session, skill.task_id, 0.2)
    await admission.scored(project.session, skill.task_id, 0.2)
    await project.session.refresh(skill)
    assert (skill.state, skill.reason) == (PROBATION, "the task that wrote it was scored 0.2")
    await project.use(skill, "")
    assert skill.state is PROBATION


async def test_a_skill_with_which_its_scenario_fares_worse_stays_on_probation(project: SkillProject) -> None:
    skill = await project.write(principal="", score=1.0)
    await project.task("", 1.0)
    await project.use(skill, "", 0.0)
    for _ in range(4):
        await project.use(skill, "")
    assert skill.state is PROBATION
    _, found = await admission.judge(project.session, skill)
    assert found.missing == ("an outcome no worse than without it",)
    await project.task("", 0.0)
    await project.use(skill, "")
    assert skill.state is ACTIVE


OWN, OTHER = UUID(int=1), UUID(int=2)  # keys


async def test_a_key_proves_its_own_skill_neither_by_its_scores_nor_by_principals_that_it_invents(
    project: SkillProject,
) -> None:
    project.key = OWN
    skill = await project.write()
    assert skill.task_id is not None
    await feedback.add(project.session, skill.task_id, 1.0, scored_by=OWN)
    for who in ("bob", "eve", "joe", "sue"):
        await project.use(skill, who, scored_by=OWN)
    assert skill.state is PROBATION
    evidence, found = await admission.judge(project.session, skill)
    assert (evidence.maker_score, {who: each.total for who, each in evidence.uses.items()}) == (
        None,
        dict.fromkeys(("bob", "eve", "joe", "sue"), 0),
    )
    assert "a score of the task that wrote it, by others than its key" in found.missing
    await project.use(skill, "bob", 0.0, scored_by=OWN)
    assert (await admission.judge(project.session, skill))[0].uses["bob"].failures == 1, "a bad one counts"


async def test_its_scores_do_not_replace_those_of_checks(project: SkillProject) -> None:
    project.key = OWN
    skill = await project.write(score=1.0)
    await project.use(skill, "bob", check=0.0, scored_by=OWN)
    await project.use(skill, "eve", check=1.0, scored_by=OWN)
    uses = (await admission.judge(project.session, skill))[0].uses
    assert {who: (each.successes, each.failures) for who, each in uses.items()} == {"bob": (0, 1), "eve": (1, 0)}


async def test_with_a_single_key_checks_and_the_person_at_the_console_suffice(project: SkillProject) -> None:
    project.key = OWN
    skill = await project.write(principal="", score=1.0)
    await project.use(skill, "", check=1.0, scored_by=OWN)
    await project.use(skill, "")
    assert skill.state is PROBATION
    await project.use(skill, "")
    assert skill.state is ACTIVE


async def test_with_several_keys_the_principals_of_its_own_count_as_one(project: SkillProject) -> None:
    project.key = OWN
    skill = await project.write(score=1.0)
    project.key = OTHER
    await project.use(skill, "bob")
    project.key = OWN
    for who in ("eve", "joe", "sue"):
        await project.use(skill, who)
    evidence, found = await admission.judge(project.session, skill)
    assert {who: each.successes for who, each in evidence.uses.items()} == {"ann": 3, "bob": 1}
    assert found.missing == ("1 more principals that used it successfully", "2 more successful uses")
    project.key = OTHER
    await project.use(skill, "kim", scored_by=OWN)
    assert skill.state is PROBATION
    for _ in range(2):
        await project.use(skill, "kim", scored_by=OTHER)
    assert skill.state is ACTIVE


async def test_keys_that_name_no_principals_are_one_user(project: SkillProject) -> None:
    project.key = OWN
    skill = await project.write(principal="", score=1.0)
    for key in (OTHER, OWN, OWN):
        project.key = key
        await project.use(skill, "")
    assert skill.state is ACTIVE
