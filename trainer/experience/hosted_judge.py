"""A hosted model of a project as the judge of its tasks, by the name of its entry: its URL, key and prices."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

import msgspec

from app.db import hosted_models
from app.db.database import Sessions
from app.engine.hosted.chat_model import ChatModel
from app.errors import InvalidError
from app.judge import NamedJudge
from app.records import Trajectory
from app.release.hosted_models import HostedModels, charged
from app.settings import Settings
from trainer.experience.openai_judge import GroupSize, MaxTokens, OpenAiJudge, Seconds

_PLUGIN = "hosted"


class HostedJudge(msgspec.Struct, frozen=True, kw_only=True):
    """Each project has its own, if it has a model of this name. It is known before any database is open."""

    model: str
    group_size: int
    max_tokens: int
    timeout: float

    async def of_project(self, sessions: Sessions, project_id: UUID, deployment: Settings) -> NamedJudge:
        """What it costs counts for the project. Its name differs where the URL or the model of the entry does.

        Raises NotFoundError if the project has no model of the name.
        """
        async with sessions() as session:
            entry = await hosted_models.get(session, project_id, self.model)
        rules = msgspec.structs.replace(HostedModels.of(deployment), seconds=self.timeout)

        @asynccontextmanager
        async def open_model() -> AsyncIterator[ChatModel]:
            opened = rules.open(sessions, entry.id, patience=0)
            async with charged(opened, sessions, project_id, str(project_id), entry.id) as model:
                yield model

        judge = OpenAiJudge(open_model, self.group_size, self.max_tokens)
        return NamedJudge(_PLUGIN, f"{deployment.judge}\n{entry.url}\n{entry.model}", group=judge)

    async def score_group(self, rubric: str, group: Sequence[Trajectory]) -> list[float | None]:  # noqa: ARG002
        """That of a project does."""
        raise InvalidError(f"the judge {self.model} is a hosted model, which belongs to a project")


def load_judge(
    *, model: str, group_size: GroupSize = 8, max_tokens: MaxTokens = 2_000, timeout: Seconds = 60.0
) -> HostedJudge:
    """The plug-in `hosted`: `model` is the name of a hosted model in the projects that are judged."""
    return HostedJudge(model=model, group_size=group_size, max_tokens=max_tokens, timeout=timeout)
