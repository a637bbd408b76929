"""The states of skills in the database: who is offered what, what moves a skill, and what the audit log says."""

from uuid import UUID

import msgspec
import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import audit, feedback, models, offers, projects, releases, skill_evidence, skill_moves, skills, tasks
from app.db.models import ReleaseState, SkillState, TaskState
from app.errors import ConflictError
from app.gateway.skill_manifest import AllowedOperation, SkillManifest
from app.records import Json, Stop
from app.skills import lifecycle
from app.skills.admission import admit, serving
from tests.rows import offer_of, project_row

QUARANTINED, PROBATION, ACTIVE, SUPERSEDED, RETIRED, DELETED = SkillState
NARROW = SkillManifest({"mail.list": AllowedOperation("GET", True, {})})
WIDE = SkillManifest({**NARROW.operations, "supervisor.show_passwords": AllowedOperation("GET", True, {})})


class Project:
    """A project whose tasks write and use one skill."""

    def __init__(self, session: AsyncSession, project_id: UUID) -> None:
        self.session = session
        self.id = project_id

    async def policy(self, name: str) -> None:
        await projects.change_settings(self.session, self.id, {"skills": name})

    async def task(self, principal: str = "ann", score: float | None = None) -> models.Task:
        """A task that has ended."""
        new = tasks.NewTask(instruction="go", scenario="s", principal=principal)
        row = await tasks.submit(self.session, self.id, new)
        row.state, row.stop, row.score = TaskState.DONE, Stop.COMPLETED, score
        row.started_at = row.finished_at = row.created_at
        await self.session.flush()
        return row

    async def write(
        self,
        source: str = "one",
        *,
        principal: str = "ann",
        taint: str = "",
        manifest: SkillManifest = NARROW,
        score: float | None = None,
        release_id: UUID | None = None,
    ) -> models.Skill:
        task = await self.task(principal, score)
        new = skills.NewSkill(
            name="greet",
            signature="greet()",
            source=source,
            apis=list(manifest.operations),
            instruction="go",
            scenario="s",
            task_id=task.id,
            release_id=release_id,
            principal=principal,
            taint=taint,
            manifest=msgspec.to_builtins(manifest),
        )
        return await admit(self.session, self.id, new)

    async def use(self, skill: models.Skill, principal: str, score: float = 1.0, *, replayed: bool = True) -> None:
        """A task that used the skill and was scored."""
        task = await self.task(principal)
        await offers.record(self.session, task.id, [offer_of(skill)])
        [(offer, _)] = await offers.to_task(self.session, task.id)
        offer.calls = offer.returned = 1
        if replayed:
            await skill_evidence.add_replay(self.session, task.id, skill.id, True)
        await feedback.add(self.session, task.id, score)
        await lifecycle.scored(self.session, task.id, score)
        await self.session.refresh(skill)

    async def offered(self, principal: str) -> int | None:
        """The version that the principal's tasks are offered."""
        found = serving(await skill_moves.live_versions(self.session, self.id, "greet"), principal)
        return found.version if found else None

    async def states(self) -> list[tuple[int, SkillState]]:
        return [(each.version, each.state) for each in await skills.versions(self.session, self.id, "greet")]

    async def audited(self) -> list[tuple[Json, ...]]:
        """Version, former and new state, and reason of each move, oldest first."""
        entries = (await audit.page(self.session, self.id, limit=50)).items
        moves = [each for each in entries if each.action == models.AuditAction.SKILL_MOVED]
        return [tuple(each.detail[name] for name in ("version", "from", "to", "reason")) for each in moves[::-1]]


@pytest.fixture
async def project(session: AsyncSession) -> Project:
    return Project(session, (await project_row(session)).id)


async def test_a_skill_starts_on_probation_and_is_offered_to_all(project: Project) -> None:
    skill = await project.write()
    assert (skill.state, skill.reason) == (PROBATION, "it has to prove itself")
    assert [await project.offered(who) for who in ("ann", "bob", "")] == [1, 1, 1]
    assert await project.audited() == [(1, None, "probation", "it has to prove itself")]


async def test_a_skill_written_after_text_from_outside_is_offered_to_its_principal_alone(project: Project) -> None:
    skill = await project.write(taint="an answer of mail.list")
    assert skill.state is QUARANTINED
    assert skill.reason == "it was written after text from outside: an answer of mail.list"
    assert [await project.offered(who) for who in ("ann", "bob", "")] == [1, None, None]


async def test_an_open_project_offers_a_skill_to_all_at_once(project: Project) -> None:
    await project.policy("open")
    await project.write()
    skill = await project.write("two", taint="an answer of mail.list", manifest=WIDE)
    assert await project.states() == [(2, ACTIVE), (1, SUPERSEDED)]
    await lifecycle.scored(project.session, skill.task_id or UUID(int=0), 0.0)
    assert await project.states() == [(2, ACTIVE), (1, SUPERSEDED)], "nor does a bad score take it back"


async def test_in_a_reviewed_project_a_person_approves_each_move(project: Project) -> None:
    await project.policy("review")
    skill = await project.write(score=1.0)
    assert (skill.state, skill.reason) == (QUARANTINED, "it waits for a person")
    for _ in range(4):
        await project.use(skill, "ann")
    assert skill.state is QUARANTINED
    assert (await skill_moves.approve(project.session, skill.id, "key me")).state is PROBATION
    assert (await skill_moves.approve(project.session, skill.id, "key me")).state is ACTIVE
    with pytest.raises(ConflictError, match="greet version 1 is active: only a skill that is quarantined"):
        await skill_moves.approve(project.session, skill.id, "key me")
    assert (await project.audited())[1:] == [
        (1, "quarantined", "probation", "it was approved"),
        (1, "probation", "active", "it was approved"),
    ]


async def test_probation_is_left_by_uses_of_two_other_principals(project: Project) -> None:
    skill = await project.write(score=1.0)
    for who in ("ann", "bob", "bob", "bob"):
        await project.use(skill, who)
    assert skill.state is PROBATION
    await project.use(skill, "eve")
    assert skill.state is ACTIVE
    [*_, last] = (await audit.page(project.session, project.id, limit=1)).items
    assert last.detail["reason"] == "the evidence is for it"
    assert last.detail["evidence"]["uses"]["bob"] == {"successes": 3, "failures": 0}


async def test_in_a_project_of_one_principal_any_tasks_count_but_the_one_that_wrote_it(project: Project) -> None:
    skill = await project.write(principal="", score=1.0)
    await project.use(skill, "")
    await project.use(skill, "")
    assert skill.state is PROBATION
    await project.use(skill, "")
    assert skill.state is ACTIVE


async def test_quarantine_is_left_for_probation_by_tasks_of_its_own_principal(project: Project) -> None:
    skill = await project.write(taint="an answer of mail.list", score=1.0)
    for _ in range(3):
        await project.use(skill, "ann")
    assert skill.state is PROBATION
    assert await project.offered("bob") == 1


async def test_without_a_replay_no_number_of_uses_is_enough(project: Project) -> None:
    skill = await project.write(principal="", score=1.0)
    for _ in range(5):
        await project.use(skill, "", replayed=False)
    assert skill.state is PROBATION
    await project.use(skill, "")
    assert skill.state is ACTIVE


async def test_a_skill_of_an_unscored_task_waits_until_feedback_arrives(project: Project) -> None:
    skill = await project.write(principal="")
    for _ in range(3):
        await project.use(skill, "")
    assert skill.state is PROBATION
    assert skill.task_id is not None
    await feedback.add(project.session, skill.task_id, 1.0)
    await lifecycle.scored(project.session, skill.task_id, 1.0)
    await project.session.refresh(skill)
    assert skill.state is ACTIVE


async def test_a_bad_score_of_the_task_that_wrote_it_takes_an_active_skill_back(project: Project) -> None:
    skill = await project.write(principal="", score=1.0)
    for _ in range(3):
        await project.use(skill, "")
    assert skill.state is ACTIVE
    assert skill.task_id is not None
    await feedback.add(project.session, skill.task_id, 0.2)
    await lifecycle.scored(project.session, skill.task_id, 0.2)
    await project.session.refresh(skill)
    assert (skill.state, skill.reason) == (PROBATION, "the task that wrote it was scored 0.2")
    await project.use(skill, "")
    assert skill.state is PROBATION


async def test_a_skill_with_which_its_scenario_fares_worse_stays_on_probation(project: Project) -> None:
    skill = await project.write(principal="", score=1.0)
    await project.task("", 1.0)
    await project.use(skill, "", 0.0)
    for _ in range(4):
        await project.use(skill, "")
    assert skill.state is PROBATION
    _, found = await lifecycle.judge(project.session, skill)
    assert found.missing == ("an outcome no worse than without it",)
    await project.task("", 0.0)
    await project.use(skill, "")
    assert skill.state is ACTIVE


async def test_a_wider_version_is_offered_to_nobody_until_a_person_approves_it(project: Project) -> None:
    first = await project.write(score=1.0)
    second = await project.write("two", manifest=WIDE, score=1.0)
    assert (second.state, second.held) == (QUARANTINED, True)
    assert second.reason == "it may do more than the present version: it calls supervisor.show_passwords"
    assert await project.offered("ann") == 1
    _, found = await lifecycle.judge(project.session, second)
    assert found.missing == ("a person's approval",)
    await skill_moves.approve(project.session, second.id, "key me")
    assert [await project.offered(who) for who in ("ann", "bob")] == [2, 1]
    await skill_moves.approve(project.session, second.id, "key me")
    assert [await project.offered(who) for who in ("ann", "bob")] == [2, 2]
    await project.session.refresh(first)
    assert (first.state, first.reason) == (SUPERSEDED, "version 2 replaced it")


async def test_the_same_wider_source_written_again_stays_held(project: Project) -> None:
    await project.write()
    second = await project.write("two", manifest=WIDE)
    assert (await project.write("two", manifest=WIDE)).id == second.id
    assert await project.offered("ann") == 1
    third = await project.write("three", manifest=WIDE)
    assert await project.states() == [(3, QUARANTINED), (2, SUPERSEDED), (1, PROBATION)]
    assert third.held


async def test_a_version_that_is_not_wider_serves_its_principal_now_and_the_others_once_active(
    project: Project,
) -> None:
    await project.write(manifest=WIDE)
    await project.write("two", principal="bob", manifest=NARROW, score=1.0)
    assert [await project.offered(who) for who in ("bob", "ann", "eve")] == [2, 1, 1]
    [second, _] = await skills.versions(project.session, project.id, "greet")
    await skill_moves.approve(project.session, second.id, "key me")
    assert [await project.offered(who) for who in ("bob", "ann", "eve")] == [2, 2, 2]
    assert await project.states() == [(2, ACTIVE), (1, SUPERSEDED)]


async def test_a_principal_leaves_no_trail_of_versions_that_nobody_is_offered(project: Project) -> None:
    for source in ("one", "two", "three", "four"):
        await project.write(source)
    assert await project.states() == [(4, PROBATION), (3, SUPERSEDED), (2, SUPERSEDED), (1, PROBATION)]
    assert [await project.offered(who) for who in ("ann", "bob")] == [4, 1]


async def test_the_source_of_anothers_quarantined_skill_is_a_skill_of_its_own(project: Project) -> None:
    first = await project.write(taint="an answer of mail.list")
    second = await project.write(principal="bob")
    assert first.id != second.id
    assert (await project.write(principal="bob")).id == second.id


async def test_a_violation_takes_a_skill_from_everybody_until_a_person_approves_it(project: Project) -> None:
    skill = await project.write(principal="", score=1.0)
    for _ in range(3):
        await project.use(skill, "")
    assert skill.state is ACTIVE
    await skill_moves.quarantine(project.session, skill.id, "it attempted mail.purge", 2)
    assert (skill.state, skill.held, skill.violations) == (QUARANTINED, True, 2)
    assert await project.offered("") is None
    await project.use(skill, "")
    assert skill.state is QUARANTINED
    await skill_moves.approve(project.session, skill.id, "key me")
    await project.use(skill, "")
    assert (skill.state, skill.held) == (PROBATION, False), "evidence alone activates it no more"


async def test_a_retired_name_stays_retired_for_all_principals(project: Project) -> None:
    await project.write(taint="an answer of mail.list", principal="bob")
    first = await project.write()
    await skill_moves.retire(project.session, first.id, "key me")
    assert await project.states() == [(2, RETIRED), (1, RETIRED)]
    assert (await project.write("three", principal="eve")).state is RETIRED
    await skill_moves.restore(project.session, first.id, "key me")
    assert (await project.write("four", principal="eve")).state is PROBATION


async def test_the_skills_of_a_rejected_release_are_withdrawn_and_what_they_replaced_returns(
    project: Project,
) -> None:
    old = await project.write()
    await skill_moves.restore(project.session, old.id, "key me")
    canary = await releases.propose(project.session, project.id, "f00d")
    written = await project.write("two", release_id=canary.id)
    await skill_moves.approve(project.session, written.id, "key me")
    assert await project.states() == [(2, ACTIVE), (1, SUPERSEDED)]
    await skill_moves.withdraw(project.session, canary.id, project.id, "it was rejected")
    assert await project.states() == [(2, RETIRED), (1, ACTIVE)]
    canary.state = ReleaseState.REJECTED
    await project.session.flush()
    late = await project.write("three", release_id=canary.id)
    assert (late.state, late.reason) == (RETIRED, "its release 2 was rejected"), "a task that went on"
    again = await project.write("two")
    assert (again.state, again.version) == (PROBATION, 4), "another release may write it again"


async def test_restoring_a_version_by_hand_replaces_every_other_one(project: Project) -> None:
    first = await project.write()
    await project.write("two", principal="bob")
    await project.write("three", principal="eve", taint="an answer of mail.list")
    await skill_moves.restore(project.session, first.id, "key me")
    assert await project.states() == [(3, SUPERSEDED), (2, SUPERSEDED), (1, ACTIVE)]
