"""A promoted release is watched: kept, or rolled back by itself to the release before."""

from datetime import timedelta
from functools import partial

import msgspec
import pytest
from sqlalchemy import func, select, update

from app.apis import store as apis
from app.base.errors import ConflictError, EngineError
from app.base.values import Json
from app.db import tables
from app.db.database import Sessions
from app.db.tables import AuditAction, ReleaseState, SkillState
from app.releases import canary, manifest, watch
from app.releases import store as releases
from app.releases.watch import WatchAction, WatchRules
from app.skills.admission import admit
from tests.support.canary_project import Project, begin, open_project
from tests.support.ledger_project import until
from tests.support.rows import new_skill
from tests.support.watched_project import WEBHOOK, WatchedProject, change_settings, promote, scored


@pytest.fixture
async def project(committed: Sessions) -> Project:
    return await open_project(committed)


@pytest.fixture
async def watched(project: Project) -> WatchedProject:
    await scored(project, (await project.release(1)).id, 7, 3, 60)
    return await promote(project)


async def deliveries(project: Project) -> list[tables.WebhookDelivery]:
    async with project.sessions() as session:
        return list(await session.scalars(select(tables.WebhookDelivery)))


async def apply(watched: WatchedProject) -> WatchAction:
    status = await watch.apply_decision(watched.project.promoter, watched.sessions, watched.watched)
    return status.decision.action


async def test_a_release_that_the_gate_promoted_is_watched_and_one_that_a_person_activated_is_not(
    project: Project,
) -> None:
    watched = await promote(project)
    release = await watched.release()
    assert release.watched_against == watched.before
    assert (await watched.watch())["state"] == "watching"
    assert (await watched.watch())["baseline"] == {"number": 1, "model": "base"}
    await project.promoter.activate(watched.before, "key ops")
    await project.promoter.activate(watched.watched, "key ops")
    assert (await watched.release()).watched_against is None


async def test_a_drop_from_07_to_05_is_rolled_back_with_audit_and_webhook(watched: WatchedProject) -> None:
    await change_settings(watched.project, webhook=WEBHOOK)
    await watched.served(5, 5, 60)
    assert await apply(watched) is WatchAction.ROLL_BACK
    release = await watched.release()
    assert (release.state, release.watched_against) == (ReleaseState.REJECTED, None)
    assert release.evidence is not None
    assert release.evidence["verdict"] == "reject"
    assert release.evidence["reason"].startswith("rolled back: lower reward: reward -0.2 [-0.")
    assert (await watched.watch())["state"] == "rolled back"
    assert (await watched.watch())["decision"]["metrics"]["reward"]["pairs"] == 600
    assert (await watched.release(1)).state is ReleaseState.ACTIVE
    assert watched.project.servers.models == ["f00d", "base"], "the weights are verified as at any activation"
    assert (await watched.actions())[-2:] == [
        ("watch", AuditAction.ACTIVATED),
        ("watch", AuditAction.WATCH_ENDED),
    ]
    [delivery] = await deliveries(watched.project)
    assert (delivery.event, delivery.task_id, delivery.release_id) == ("release.rolled_back", None, release.id)
    told = msgspec.json.decode(delivery.body)["data"]
    assert (told["release"], told["serves"], told["release_id"]) == (2, 1, str(release.id))


async def test_weights_that_were_rolled_back_serve_again_only_if_a_person_insists(watched: WatchedProject) -> None:
    await watched.served(5, 5, 60)
    await apply(watched)
    with pytest.raises(ConflictError, match="allow_rejected=true"):
        await watched.project.promoter.activate(watched.watched, "key ops")
    again = await watched.project.propose("f00d")
    with pytest.raises(ConflictError, match=r"were rejected \(as release 2, see its evidence\)"):
        await watched.project.promoter.activate(again, "key ops")
    await watched.project.promoter.activate(watched.watched, "key ops", allow_rejected=True)
    assert (await watched.release()).state is ReleaseState.ACTIVE


async def test_the_skills_of_a_release_that_is_rolled_back_are_withdrawn_and_those_of_others_stay(
    watched: WatchedProject,
) -> None:
    theirs = await watched.learn(watched.before, "wave")
    replaced = await watched.learn(watched.before, "greet", "first")
    mine = await watched.learn(watched.watched, "greet", "second")
    assert (await watched.standing(replaced))[0] is SkillState.SUPERSEDED
    await watched.served(5, 5, 60)
    await apply(watched)
    assert await watched.standing(mine) == (SkillState.RETIRED, "its release 2 was rolled back")
    assert (await watched.standing(replaced))[0] is SkillState.ACTIVE
    assert (await watched.standing(theirs))[0] is SkillState.ACTIVE


async def test_a_skill_that_a_task_writes_after_its_release_was_rolled_back_is_retired(
    watched: WatchedProject,
) -> None:
    await watched.served(5, 5, 60)
    await apply(watched)
    async with watched.sessions.begin() as session:
        late = msgspec.structs.replace(new_skill(), release_id=watched.watched)
        skill = await admit(session, watched.project.id, late)
    assert (skill.state, skill.reason) == (SkillState.RETIRED, "its release 2 was rejected")


async def test_the_skills_of_its_time_as_a_canary_do_not_survive_a_persons_roll_back(project: Project) -> None:
    """They were offered when the release before stopped serving, so its recorded set has them."""
    began = await begin(project)
    before = (await project.release(1)).id
    watched = WatchedProject(project, before, began.id)
    replaced = await watched.learn(before, "greet", "first")
    mine = await watched.learn(began.id, "greet", "second")
    await project.promoter.activate(began.id, "canary", skills="keep", on_activated=watch.begin)
    await project.promoter.activate(before, "key ops")
    assert await watched.standing(mine) == (SkillState.SUPERSEDED, "its release 2 was rolled back")
    assert (await watched.standing(replaced))[0] is SkillState.ACTIVE
    assert (await watched.watch())["state"] == "ended"


async def test_skills_withdrawn_with_a_rejected_canary_do_not_return_with_an_older_release(
    project: Project,
) -> None:
    began, other = await begin(project), await project.propose()
    before = (await project.release(1)).id
    watched = WatchedProject(project, before, began.id)
    mine = await watched.learn(began.id)
    await project.promoter.activate(other, "key ops")  # release 1 ends with the canary's skill in its set
    await scored(project, other, 10, 0, 20)
    await scored(project, began.id, 0, 10, 20)
    await canary.apply_decision(project.promoter, project.sessions, began.id)
    assert (await watched.standing(mine))[0] is SkillState.RETIRED
    await project.promoter.activate(before, "key ops")
    assert (await watched.standing(mine))[0] is SkillState.RETIRED


async def test_a_kind_that_vanished_and_other_traffic_do_not_roll_back(watched: WatchedProject) -> None:
    await watched.served(0, 10, 30, scenario="a new kind")
    await watched.served(7, 3, 10)
    assert await apply(watched) is WatchAction.CONTINUE
    async with watched.sessions() as session:
        status = await watch.evaluate(session, await releases.get(session, watched.watched))
    assert status.decision.not_counted.other_traffic == {"a new kind": 300}
    assert status.decision.metrics["reward"].pairs == 100


async def test_tasks_without_a_scenario_are_compared_by_their_instruction(project: Project) -> None:
    before = (await project.release(1)).id
    for words, solved, failed, times in (("Read the mail", 9, 1, 9), ("Book a flight", 1, 9, 1)):
        await scored(project, before, solved, failed, times, scenario=None, instruction=words)
    watched = await promote(project)
    for words, solved, failed, times in (("read  the MAIL ", 9, 1, 1), ("Book a flight", 1, 9, 9)):
        await scored(project, watched.watched, solved, failed, times, scenario=None, instruction=words)
    await scored(project, watched.watched, 0, 5, 9, scenario=None, instruction="Sell the car")
    async with project.sessions() as session:
        found = (await watch.evaluate(session, await releases.get(session, watched.watched))).decision
    assert found.metrics["reward"].pairs == 20
    assert found.metrics["reward"].before == found.metrics["reward"].now == 0.5
    assert (found.not_counted.other_traffic, found.not_counted.unmatched) == ({"(no scenario)": 45}, 80)
    assert found.action is WatchAction.CONTINUE


async def test_tasks_of_its_time_as_a_canary_and_scores_given_later_do_not_count(project: Project) -> None:
    before = (await project.release(1)).id
    await scored(project, before, 1, 1, 5)
    [late] = await project.ended(before, None, scenario="mail")
    await scored(project, project.candidate, 1, 1, 5)
    watched = await promote(project)
    await watched.served(1, 1, 20)
    async with project.sessions.begin() as session:
        session.add(tables.Feedback(task_id=late, score=1.0))
        await session.execute(update(tables.Task).where(tables.Task.id == late).values(score=1.0))
    async with project.sessions() as session:
        found = (await watch.evaluate(session, await releases.get(session, watched.watched))).decision
    assert found.tasks == {"before": 11, "now": 40}
    assert (found.metrics["reward"].pairs, found.metrics["errors"].pairs) == (10, 11)
    assert found.not_counted.unmatched == 29


async def test_it_is_kept_after_its_last_task(watched: WatchedProject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "WatchRules", partial(WatchRules, max_tasks=20))
    await watched.served(7, 3)
    assert await apply(watched) is WatchAction.CONTINUE
    await watched.served(7, 3)
    assert await apply(watched) is WatchAction.KEEP
    release = await watched.release()
    assert (release.state, release.watched_against) == (ReleaseState.ACTIVE, None)
    assert (await watched.watch())["state"] == "kept"
    assert (await watched.actions())[-1] == ("watch", AuditAction.WATCH_ENDED)
    with pytest.raises(ConflictError, match="release 2 is active, and is not watched"):
        await apply(watched)


async def test_without_traffic_it_is_kept_after_its_days(watched: WatchedProject) -> None:
    earlier = func.clock_timestamp() - timedelta(days=14.1)
    async with watched.sessions.begin() as session:
        row = tables.Release
        await session.execute(update(row).where(row.id == watched.watched).values(watched_since=earlier))
    assert await apply(watched) is WatchAction.KEEP
    assert (await watched.watch())[
        "reason"
    ] == "no task to compare: the two share no scenario, and no instruction without one"


async def test_with_watch_days_0_nothing_is_watched(project: Project) -> None:
    await change_settings(project, watch_days=0)
    assert (await (await promote(project)).release()).watched_against is None


async def test_a_watch_goes_on_after_a_restart_and_is_ended_once_by_two_processes(watched: WatchedProject) -> None:
    await change_settings(watched.project, webhook=WEBHOOK)
    async with watched.reconciler():
        await watched.served(5, 5, 10)
    assert (await watched.release()).watched_against == watched.before
    await watched.served(5, 5, 50)
    async with watched.reconciler(), watched.reconciler():
        release = await watched.until_decided()
    assert release.state is ReleaseState.REJECTED
    assert [each for each in await watched.actions() if each[0] == "watch"] == [
        ("watch", AuditAction.ACTIVATED),
        ("watch", AuditAction.WATCH_ENDED),
    ]
    assert len(await deliveries(watched.project)) == 1


async def test_while_the_servers_cannot_load_the_weights_it_serves_on_and_is_then_rolled_back(
    watched: WatchedProject,
) -> None:
    await watched.served(5, 5, 60)
    watched.project.servers.refusal = EngineError("a replica is down")
    async with watched.reconciler():

        async def is_refused() -> bool:
            return ("watch", AuditAction.REFUSED) in await watched.actions()

        await until(is_refused)
        assert (await watched.release()).state is ReleaseState.ACTIVE
        watched.project.servers.refusal = None
        assert (await watched.until_decided()).state is ReleaseState.REJECTED


async def test_a_persons_roll_back_or_activation_ends_it(watched: WatchedProject) -> None:
    await watched.served(5, 5, 60)
    await watched.project.promoter.activate(watched.before, "key ops")
    release = await watched.release()
    assert (release.state, release.watched_against) == (ReleaseState.RETIRED, None)
    assert (await watched.watch())["state"] == "ended"
    assert (await watched.watch())["reason"] == "release 1 was activated"
    with pytest.raises(ConflictError, match="release 2 is retired, and is not watched"):
        await apply(watched)


async def change_document(watched: WatchedProject, digest: str) -> tables.Release:
    """As the server does when a document that it fetches again has changed. Returns what is active then."""
    document: dict[str, Json] = {"openapi": "3.1.0", "info": {"version": digest}, "paths": {}}
    async with watched.sessions.begin() as session:
        serving = await manifest.lock_active(session, watched.project.id)
        await apis.put(session, serving.project_id, "mail", source="upload", document=document, digest=digest)
        return await manifest.update_tools(session, serving, ["mail"], "documents")


async def test_a_changed_document_does_not_end_it(watched: WatchedProject) -> None:
    since = (await watched.release()).activated_at
    await watched.served(5, 5, 30)
    changed = await change_document(watched, "one")
    assert (await watched.release()).watched_against is None
    assert (await watched.watch())["reason"] == "release 3 was activated, and is watched instead"
    assert (changed.number, changed.watched_against, changed.watched_since) == (3, watched.before, since)
    assert changed.evidence is not None
    assert changed.evidence["watch"]["state"] == "watching"
    await scored(watched.project, changed.id, 5, 5, 30)
    async with watched.sessions() as session:
        status = await watch.evaluate(session, await releases.get(session, changed.id))
    assert (status.since, status.decision.tasks) == (since, {"before": 600, "now": 600})
    assert status.decision.action is WatchAction.ROLL_BACK


async def test_a_roll_back_after_a_changed_document_keeps_it_and_rejects_the_weights_and_their_skills(
    watched: WatchedProject,
) -> None:
    replaced = await watched.learn(watched.before, "greet", "first")
    earlier = await watched.learn(watched.watched, "greet", "second")
    await watched.served(5, 5, 30)
    changed = await change_document(watched, "one")
    later = await watched.learn(changed.id, "greet", "third")
    await scored(watched.project, changed.id, 5, 5, 30)
    async with watched.reconciler():

        async def is_rejected() -> bool:
            return (await watched.release(3)).state is ReleaseState.REJECTED

        await until(is_rejected)
    async with watched.sessions() as session:
        active = await releases.active(session, watched.project.id)
    assert (active.number, active.model, active.tools) == (4, "base", changed.tools)
    assert active.watched_against is None
    assert [(await watched.release(number)).state for number in (1, 2)] == ["retired", "rejected"]
    assert [(await watched.standing(each))[0] for each in (replaced, earlier, later)] == [
        SkillState.ACTIVE,
        SkillState.RETIRED,
        SkillState.RETIRED,
    ]


async def test_a_roll_back_keeps_documents_that_changed_before_the_first_task(watched: WatchedProject) -> None:
    await change_document(watched, "one")
    changed = await change_document(watched, "two")
    await scored(watched.project, changed.id, 5, 5, 60)
    await watch.apply_decision(watched.project.promoter, watched.sessions, changed.id)
    async with watched.sessions() as session:
        active = await releases.active(session, watched.project.id)
    assert (active.model, active.tools) == ("base", changed.tools)
    assert changed.number == 3, "the second change was in place"


async def test_the_tasks_before_are_those_of_the_weights_before_under_any_documents(project: Project) -> None:
    await scored(project, (await project.release(1)).id, 7, 3, 60)
    watched = WatchedProject(project, (await project.release(1)).id, project.candidate)
    before = (await change_document(watched, "one")).id
    await scored(project, before, 7, 3)
    await project.promoter.activate(project.candidate, "gate", skills="keep", on_activated=watch.begin)
    assert (await watched.release()).watched_against == before
    await watched.served(7, 3)
    async with watched.sessions() as session:
        found = await watch.evaluate(session, await releases.get(session, watched.watched))
    assert found.decision.tasks == {"before": 610, "now": 10}


async def test_a_person_who_activates_another_release_meanwhile_is_not_overruled(watched: WatchedProject) -> None:
    other = await watched.project.propose()
    await watched.served(5, 5, 60)
    async with watched.sessions() as session:
        status = await watch.evaluate(session, await releases.get(session, watched.watched))
    assert status.decision.action is WatchAction.ROLL_BACK
    stale = await watched.release()
    await watched.project.promoter.activate(other, "key ops")
    with pytest.raises(ConflictError, match="release 2 is not watched any more"):
        await watch._roll_back(watched.project.promoter, stale, status)  # as if it had just decided
    assert (await watched.release(3)).state is ReleaseState.ACTIVE
