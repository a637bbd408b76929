"""What POST /v1/tasks takes: one task, or a list of them."""

import ast
import hashlib
from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.access import Access, find_project
from app.api.validation import Scenario, Text
from app.db import models, tasks
from app.errors import InvalidError

Instruction = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=20_000,
        pattern=r"^[^\x00]*$",
        description="what to do, in plain words",
        examples=["archive every one of my mails from iris"],
    ),
]
Check = Annotated[
    str,
    msgspec.Meta(
        max_length=50_000,
        pattern=r"^[^\x00]*$",
        description="Python run after the task in a sandbox of its own. It finds the task's answer in `answer` "
        "and sets `score`, a number from 0 to 1. Of the same APIs it may call what only reads: GET, HEAD, "
        "OPTIONS, and operations whose document says `x-safe: true`, such as a log-in",
        examples=["score = float(len(apis.mail.list_mails(folder='inbox')) == 0)"],
    ),
]
Variables = Annotated[
    dict[Text, Text],
    msgspec.Meta(max_length=100, description="values for the server variables of the project's OpenAPI documents"),
]
ProjectOf = Annotated[
    str, msgspec.Meta(description="default: the key's own project, or the only one", examples=["demo"])
]


class TaskRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One task. Tasks of one `scenario` ask for the same thing with other details; a label is optional."""

    instruction: Instruction
    project: ProjectOf | None = None
    scenario: Scenario | None = None
    variables: Variables = {}
    use_skills: bool = True
    check: Check | None = None


class Submission(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Either the fields of one task, or `tasks`: up to 1,000 of them, accepted together or not at all."""

    instruction: Instruction | UnsetType = UNSET
    project: ProjectOf | None = None
    scenario: Scenario | None = None
    variables: Variables = {}
    use_skills: bool = True
    check: Check | None = None
    tasks: Annotated[list[TaskRequest], msgspec.Meta(min_length=1, max_length=1_000)] | UnsetType = UNSET

    @property
    def is_list(self) -> bool:
        return self.tasks is not UNSET

    def all(self) -> list[TaskRequest]:
        """The tasks asked for. Raises InvalidError where the request is neither one task nor a list."""
        tasks = self.tasks if self.tasks is not UNSET else [self._alone()]
        if self.tasks is not UNSET and self != Submission(tasks=self.tasks):
            raise InvalidError("send either the fields of one task or `tasks`, not both")
        for task in tasks:
            if not task.instruction.strip():
                raise InvalidError("instruction: say in words what is to be done; blanks are not enough")
            if task.check is not None:
                _refuse_unparsable(task.check)
        return tasks

    def digest(self) -> str:
        """The same for the same request: tells a repeated submission from another one under the same key."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()

    def _alone(self) -> TaskRequest:
        if self.instruction is UNSET:
            raise InvalidError("instruction: missing; say in words what is to be done")
        return TaskRequest(
            instruction=self.instruction,
            project=self.project,
            scenario=self.scenario,
            variables=self.variables,
            use_skills=self.use_skills,
            check=self.check,
        )


async def submit_all(
    session: AsyncSession, access: Access, submission: Submission, key: str | None
) -> list[models.Task]:
    """Stores every task, or raises and stores none. The caller commits.

    The first task has the caller's idempotency key, each other one the key with its place: a repeat meets all.
    """
    wanted = submission.all()
    digest = submission.digest() if key else None
    owners = {name: await find_project(session, access, name) for name in {task.project for task in wanted}}
    batch = []
    for place, task in enumerate(wanted):
        new = tasks.NewTask(
            instruction=task.instruction,
            scenario=task.scenario,
            variables=task.variables,
            use_skills=task.use_skills,
            check_code=task.check,
            idempotency_key=f"{key}#{place}" if key and place else key,
            request_digest=digest,
        )
        batch.append((owners[task.project].id, new))
    return await tasks.submit_all(session, batch)


def _refuse_unparsable(check: str) -> None:
    try:
        ast.parse(check)
    except SyntaxError as error:
        raise InvalidError(f"check: not valid Python, line {error.lineno}: {error.msg}") from error
    except (RecursionError, MemoryError) as error:
        raise InvalidError("check: too deeply nested to be parsed") from error
