"""What tasks of hosted models cost, by the prices of their entries."""

from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from app.db import models, usage
from app.records import Trajectory, hosted_id

_PRICED = 1_000_000  # tokens


async def of_trajectory(session: AsyncSession, trajectory: Trajectory) -> float | None:
    """In the unit of the prices. None where these are unknown, and of a model server's model."""
    model_id = hosted_id(trajectory.policy.model)
    entry = await session.get(models.HostedModel, model_id) if model_id else None
    if entry is None or entry.price_in is None or entry.price_out is None:
        return None
    read, generated = trajectory.prompt_tokens, trajectory.generated_tokens
    return (read * entry.price_in + generated * entry.price_out) / _PRICED


async def charge(session: AsyncSession, project_id: UUID, owner: str, trajectory: Trajectory) -> None:
    """Count for its project what a rollout cost that is no task."""
    cost = await of_trajectory(session, trajectory)
    if cost:
        await usage.add(session, project_id, usage.writer_of(owner), cost=cost)
