"""What requests say of a task: the body of POST /v1/tasks, one task or a list of them, and that of a rerun, which
says what differs. The console's forms and the tools of MCP fill the same structs.
"""

import hashlib
from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from app.base.errors import InvalidError
from app.base.fields import MOST, Scenario, Text, columns

Instruction = Annotated[
    Text,
    msgspec.Meta(
        min_length=1,
        max_length=20_000,
        description="what to do, in natural language",
        examples=["archive every one of my mails from iris"],
    ),
]
Conversation = Annotated[
    Text,
    msgspec.Meta(
        max_length=20_000,
        description="what was said before the instruction: the agent reads it, and skills are not searched by it",
    ),
]
Check = Annotated[
    Text,
    msgspec.Meta(
        max_length=50_000,
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
    Text,
    msgspec.Meta(
        max_length=200,
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
    """The fields of a task in a request. Those of a column have its name."""

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

    def digest(self) -> str:
        """Identify the request, to tell a repeated submission from a different one with the same key.

        A version that lacks a field knows the request by the same digest, unless it sets the field.
        """
        plain = msgspec.to_builtins(self, order="deterministic")
        for each in (plain, *plain.get("tasks", ())):
            if each["explore"]:
                del each["explore"]
        return hashlib.sha256(msgspec.json.encode(plain)).hexdigest()


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
        """Raises InvalidError if this is neither one task nor a list."""
        if self.tasks is not UNSET:
            if self != Submission(tasks=self.tasks):
                raise InvalidError("send either the fields of one task or `tasks`, not both")
            return self.tasks
        if self.instruction is UNSET:
            raise InvalidError("instruction: missing; describe the task in natural language")
        return [TaskRequest(**columns(self, TaskRequest))]


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
