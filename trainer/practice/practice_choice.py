"""The plug-in `practice`: tasks on the double of an API of the project that a run belongs to."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Annotated, TypeAlias

import msgspec

from app.errors import InvalidError
from app.records import Task
from trainer.environment import Scenario, Split, World

ApiName: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_]{0,63}(?!\n)$")]


def load_environment(*, api: ApiName) -> "PracticeChoice":
    """The plug-in: practice on the API of that name, by the document that the active release has of it."""
    return PracticeChoice(api)


class PracticeChoice(msgspec.Struct, frozen=True):
    """Which API. A run opens it; by itself it is an environment without tasks."""

    api: str

    def scenarios(self, split: Split, count: int, seed: int) -> Sequence[Scenario]:  # noqa: ARG002
        raise InvalidError("an API belongs to a project: name practice in a training run of that project")

    def open(self, scenario: Scenario, task: Task) -> AbstractAsyncContextManager[World]:
        raise AssertionError(f"{task} of {scenario} came from elsewhere")
