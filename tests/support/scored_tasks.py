"""Scored tasks made by hand: which skills each was offered, which it used, and its score."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from app.base.values import Offer, Policy, Stop, Task, Trajectory, Turn, Use
from tests.support.scripted_engine import block
from trainer.rewards import ScoredTask

_DAWN = datetime(2026, 1, 1, tzinfo=UTC)


def skill(number: int) -> UUID:
    return UUID(int=1000 + number)


def task_id(number: int) -> UUID:
    return UUID(int=number)


def scored(
    number: int,
    score: float = 1.0,
    *,
    offered: tuple[int, ...] = (),
    used: tuple[int, ...] = (),
    text: str = block("print(1)"),
    tokens: int = 1,
    stop: Stop = Stop.COMPLETED,
    **more: Any,
) -> ScoredTask:
    """Task `number` began in minute `number`. Of the offered skills, `used` are those that ran and returned.

    `more` are fields of ScoredTask: release, staleness, unusable.
    """
    uses = tuple(Use(_name(each), inherited=True, calls=1, returned=1) for each in used)
    turn = Turn(
        context_ids=(1,),
        sampled_ids=tuple(range(tokens)),
        logprobs=(-0.5,) * tokens,
        text=text,
        uses=uses,
    )
    trajectory = Trajectory(
        task=Task(task_id(number), "say hello"),
        policy=Policy(),
        profile="compact",
        turns=(turn,),
        stop=stop,
        offered=tuple(map(_offer, offered)),
    )
    return ScoredTask(
        trajectory=trajectory,
        score=score,
        began=_DAWN + timedelta(minutes=number),
        **({"release": 1, "staleness": 0} | more),
    )


def at(task: ScoredTask, minute: int) -> ScoredTask:
    """The task, begun in another minute."""
    return msgspec.structs.replace(task, began=_DAWN + timedelta(minutes=minute))


def _offer(number: int) -> Offer:
    name = _name(number)
    return Offer(
        skill_id=skill(number), name=name, version=1, signature=f"{name}()", source="", instruction="say hello"
    )


def _name(number: int) -> str:
    return f"skill_{number}"
