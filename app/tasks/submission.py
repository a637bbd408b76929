"""Submits the tasks of a request, or a task again: finds their projects, and refuses what cannot be executed."""

import asyncio
import hashlib
from collections.abc import Iterable
from typing import Any
from uuid import UUID

import msgspec
from msgspec import UNSET
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import ConflictError, InvalidError
from app.base.fields import columns
from app.base.untrusted import syntax_tree
from app.db import tables
from app.db.tables import Exploration, ReleaseState
from app.projects.authorization import find_project
from app.projects.settings import Limits
from app.releases import store as releases
from app.tasks import store as tasks
from app.tasks.requests import Rerun, Submission, TaskRequest
from app.web.access import Access

MAY_SERVE = (ReleaseState.ACTIVE, ReleaseState.CANARY, ReleaseState.RETIRED)
"""The states of releases that a task may be pinned to."""


async def submit_request(
    session: AsyncSession, access: Access, request: TaskRequest | Submission, key: str | None, limits: Limits
) -> list[tables.Task]:
    """Store every task, or raise and store none. The caller commits. `limits` are the server's.

    The first task gets the idempotency key itself, each other one the key with its index, so that a repeated
    submission finds them all.
    """
    requests = request.requests() if isinstance(request, Submission) else [request]
    for task in requests:
        _refuse_blank(task.instruction)
    await refuse_unparsable(task.check_code for task in requests if task.check_code is not None)
    digest = request.digest() if key else None
    projects = {name: await find_project(session, access, name) for name in {task.project for task in requests}}
    batch = []
    for index, task in enumerate(requests):
        new = tasks.NewTask(
            **msgspec.structs.asdict(task),
            key_id=access.key_id,
            idempotency_key=f"{key}#{index}" if key and index else key,
            request_digest=digest,
        )
        batch.append((projects[task.project].id, new))
    return await tasks.submit_all(session, batch, limits)


async def repeat(
    session: AsyncSession, access: Access, task_id: UUID, changes: Rerun, key: str | None, limits: Limits
) -> tables.Task:
    """Submit the task again; the caller commits. Raises InvalidError, ConflictError, NotFoundError for an unknown
    task or release.
    """
    if changes.instruction is not UNSET:
        _refuse_blank(changes.instruction)
    if isinstance(changes.check_code, str):
        await refuse_unparsable([changes.check_code])
    task = await tasks.get(session, task_id, access.project_id)
    release_id = await _servable(session, task, changes.release) if isinstance(changes.release, int) else None
    changed = {name: value for name, value in columns(changes, Rerun, "release").items() if value is not UNSET}
    new = tasks.NewTask(
        **(submitted(task) | changed),
        explore=task.exploration is not Exploration.NO,
        key_id=access.key_id,
        rerun_of=task.id,
        repairs=task.repairs,
        reads_only=task.reads_only,
        skill_run=task.skill_run,
        release_id=release_id,
        pinned=(
            release_id is not None or task.skill_run is not None or task.repairs is not None or task.reads_only
        ),
        idempotency_key=key,
        request_digest=digest_about(task.id, changes) if key else None,
    )
    return await tasks.submit(session, task.project_id, new, limits)


def submitted(task: tables.Task) -> dict[str, Any]:
    """What its submitter said of a task, as fields of a request."""
    return columns(task, TaskRequest, "project", "explore")


async def refuse_unparsable(checks: Iterable[str]) -> None:
    """Raises InvalidError. Call it before the first query: those of the largest body take minutes, beside other
    requests.
    """
    for check in dict.fromkeys(checks):
        await asyncio.to_thread(_parse, check)


def digest_about(row_id: UUID, request: msgspec.Struct) -> str:
    """Identify a request about a task or skill, to tell a repeated one from another with the same key."""
    return hashlib.sha256(msgspec.json.encode([row_id, request], order="deterministic")).hexdigest()


def _refuse_blank(instruction: str) -> None:
    if not instruction.strip():
        raise InvalidError("instruction: must not be blank")


def _parse(check: str) -> None:
    try:
        syntax_tree(check)
    except SyntaxError as error:
        raise InvalidError(f"check: not valid Python, line {error.lineno}: {error.msg}") from error
    except ValueError as error:  # of NUL, or half a surrogate pair
        raise InvalidError(f"check: not valid Python: {error}") from error
    except (RecursionError, MemoryError) as error:
        raise InvalidError("check: too deeply nested to parse") from error


async def _servable(session: AsyncSession, task: tables.Task, number: int) -> UUID:
    release = await releases.numbered(session, task.project_id, number)
    if release.state not in MAY_SERVE:
        raise ConflictError(
            f"release {number} is {release.state.value} and has not served: activate it, or let it do the task "
            "without effects (POST /v1/tasks/{task_id}/replay)"
        )
    return release.id
