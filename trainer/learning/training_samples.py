"""What an update learns from: trajectories with advantages, divided into parts that fit into memory. Pure."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from app.errors import InvalidError
from app.records import Trajectory
from trainer.learning.batch import Sample, sample_of
from trainer.sage.advantages import Advised


class Item(msgspec.Struct, frozen=True):
    """One trajectory as the loss needs it."""

    sample: Sample
    logprobs: tuple[float, ...]  # of its sampled tokens, as the engine reported them
    advantage: float
    weight: float  # of each of its sampled tokens
    stale: bool


def flaw_of(trajectory: Trajectory) -> Literal["rewritten", "empty"] | None:
    """Why it cannot be learned from, although what it earned says how well its group does.

    The chat template rewrote what went before, so that it is no single sequence; or the policy sampled nothing.
    """
    if not all(turn.extends for turn in trajectory.turns):
        return "rewritten"
    return None if trajectory.generated_tokens else "empty"


def items_of(advised: Sequence[Advised]) -> list[Item]:
    """What teaches something, with the weight of a token: token mean per task, mean over groups and their G.

    A group that teaches nothing is not counted: the step would else be shorter the better the policy is. What has
    a flaw is left out. Raises InvalidError where the chat template leaves nothing else.
    """
    flaws = [(each, flaw_of(each.rewarded.trajectory)) for each in advised if each.teaches]
    if flaws and all(flaw == "rewritten" for _, flaw in flaws):
        raise InvalidError(
            f"the model's chat template rewrote earlier turns in all {len(flaws)} rollouts that taught something "
            "(some drop what was thought in them), and no update can learn from such: use a chat template that "
            "keeps earlier turns as they were"
        )
    taught = [each for each, flaw in flaws if flaw is None]
    groups = len({each.rewarded.group for each in taught})
    items = []
    for each in taught:
        trajectory = each.rewarded.trajectory
        logprobs = tuple(value for turn in trajectory.turns for value in turn.logprobs)
        weight = 1 / (groups * each.group_size * len(logprobs))
        items.append(Item(sample_of(trajectory), logprobs, each.advantage, weight, each.rewarded.staleness > 0))
    return items


def divide(items: Sequence[Item], budget: int, processes: int = 1) -> list[list[list[Item]]]:
    """For each process its parts, each of at most `budget` tokens or of one item; together every item once.

    Processes get about as many tokens each, and so do the parts of a process: what is held in memory is least.
    """
    ordered = sorted(items, key=lambda item: len(item.sample.ids))
    return [_parts(ordered[process::processes], budget) for process in range(processes)]


def _parts(items: Sequence[Item], budget: int) -> list[list[Item]]:
    total = sum(len(item.sample.ids) for item in items)
    even = -(-total // max(1, -(-total // budget)))
    parts: list[list[Item]] = []
    room = 0
    for item in items:
        size = len(item.sample.ids)
        if not parts or size > room:
            parts.append([])
            room = even if size <= even else budget
        parts[-1].append(item)
        room -= size
    return parts
