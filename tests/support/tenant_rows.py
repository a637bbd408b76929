"""A project with one row of everything that routes can name, each with a mark that must not leave the project."""

import datetime as dt
from typing import Any
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis import store as apis
from app.apis.credentials import store as credentials
from app.apis.credentials.credential import Credential
from app.db import results, tables
from app.db.database import Sessions
from app.db.tables import AuditAction, ExamSource, RunState, TaskState
from app.projects import keys, secrets
from app.projects import store as projects
from app.releases import hosted_models
from app.releases import store as releases
from app.releases.exams import store as exams
from app.releases.exams.store import NewExamTask
from app.skills import store as skills
from app.tasks import feedback
from tests.support.rows import new_skill, task_row, trajectory_of, turn_of

MARK = "crown-jewels"
_NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


async def fill(session: AsyncSession, name: str) -> dict[str, str]:
    """The ids and names that the paths of routes take, of a new project with this name."""
    project = await projects.create(session, name)
    serving = await releases.active(session, project.id)
    candidate = await releases.propose(session, project.id, "0" * 32)
    task = await task_row(session, project.id, f"read the {MARK}")
    task.state, task.answer, task.failure, task.finished_at = TaskState.DONE, MARK, MARK, _NOW
    await results.save(session, project.id, trajectory_of(task, turn_of(MARK)))
    await results.append(session, task.id, "observation", {"text": MARK})
    skill = await skills.add(session, project.id, new_skill(MARK.replace("-", "_"), task_id=task.id))
    kept: Any = {
        "source": MARK,
        "document": {"openapi": "3.1.0", "info": {"title": MARK, "version": "1"}, "paths": {}},
    }
    await _secure(session, await apis.put(session, project.id, "vault", digest=MARK, token=MARK, **kept))
    await secrets.put(session, project.id, "vault-key", MARK)
    key, _ = await keys.create(session, MARK, ["admin"], project.id)
    call: dict[str, Any] = {"seq": 0, "turn": 0, "api": MARK, "arguments": {MARK: MARK}, "digest": MARK}
    approval = tables.Approval(task_id=task.id, project_id=project.id, expires_at=_NOW, **call)
    delivery = tables.WebhookDelivery(task_id=task.id, event="task.ended", body=f'"{MARK}"', project_id=project.id)
    run = tables.TrainingRun(
        project_id=project.id, kind="logged", settings={}, state=RunState.FAILED, failure=MARK, step=1
    )
    entry = tables.AuditEntry(
        project_id=project.id,
        release_id=candidate.id,
        actor=MARK,
        action=AuditAction.SETTINGS_CHANGED,
        detail={MARK: MARK},
    )
    schedule = tables.Schedule(project_id=project.id, settings={}, every_hours=3.0)
    used = tables.ProjectUsage(project_id=project.id, day=_NOW.date(), writer=0, submitted=77)
    dataset = tables.Dataset(project_id=project.id, name=MARK, digest=MARK, bytes=1, conversations=1)
    replayed = {"release_id": serving.id, "task_id": task.id, "recorded": True, "failure": MARK}
    session.add_all([approval, delivery, run, entry, schedule, used, dataset, tables.Shadow(**replayed)])
    await session.flush()
    await exams.put(session, project.id, MARK, ExamSource.LOG, [NewExamTask(instruction=MARK, task_id=task.id)])
    session.add(tables.RunStep(run_id=run.id, index=1, metrics={MARK: 1}))
    await feedback.add(session, task.id, 0.5, MARK)
    rows: dict[str, Any] = {"task_id": task, "approval_id": approval, "skill_id": skill, "release_id": candidate}
    rows |= {"other": serving, "run_id": run, "delivery_id": delivery, "key_id": key, "dataset_id": dataset}
    ids = {each: str(row.id) for each, row in rows.items()}
    return ids | {
        "project": name,
        "api": "vault",
        "scheme": "vault-scheme",
        "operation": "read_vault",
        "secret": "vault-key",
        "hosted": "vault-model",
        "exam": MARK,
        "project_id": str(project.id),
    }


async def _secure(session: AsyncSession, api: tables.Api) -> None:
    value = Credential(value=MARK).to_json()
    about: dict[str, Any] = {"kind": "api_key", "value": value, "authorized": True}
    await credentials.put(session, api.id, "vault-scheme", MARK, **about)
    await hosted_models.add(session, api.project_id, "vault-model", MARK, url=MARK, model=MARK, trusted=False)


async def content(sessions: Sessions, project_id: str) -> dict[str, list[str]]:
    """Every row of a project, as text, by table."""
    found: dict[str, list[str]] = {}
    async with sessions() as session:
        for table in tables.Base.metadata.sorted_tables:
            column = "id" if table.name == "projects" else "project_id"
            if column in table.c:
                query = text(f"SELECT t::text FROM {table.name} t WHERE {column} = :it ORDER BY 1")
                found[table.name] = list(await session.scalars(query, {"it": UUID(project_id)}))
        for name, owner in (("task_events", "task"), ("feedback", "task"), ("run_steps", "run")):
            owners = "training_runs" if owner == "run" else "tasks"
            query = text(
                f"SELECT t::text FROM {name} t JOIN {owners} o ON t.{owner}_id = o.id "
                "WHERE o.project_id = :it ORDER BY 1"
            )
            found[name] = list(await session.scalars(query, {"it": UUID(project_id)}))
    return found
