"""Trajectories of random tokens, as an engine might have reported them, alone and with an advantage."""

from collections.abc import Sequence
from random import Random
from uuid import UUID, uuid4

from app.base.values import Offer, Policy, Stop, Task, Trajectory, Turn, Use
from trainer.learning.batch import Sample, samples_of
from trainer.sage.advantages import AdvantagedRollout, ScoredRollout


def trajectory(
    *turns: Turn, stop: Stop = Stop.COMPLETED, offered: Sequence[Offer] = (), seed: int | None = None
) -> Trajectory:
    task = Task(uuid4() if seed is None else UUID(int=seed), "do it")
    return Trajectory(
        task=task, policy=Policy(), profile="compact", turns=turns, stop=stop, offered=tuple(offered)
    )


def coded(code: str, *uses: Use) -> Turn:
    """A turn whose answer is a block of code."""
    text = f"I try.\n```python\n{code}\n```"
    return Turn(context_ids=(1,), sampled_ids=(2,), logprobs=(-1.0,), text=text, uses=uses)


def offer(name: str) -> Offer:
    return Offer(
        skill_id=uuid4(), name=name, version=1, signature=f"{name}()", source=f"def {name}(): ...", instruction=""
    )


def rollout(seed: int, *, turns: int = 2, size: int = 6, logprob: float = -2.0) -> Trajectory:
    """`turns` turns, each with about `size` context tokens and as many sampled ones."""
    rng = Random(seed)

    def tokens() -> tuple[int, ...]:
        return tuple(rng.randrange(250) for _ in range(rng.randrange(2, 2 * size)))

    made = []
    for _ in range(turns):
        sampled = tokens()
        logprobs = tuple(logprob + rng.uniform(-0.1, 0.1) for _ in sampled)
        made.append(Turn(context_ids=tokens(), sampled_ids=sampled, logprobs=logprobs, text=""))
    return trajectory(*made, seed=seed)


def sample_of(trajectory: Trajectory) -> Sample:
    """Of a trajectory whose turns only append."""
    [sample] = samples_of(trajectory)
    return sample


def advantaged(
    of: Trajectory, advantage: float, *, group: str = "a", size: int = 2, position: int = 0, staleness: int = 0
) -> AdvantagedRollout:
    scored = ScoredRollout(
        trajectory=of,
        reward=advantage,
        score=advantage,
        bonus=0.0,
        group=group,
        position=position,
        staleness=staleness,
    )
    return AdvantagedRollout(scored, advantage, size)
