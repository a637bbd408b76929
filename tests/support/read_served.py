"""The experience of a served project, as a training run reads it."""

from itertools import chain
from typing import Any
from uuid import UUID

from app.base.run_settings import RunSettings
from app.base.values import BASE
from app.releases import store as releases
from tests.support.served_project import ServedProject
from trainer.experience import BestExperience, LoggedExperience, read_best, read_logged
from trainer.rewards import BaseModel
from trainer.sage.advantages import ScoredRollout


async def read(shop: ServedProject, *, start: str | None = None, **settings: Any) -> LoggedExperience:
    """By a run that continues the weights `start`, those of the active release unless given."""
    model = start or (await releases.active(shop.session, shop.project.id)).model
    base = BaseModel("seed", shop.tokenizer, model)
    return await read_logged(shop.session, shop.project.id, RunSettings(**settings), base)


async def best(shop: ServedProject, **more: Any) -> BestExperience:
    base = BaseModel("seed", shop.tokenizer, BASE)
    return await read_best(shop.session, shop.project.id, RunSettings(), base, **more)


async def pair(shop: ServedProject) -> None:
    """Add two tasks of different scores."""
    for score in (1.0, 0.0):
        await shop.task(score)


async def rollouts(shop: ServedProject, **settings: Any) -> list[ScoredRollout]:
    """Those of all steps, in the order in which they were served."""
    steps = (await read(shop, **settings)).steps
    return sorted(chain.from_iterable(steps), key=lambda each: shop.tasks.index(each.trajectory.task.id))


async def staleness(shop: ServedProject, **settings: Any) -> list[int]:
    return [each.staleness for each in await rollouts(shop, max_staleness=9, **settings)]


async def rewards(shop: ServedProject, **settings: Any) -> dict[UUID, float]:
    return {each.trajectory.task.id: each.reward for each in await rollouts(shop, **settings)}
