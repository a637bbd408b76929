"""What tasks of hosted models cost, by the prices of their entries."""

from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from app.db import tables, usage
from app.records import Trajectory, hosted_id

_PRICED = 1_000_000  # tokens


async def of_trajectory(session: AsyncSession, trajectory: Trajectory) -> float | None:
    """In the unit of the prices. None where these are unknown, and of a model server's model."""
    model_id = hosted_id(trajectory.policy.model)
    used = trajectory.prompt_tokens, trajectory.generated_tokens
    return await _of_tokens(session, model_id, *used) if model_id else None


async def charge(
    session: AsyncSession,
    project_id: UUID,
    owner: str,
    model_id: UUID,
    read: int,
    generated: int,
    *,
    of_task: bool = False,
) -> None:
    """Count for its project what a hosted model cost, and no end of a task counts. Tokens only count `of_task`;
    what was not for one is told apart.
    """
    cost = await _of_tokens(session, model_id, read, generated) or 0
    more = {"prompt_tokens": read, "generated_tokens": generated} if of_task else {"other_cost": cost}
    if cost or any(more.values()):
        await usage.add(session, project_id, usage.writer_of(owner), cost=cost, **more)


async def _of_tokens(session: AsyncSession, model_id: UUID, read: int, generated: int) -> float | None:
    entry = await session.get(tables.HostedModel, model_id)
    if entry is None or entry.price_in is None or entry.price_out is None:
        return None
    return (read * entry.price_in + generated * entry.price_out) / _PRICED
