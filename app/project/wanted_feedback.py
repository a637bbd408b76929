"""Which tasks are most worth a person's score. Pure.

A score says more of a kind with few scores than of one with many, and more where success and failure are about as
frequent: such a kind has groups to learn from. Of the tasks of a release that is on trial, it also brings the
decision nearer: the more, the less the scores of the kind say yet about which of the two releases does better.
"""

import heapq
from collections.abc import Mapping, Sequence
from math import erfc, sqrt
from typing import NamedTuple

import msgspec


class KindScores(msgspec.Struct, frozen=True):
    """The scores that a kind of tasks has. Its rate of success is estimated from a uniform distribution."""

    count: int = 0
    total: float = 0.0

    @property
    def rate(self) -> float:
        return (1 + self.total) / (2 + self.count)

    @property
    def variance(self) -> float:
        """Of the rate, which has a Beta distribution."""
        return self.rate * (1 - self.rate) / (self.count + 3)

    @property
    def gain(self) -> float:
        """By how much one more score is expected to lower the variance of the kind's rate of success.

        >>> [round(scores.gain, 4) for scores in (KindScores(), KindScores(4, 2.0), KindScores(4, 4.0))]
        [0.0278, 0.0051, 0.0028]
        """
        return self.variance / (self.count + 3)

    def expected(self) -> "KindScores":
        """With one more, of the mean."""
        return KindScores(self.count + 1, self.total + self.rate)


class KindTrial(msgspec.Struct, frozen=True):
    """The scores of a kind under a release that is on trial, and under the one that it is compared with."""

    new: KindScores = KindScores()
    old: KindScores = KindScores()

    @property
    def gain(self) -> float:
        """That of one more score of the new release, by how open it is which of the two does better.

        >>> even, none = KindScores(4, 2.0), KindScores(4, 0.0)
        >>> [round(KindTrial(new, even).gain, 4) for new in (KindScores(), even, none)]
        [0.0278, 0.0051, 0.0004]
        """
        distance = abs(self.new.rate - self.old.rate) / sqrt(self.new.variance + self.old.variance)
        return self.new.gain * erfc(distance / sqrt(2))

    def expected(self) -> "KindTrial":
        return KindTrial(self.new.expected(), self.old)


class Unscored(NamedTuple):
    """A task without a score. A kind's tasks are in the order in which they are to be asked about."""

    kind: str
    on_trial: bool


def choose(
    tasks: Sequence[Unscored], scores: Mapping[str, KindScores], trials: Mapping[str, KindTrial], limit: int
) -> list[int]:
    """The places of the tasks most worth a score, best first.

    Kinds weigh as much as they have tasks here. Each choice counts as scored for the next.
    """
    waiting: dict[tuple[str, bool], list[int]] = {}
    for place, task in enumerate(tasks):
        waiting.setdefault((task.kind, task.on_trial), []).append(place)
    frequency = {kind: sum(len(waiting.get((kind, trial), ())) for trial in (True, False)) for kind, _ in waiting}
    known = {kind: scores.get(kind, KindScores()) for kind in frequency}
    open_trials = {kind: trials.get(kind, KindTrial()) for kind in frequency}

    def entry(group: tuple[str, bool]) -> tuple[float, int, tuple[str, bool]]:
        kind, on_trial = group
        gain = known[kind].gain + (open_trials[kind].gain if on_trial else 0.0)
        return -gain * frequency[kind], waiting[group][0], group

    heap = [entry(group) for group in waiting]
    heapq.heapify(heap)
    chosen: list[int] = []
    while heap and len(chosen) < limit:
        worth, _, group = heapq.heappop(heap)
        fresh = entry(group)
        if fresh[0] > worth:  # a score of the kind was chosen since
            heapq.heappush(heap, fresh)
            continue
        chosen.append(waiting[group].pop(0))
        kind, on_trial = group
        known[kind] = known[kind].expected()
        if on_trial:
            open_trials[kind] = open_trials[kind].expected()
        if waiting[group]:
            heapq.heappush(heap, entry(group))
    return chosen
