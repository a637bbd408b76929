"""What a task is submitted with: the request body of POST /v1/tasks, one task or a list of them, and that of a
rerun, which says what differs from the task that is run again.
"""

import asyncio
import hashlib
from collections.abc import Iterable
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import ConflictError, InvalidError
from app.base.fields import MOST, Scenario, Text, columns
from app.base.untrusted import syntax_tree
from app.db import tables
from app.db.tables import Exploration, ReleaseState
from app.projects.authorization import find_project
from app.projects.settings import Limits
from app.releases import store as releases
from app.tasks import store as tasks
from app.web.access import Access

MAY_SERVE = (ReleaseState.ACTIVE, ReleaseState.CANARY, ReleaseState.RETIRED)
"""The states of releases that a task may be pinned to."""

Instruction = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=20_000,
        pattern=r"^[^\x00]*$",
        description="what to do, in natural language",
        examples=["archive every one of my mails from iris"],
    ),
]
Conversation = Annotated[
    str,
    msgspec.Meta(
        max_length=20_000,
        pattern=r"^[^\x00]*$",
        description="what was said before the instruction: the agent reads it, and skills are not searched by it",
    ),
]
Check = Annotated[
    str,
    msgspec.Meta(
        max_length=50_000,
        pattern=r"^[^\x00]*$",
        description="Python that runs after the task in a sandbox of its own. It finds the task's answer in "
        "`answer` and sets `score`, a number from 0 to 1. It may make read-only calls to the same APIs: GET, "
        "HEAD, OPTIONS, and operations marked `x-safe: true` in the document, such as a log-in",
        examples=["score = float(len(apis.mail.list_mails(folder='inbox')) == 0)"],
    ),
]
Variables = Annotated[
    dict[Text, Text],
    msgspec.Meta(max_length=100, description="values for the server variables of the project's OpenAPI documents"),
]
Principal = Annotated[
    str,
    msgspec.Meta(
        max_length=200,
        pattern=r"^[^\x00]*$",
        description="the user on whose behalf the task is carried out; default: the project itself",
        examples=["iris@example.org"],
    ),
]
Priority = Annotated[
    int,
    msgspec.Meta(ge=-100, le=100, description="waiting tasks of the project with a higher one start first"),
]
Explore = Annotated[
    bool,
    msgspec.Meta(
        description="false: never sampled at temperature 1 for learning (the project's `explore_percent`)"
    ),
]
TaskProject = Annotated[
    str, msgspec.Meta(description="default: the key's own project, or the only one", examples=["demo"])
]
ReleaseNumber = Annotated[
    int,
    msgspec.Meta(ge=1, le=MOST, description="number of the release that serves it; default: as for any task"),
]


class TaskFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of a task in a request."""

    instruction: Instruction | UnsetType = UNSET
    project: TaskProject | None = None
    conversation: Conversation = ""
    scenario: Scenario | None = None
    principal: Principal = ""
    priority: Priority = 0
    variables: Variables = {}
    use_skills: bool = True
    explore: Explore = True
    check_code: Check | None = msgspec.field(name="check", default=None)


class TaskRequest(TaskFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One task. Tasks with the same `scenario`, an optional label, differ only in details."""

    instruction: Instruction


class Submission(TaskFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Either the fields of one task, or `tasks`: up to 1,000, accepted together or not at all."""

    tasks: Annotated[list[TaskRequest], msgspec.Meta(min_length=1, max_length=1_000)] | UnsetType = UNSET

    @property
    def is_list(self) -> bool:
        return self.tasks is not UNSET

    def requests(self) -> list[TaskRequest]:
        """Raises InvalidError if this is neither one task nor a list, or if an instruction is blank."""
        tasks = self.tasks if self.tasks is not UNSET else [self._single()]
        if self.tasks is not UNSET and self != Submission(tasks=self.tasks):
            raise InvalidError("send either the fields of one task or `tasks`, not both")
        for task in tasks:
            _refuse_blank(task.instruction)
        return tasks

    def digest(self) -> str:
        """Identify the request, to tell a repeated submission from a different one with the same key.

        A version that lacks a field knows the request by the same digest, unless it sets the field.
        """
        plain = msgspec.to_builtins(self, order="deterministic")
        for each in (plain, *plain.get("tasks", ())):
            if each["explore"]:
                del each["explore"]
        return hashlib.sha256(msgspec.json.encode(plain)).hexdigest()

    def _single(self) -> TaskRequest:
        if self.instruction is UNSET:
            raise InvalidError("instruction: missing; describe the task in natural language")
        return TaskRequest(**columns(self, TaskRequest))


class Rerun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields that are left out are those of the task; null removes scenario, check and release."""

    instruction: Instruction | UnsetType = UNSET
    conversation: Conversation | UnsetType = UNSET
    scenario: Scenario | UnsetType | None = UNSET
    principal: Principal | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    variables: Variables | UnsetType = UNSET
    use_skills: bool | UnsetType = UNSET
    check_code: Check | UnsetType | None = msgspec.field(name="check", default=UNSET)
    release: ReleaseNumber | UnsetType | None = UNSET


async def submit_request(
    session: AsyncSession, access: Access, submission: Submission, key: str | None, limits: Limits
) -> list[tables.Task]:
    """Store every task, or raise and store none. The caller commits. `limits` are the server's.

    The first task gets the idempotency key itself, each other one the key with its index, so that a repeated
    submission finds them all.
    """
    requests = submission.requests()
    await refuse_unparsable(task.check_code for task in requests if task.check_code is not None)
    digest = submission.digest() if key else None
    projects = {name: await find_project(session, access, name) for name in {task.project for task in requests}}
    batch = []
    for index, task in enumerate(requests):
        new = tasks.NewTask(
            **submitted(task),
            key_id=access.key_id,
            exploration=None if task.explore else Exploration.NO,
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
        key_id=access.key_id,
        exploration=Exploration.NO if task.exploration is Exploration.NO else None,
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


def submitted(task: TaskRequest | tables.Task) -> dict[str, Any]:
    """What its submitter says of a task, as fields of a `store.NewTask`."""
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
