"""A canary from its beginning to its end: what is pinned to it, what it is judged by, what becomes of it."""

import asyncio
from hashlib import md5

import pytest
from sqlalchemy import func, text

from app.db import adapters, audit, canaries, feedback, models, releases
from app.db.models import AuditAction, ReleaseState, TaskState
from app.db.session import Sessions
from app.errors import ConflictError, EngineError, InvalidError
from app.records import Probe, Stop
from app.release import canary
from app.release.keeper import Keeper
from app.release.verdict import Action, Rules, Verdict
from tests.canary_desk import Project, open_project
from tests.desk import until


@pytest.fixture
async def project(committed: Sessions) -> Project:
    return await open_project(committed)


async def begin(project: Project, percent: float = 10.0) -> models.Release:
    return await canary.begin(project.promoter, project.sessions, project.candidate, percent, "key ops")


async def judge(project: Project, rules: Rules | None = None) -> Verdict:
    async with project.sessions() as session:
        release = await releases.get(session, project.candidate)
        return (await canary.judge(session, release, rules or Rules())).verdict


async def settle(project: Project) -> Action:
    return (await canary.settle(project.promoter, project.sessions, project.candidate)).verdict.action


async def entries(project: Project) -> list[models.AuditEntry]:
    async with project.sessions() as session:
        return (await audit.page(session, project.id, limit=9)).items


async def test_a_canary_gets_its_share_of_new_tasks_by_the_hash_of_their_ids(project: Project) -> None:
    before = (await project.claimed(1))[0]
    began = await begin(project, 25.0)
    tasks = await project.claimed(200)
    own = [task.id for task in tasks if task.release_id == began.id]
    hashes = {task.id: int(md5(f"{task.id}{began.id}".encode()).hexdigest()[:8], 16) for task in tasks}
    assert sorted(own) == sorted(each for each, number in hashes.items() if number < 0.25 * 2**32)
    assert 25 <= len(own) <= 75
    assert before.release_id != began.id


async def test_its_tasks_keep_it_when_it_ends_and_others_get_the_active_release(project: Project) -> None:
    began = await begin(project, 100.0)
    [mine] = await project.claimed(1)
    assert mine.release_id == began.id
    async with project.sessions.begin() as session:
        await session.execute(text("UPDATE tasks SET lease_until = now()"))
    await canary.end(project.sessions, began.id, "key ops")
    [again] = (await project.claimed(1))[:1]
    assert (again.id, again.release_id, again.attempt) == (mine.id, began.id, 2)
    [other] = await project.claimed(1)
    assert other.release_id == (await project.release(1)).id


async def test_it_begins_once_the_model_servers_have_proven_its_weights(project: Project) -> None:
    probe = Probe((1, 2), ())
    async with project.sessions.begin() as session:
        await adapters.put(session, "f00d", base="seed", rank=16, probe=probe)
    began = await begin(project)
    assert project.servers.models == ["f00d"]
    assert (began.state, began.canary_percent) == (ReleaseState.CANARY, 10.0)
    [told] = await entries(project)
    assert (told.actor, told.action) == ("key ops", AuditAction.CANARY_BEGAN)
    assert (told.detail["percent"], told.detail["receipt"]["replicas"][0]["probed"]) == (10.0, True)


async def test_where_a_server_refuses_nothing_changes_but_the_log(project: Project) -> None:
    project.servers.refusal = EngineError("a replica is down")
    with pytest.raises(EngineError):
        await begin(project)
    assert (await project.release()).state is ReleaseState.CANDIDATE
    [told] = await entries(project)
    assert (told.action, told.detail["reason"]) == (AuditAction.REFUSED, "a replica is down")


async def test_a_project_has_one_canary_and_the_active_release_is_none(project: Project) -> None:
    other = await project.propose()
    with pytest.raises(InvalidError, match="more than 0 and at most 100 percent"):
        await begin(project, 0.0)
    began = await begin(project)
    with pytest.raises(ConflictError, match=f"release 2 is a canary.*DELETE /v1/releases/{began.id}/canary"):
        await canary.begin(project.promoter, project.sessions, other, 5.0, "key ops")
    await canary.end(project.sessions, began.id, "key ops")
    with pytest.raises(ConflictError, match="release 1 is active"):
        await canary.begin(project.promoter, project.sessions, (await project.release(1)).id, 5.0, "key ops")
    assert project.servers.models == ["f00d"]


async def test_each_arm_is_measured_by_the_tasks_pinned_since_both_serve(project: Project) -> None:
    active = (await project.release(1)).id
    await project.ended(active, 0.0)
    await project.ended(project.candidate, 0.0)
    await begin(project)
    await project.ended(project.candidate, 1.0)
    await project.ended(project.candidate, None, stop=Stop.TURN_LIMIT, turns=12)
    await project.ended(project.candidate, None, state=TaskState.FAILED, stop=None, turns=0, generated_tokens=0)
    await project.ended(project.candidate, None, state=TaskState.CANCELLED, stop=Stop.CANCELLED)
    await project.ended(active, 0.5, count=2)
    found = (await judge(project)).figures
    counts = {name: tuple(figure.tasks.values()) for name, figure in found.items()}
    assert counts == {"reward": (1, 2), "errors": (3, 2), "turns": (2, 2), "tokens": (2, 2)}
    means = {name: [arm and arm.mean for arm in (each.canary, each.active)] for name, each in found.items()}
    assert means["reward"] == [1.0, 0.5]
    assert means["errors"] == [pytest.approx(2 / 3), 0.0]
    assert means["turns"] == [3.0, 2.0], "twelve turns count as four, twice what tasks took before"
    assert means["tokens"] == [100.0, 100.0]


async def test_tasks_that_their_check_could_not_score_earn_nothing_and_are_errors(project: Project) -> None:
    active = (await project.release(1)).id
    began = await begin(project)
    check = {"check_code": "score = float(answer['total'] == 42)"}
    [crashed] = await project.ended(began.id, None, failure="the check failed: TypeError", **check)
    await project.ended(began.id, None, state=TaskState.FAILED, stop=None, **check)
    await project.ended(began.id, 1.0, count=2, **check)
    await project.ended(active, 1.0, count=3, **check)
    await project.ended(active, 0.0, **check)
    await project.ended(active, None, check_code="")
    async with project.sessions.begin() as session:
        await feedback.add(session, crashed, 1.0)
    found = (await judge(project)).figures
    means = {name: [arm and arm.mean for arm in (each.canary, each.active)] for name, each in found.items()}
    assert means["reward"] == [0.5, 0.75]
    assert means["errors"] == [0.5, 0.0]


async def test_a_canary_whose_wrong_answers_break_the_check_is_not_promoted_for_its_good_ones(
    project: Project,
) -> None:
    active = (await project.release(1)).id
    await begin(project)
    check = {"check_code": "score = float(answer['total'] == 42)"}
    for _ in range(10):
        await project.ended(project.candidate, 1.0, count=4, **check)
        await project.ended(project.candidate, None, count=6, **check)
        await project.ended(active, 1.0, count=5, **check)
        await project.ended(active, 0.0, count=5, **check)
    assert await settle(project) is Action.REJECT


async def test_rewards_come_in_the_order_in_which_tasks_were_scored(project: Project) -> None:
    began = await begin(project)
    [late] = await project.ended(began.id, None)
    await project.ended(began.id, 1.0)
    async with project.sessions.begin() as session:
        await feedback.add(session, late, 0.25)
        await feedback.add(session, late, 0.5)
        active = await releases.active(session, project.id)
        found, _ = await canaries.ended(session, began, active, began.created_at, 9)
    assert list(found.rewards) == [1.0, 0.5]


async def test_both_arms_end_at_the_same_moment_and_then_it_is_given_up(project: Project) -> None:
    active, rules = (await project.release(1)).id, Rules(ended=12)
    await begin(project)
    await project.ended(active, 0.5, count=8)
    await project.ended(project.candidate, 1.0, count=3)
    assert (await judge(project, rules)).action is Action.WAIT
    await project.ended(active, 0.5)
    await project.ended(project.candidate, 0.0, count=3)
    verdict = await judge(project, rules)
    assert [each.tasks for each in verdict.figures.values()] == [{"canary": 3, "active": 9}] * 4
    reward = verdict.figures["reward"].canary
    assert reward is not None
    assert reward.mean == 1.0, "what came after the others' last task does not count"
    assert verdict.action is Action.REJECT


async def test_another_active_release_begins_the_comparison_anew(project: Project) -> None:
    other = await project.propose()
    await begin(project)
    await project.ended(project.candidate, 1.0)
    await project.ended((await project.release(1)).id, 0.0)
    assert (await judge(project)).figures["reward"].tasks == {"canary": 1, "active": 1}
    await project.promoter.activate(other, "key ops")
    assert (await judge(project)).figures["reward"].tasks == {"canary": 0, "active": 0}
    await project.ended(project.candidate, 1.0)
    assert (await judge(project)).figures["reward"].tasks == {"canary": 1, "active": 0}


async def test_a_worse_canary_goes_back_by_itself_with_the_evidence(project: Project) -> None:
    async with project.sessions.begin() as session:
        await releases.note(session, project.candidate, {"verdict": "promote", "sgc": 9.0})
    await begin(project)
    await project.ended(project.candidate, 0.0, count=100)
    await project.ended((await project.release(1)).id, 1.0, count=100)
    assert await settle(project) is Action.REJECT
    release = await project.release()
    assert (release.state, release.canary_percent) == (ReleaseState.REJECTED, None)
    assert release.evidence is not None
    assert release.evidence["sgc"] == 9.0
    assert release.evidence["verdict"] == "reject"
    assert release.evidence["reason"].startswith("as a canary: it earns less: reward -1 [-1, -0.")
    assert release.evidence["canary"]["verdict"]["figures"]["reward"]["tasks"] == {"canary": 100, "active": 100}
    told = (await entries(project))[0]
    assert (told.actor, told.action) == ("canary", AuditAction.CANARY_ENDED)
    assert (told.detail["state"], told.detail["verdict"]["action"]) == ("rejected", "reject")
    with pytest.raises(ConflictError, match="release 2 is rejected, not a canary"):
        await settle(project)


async def test_a_better_canary_takes_over_and_one_not_known_yet_goes_on(project: Project) -> None:
    await begin(project)
    assert await settle(project) is Action.WAIT
    assert (await project.release()).state is ReleaseState.CANARY
    await project.ended(project.candidate, 1.0, count=100)
    await project.ended((await project.release(1)).id, 0.0, count=100)
    assert await settle(project) is Action.PROMOTE
    release = await project.release()
    assert (release.state, release.canary_percent) == (ReleaseState.ACTIVE, None)
    assert release.evidence is not None
    assert release.evidence["reason"].startswith("as a canary: it earns more")
    assert (await entries(project))[0].detail["state"] == "active"


async def test_one_that_somebody_ends_is_a_candidate_again_with_its_figures(project: Project) -> None:
    await begin(project)
    await project.ended(project.candidate, 1.0)
    ended = await canary.end(project.sessions, project.candidate, "key ops")
    assert (ended.state, ended.canary_percent) == (ReleaseState.CANDIDATE, None)
    assert ended.evidence is not None
    assert ended.evidence["canary"]["verdict"]["action"] == "wait"
    assert "reason" not in ended.evidence
    assert [each.action for each in await entries(project)] == [AuditAction.CANARY_ENDED, AuditAction.CANARY_BEGAN]


async def test_what_a_task_usually_takes_is_what_95_of_100_stayed_within(project: Project) -> None:
    active = (await project.release(1)).id
    for turns in range(1, 101):
        await project.ended(active, None, turns=turns, generated_tokens=10 * turns)
    await project.ended(active, None, state=TaskState.FAILED, turns=500)
    async with project.sessions() as session:
        now = await session.scalar(func.clock_timestamp())
        assert now is not None
        assert await canaries.usual(session, project.id, now) == canaries.Usual(95.0, 950.0)
        assert await canaries.usual(session, project.id, (await project.release(1)).created_at) is None


async def test_where_tasks_usually_ended_before_their_first_turn_a_canary_is_judged_all_the_same(
    project: Project,
) -> None:
    active = (await project.release(1)).id
    await project.ended(active, None, turns=0, generated_tokens=0)
    await begin(project)
    await project.ended(project.candidate, 1.0)
    await project.ended(active, None, turns=0, generated_tokens=0)
    found = (await judge(project)).figures
    for name in ("turns", "tokens"):
        assert [arm and arm.mean for arm in (found[name].canary, found[name].active)] == [1.0, 0.0]


async def test_what_a_person_decided_meanwhile_is_not_overruled(project: Project) -> None:
    other = await project.propose()
    await begin(project)
    await project.ended(project.candidate, 1.0, count=100)
    await project.ended((await project.release(1)).id, 0.0, count=100)
    project.servers.open.clear()
    project.servers.begun.clear()
    settling = asyncio.create_task(settle(project))
    await project.servers.begun.wait()
    await canary.end(project.sessions, project.candidate, "key ops")
    project.servers.open.set()
    with pytest.raises(ConflictError, match="release 2 is candidate, not a canary"):
        await settling
    began = await begin(project)
    async with project.sessions.begin() as session:
        standing = await canary.judge(session, began)
        await releases.activate(session, other)
        with pytest.raises(ConflictError, match="release 2 is compared with release 1 no more"):
            standing.check(began, await releases.active(session, project.id))


async def test_what_passed_the_gate_serves_a_share_first_and_then_all_by_itself(project: Project) -> None:
    async with project.sessions.begin() as session:
        await releases.approve(session, project.candidate, {"verdict": "promote"}, canary_percent=50.0)

    async def is_in(state: ReleaseState) -> bool:
        return (await project.release()).state is state

    async with Keeper(project.sessions, project.promoter, "the prompt's hash", pause=0.1):
        await until(lambda: is_in(ReleaseState.CANARY))
        await project.ended(project.candidate, 1.0, count=100)
        await project.ended((await project.release(1)).id, 0.0, count=100)
        await until(lambda: is_in(ReleaseState.ACTIVE))
    told = [(each.actor, each.action) for each in await entries(project)]
    assert (told[-1], told[-2]) == (("gate", AuditAction.CANARY_BEGAN), ("canary", AuditAction.ACTIVATED))
