"""Projects and what belongs to them: keys, APIs, releases, feedback."""

import hashlib
from uuid import uuid4

import pytest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis import store as apis
from app.base.errors import ConflictError, InvalidError, NotFoundError
from app.base.values import Stop
from app.db import results, tables
from app.db.database import Sessions
from app.db.tables import ReleaseState, TaskState
from app.projects import keys
from app.projects import store as projects
from app.releases import store as releases
from app.skills import store as skills
from app.tasks import feedback, queue
from app.tasks.queue import TaskOutcome
from tests.support.rows import (
    claimed_task,
    new_skill,
    offer_of,
    project_row,
    record_offers,
    task_row,
    trajectory_of,
)


async def test_a_new_project_has_one_active_release_of_the_base_model(session: AsyncSession) -> None:
    project = await projects.create(session, "demo")
    release = await releases.active(session, project.id)
    assert (release.number, release.model, release.state) == (1, "base", ReleaseState.ACTIVE)
    assert [each.id for each in await releases.of_project(session, project.id)] == [release.id]
    assert (await releases.get(session, release.id)).id == release.id


async def test_a_taken_name_is_a_conflict_and_leaves_the_transaction_usable(session: AsyncSession) -> None:
    first = await projects.create(session, "demo")
    with pytest.raises(ConflictError, match="'demo' exists already"):
        await projects.create(session, "demo")
    assert (await projects.by_name(session, "demo")).id == first.id


async def test_projects_are_found_by_name_and_by_id(session: AsyncSession) -> None:
    beta, alpha = await projects.create(session, "beta"), await projects.create(session, "alpha")
    assert (await projects.by_id(session, beta.id)).name == "beta"
    assert [each.id for each in await projects.list_all(session)] == [alpha.id, beta.id]
    with pytest.raises(NotFoundError, match="'gamma'"):
        await projects.by_name(session, "gamma")
    with pytest.raises(NotFoundError):
        await projects.by_id(session, uuid4())


async def test_deleting_a_project_deletes_everything_in_it(committed: Sessions) -> None:
    async with committed.begin() as session:
        task = await claimed_task(session)
        skill = await skills.add(session, task.project_id, new_skill(task_id=task.id))
        skill.release_id = task.release_id
        await record_offers(session, task.id, [offer_of(skill)])
        await results.append(session, task.id, "turn", {})
        await results.save(session, task.project_id, trajectory_of(task))
        await keys.create(session, "k", ["tasks"], task.project_id)
    async with committed.begin() as session:
        await projects.delete(session, task.project_id)
        for table in tables.Base.metadata.sorted_tables:
            if table.name == "audit_entries":  # they outlive their projects
                continue
            assert await session.scalar(select(func.count()).select_from(table)) == 0, table.name
        with pytest.raises(NotFoundError):
            await projects.delete(session, task.project_id)
        assert not await queue.finish(session, task.id, "me", TaskOutcome(state=TaskState.DONE))


async def test_only_the_hash_of_a_key_is_stored(session: AsyncSession) -> None:
    key, secret = await keys.create(session, "laptop", ["tasks", "skills", "tasks"])
    assert secret.startswith("sage_")
    assert len(secret) > 40
    assert key.hash == hashlib.sha256(secret.encode()).hexdigest()
    assert (key.hint, key.scopes) == (secret[:9], ["skills", "tasks"])


async def test_a_key_is_found_by_its_secret_until_it_is_revoked(session: AsyncSession) -> None:
    key, secret = await keys.create(session, "laptop", ["admin"])
    found, _ = await keys.by_secret(session, secret) or (None, None)
    assert found is not None
    assert found.id == key.id
    assert await keys.by_secret(session, secret + "x") is None
    assert await keys.by_secret(session, "half \ud800") is None
    first = (await keys.revoke(session, key.id)).revoked_at
    assert await keys.by_secret(session, secret) is None
    assert (await keys.revoke(session, key.id)).revoked_at == first
    with pytest.raises(NotFoundError):
        await keys.revoke(session, uuid4())


@pytest.mark.parametrize("scopes", [[], ["tasks", "root"]])
async def test_a_key_without_a_known_scope_is_refused(session: AsyncSession, scopes: list[str]) -> None:
    with pytest.raises(InvalidError, match="scopes are any of tasks, skills, approvals, admin"):
        await keys.create(session, "laptop", scopes)


async def test_a_project_lists_only_its_own_keys(session: AsyncSession) -> None:
    project = await project_row(session)
    everywhere, _ = await keys.create(session, "everywhere", ["admin"])
    own, _ = await keys.create(session, "own", ["tasks"], project.id)
    assert [each.id for each in await keys.listing(session)] == [everywhere.id, own.id]
    assert [each.id for each in await keys.listing(session, project.id)] == [own.id]


async def test_a_replaced_api_keeps_its_secret_unless_it_is_removed(
    session: AsyncSession,
) -> None:
    project, other = await project_row(session), await project_row(session)
    first = await apis.put(session, project.id, "mail", source="upload", document={"a": 1}, digest="1", token="s")
    second = await apis.put(session, project.id, "mail", source="http://x", document={"b": 2}, digest="2")
    assert second.id == first.id
    found = await apis.get(session, project.id, "mail")
    assert (found.source, found.document, found.digest, apis.token_of(session, found)) == (
        "http://x",
        {"b": 2},
        "2",
        "s",
    )
    third = await apis.put(session, project.id, "mail", source="upload", document={"b": 2}, digest="2", token=None)
    assert apis.token_of(session, third) is None
    with pytest.raises(NotFoundError, match="'mail'"):
        await apis.get(session, other.id, "mail")


async def test_apis_are_listed_by_name_and_can_be_deleted(session: AsyncSession) -> None:
    project = await project_row(session)
    for name in ("notes", "mail"):
        await apis.put(session, project.id, name, source="upload", document={}, digest="d")
    assert [each.name for each in await apis.of_project(session, project.id)] == ["mail", "notes"]
    await apis.delete(session, project.id, "mail")
    with pytest.raises(NotFoundError):
        await apis.delete(session, project.id, "mail")
    assert [each.name for each in await apis.of_project(session, project.id)] == ["notes"]


async def test_the_latest_feedback_is_the_score(session: AsyncSession) -> None:
    task = await claimed_task(session)
    await queue.finish(session, task.id, "me", TaskOutcome(state=TaskState.DONE, stop=Stop.COMPLETED))
    await feedback.add(session, task.id, 1.0, "fine")
    await feedback.add(session, task.id, 0.25)
    await session.refresh(task)
    assert task.score == 0.25
    assert [(each.score, each.comment) for each in await feedback.of_task(session, task.id)] == [
        (1.0, "fine"),
        (0.25, None),
    ]


async def test_feedback_replaces_the_score_of_a_check_which_is_kept(session: AsyncSession) -> None:
    task = await claimed_task(session)
    await queue.finish(session, task.id, "me", TaskOutcome(state=TaskState.DONE, score=0.5))
    await session.refresh(task)
    for score in (1.0, 0.25):
        await feedback.add(session, task.id, score, author="key ann")
        await session.refresh(task)
        assert (task.score, task.overruled_score, task.checked) == (score, 0.5, True)
    assert {each.author for each in await feedback.of_task(session, task.id)} == {"key ann"}


async def test_feedback_without_a_check_overrules_nothing(session: AsyncSession) -> None:
    task = await claimed_task(session)
    await queue.finish(session, task.id, "me", TaskOutcome(state=TaskState.DONE))
    await session.refresh(task)
    await feedback.add(session, task.id, 1.0)
    await session.refresh(task)
    assert (task.score, task.overruled_score) == (1.0, None)


async def test_feedback_needs_a_task_that_has_ended_and_a_score_in_range(session: AsyncSession) -> None:
    waiting = await task_row(session, (await project_row(session)).id)
    with pytest.raises(ConflictError, match="wait for its end"):
        await feedback.add(session, waiting.id, 1.0)
    with pytest.raises(NotFoundError):
        await feedback.add(session, uuid4(), 1.0)
    for score in (-0.1, 1.1, float("nan")):
        with pytest.raises(InvalidError, match="between 0 and 1"):
            await feedback.add(session, waiting.id, score)
