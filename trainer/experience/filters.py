"""Filters for trajectories to learn from: by their tokens and logprobs, and by the age of their release."""

from collections.abc import Sequence
from itertools import pairwise
from math import isfinite
from uuid import UUID

import msgspec

from app.engine.tokenizer import ChatTokenizer
from app.records import Trajectory, hosted_id
from trainer.experience.drop_reasons import DropReason


class BaseModel(msgspec.Struct, frozen=True):
    """The model that a run trains."""

    name: str  # as in the adapters' rows
    tokenizer: ChatTokenizer
    start: str  # the weights that the run continues: an adapter's hash, or BASE


class ReleaseWeights(msgspec.Struct, frozen=True):
    """The weights of one release."""

    id: UUID
    number: int
    model: str  # the adapter's hash, or the base model
    served: bool  # active now or earlier


def find_flaw(trajectory: Trajectory, sampled_by: str | None, base: BaseModel) -> DropReason | None:
    """Why a trajectory cannot be learned from, None if it can. `sampled_by` is its release's base model, if known.

    Where it is not, the tokens show it: decoded with another model's vocabulary they differ from the stored text.
    """
    if trajectory.masked:
        return DropReason.SECRET
    if hosted_id(trajectory.policy.model) is not None:
        return DropReason.HOSTED
    if sampled_by not in (None, base.name):
        return DropReason.OTHER_BASE
    if not all(base.tokenizer.is_text_of(turn.text, turn.sampled_ids) for turn in trajectory.turns):
        return DropReason.OTHER_BASE
    if trajectory.flaw is not None:
        return DropReason(trajectory.flaw)
    if not all(isfinite(logprob) for turn in trajectory.turns for logprob in turn.logprobs):
        return DropReason.BAD_LOGPROBS
    return None


def has_other_prompt(trajectory: Trajectory, release: str | None, served: str | None) -> bool:
    """A turn was sampled under another prompt than the one `served` now. What an earlier version sampled has that
    of its `release`; where neither is known, the prompt is taken to be the same.
    """
    known = set(trajectory.prompts or filter(None, [release]))
    return served is not None and bool(known - {served})


def staleness_by_release(releases: Sequence[ReleaseWeights], active: int, learner: str) -> dict[UUID, int]:
    """How many weight changes lie between each release and the one numbered `active`, at least 1.

    0 only for releases whose weights are those being trained, `learner`. Releases that never served do not count,
    nor do those that changed only tools or the prompt.
    """
    served = sorted((release.number, release.model) for release in releases if release.served)
    changes = [number for (_, before), (number, model) in pairwise(served) if model != before]

    def staleness(release: ReleaseWeights) -> int:
        low, high = sorted((release.number, active))
        return 0 if release.model == learner else max(1, sum(low < number <= high for number in changes))

    return {release.id: staleness(release) for release in releases}
