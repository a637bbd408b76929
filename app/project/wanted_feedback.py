"""Which tasks are most worth a person's score. Pure.

A score says more of a kind with few scores than of one with many, and more where success and failure are about as
frequent: such a kind has groups to learn from. Of the tasks of a release that is on trial, each score brings the
decision nearer.
"""

import heapq
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

_ON_TRIAL = 2.0  # times as much as a score of a release that is decided about


class KindScores(msgspec.Struct, frozen=True):
    """The scores that a kind of tasks has."""

    count: int = 0
    total: float = 0.0

    @property
    def gain(self) -> float:
        """By how much one more score is expected to lower the variance of the kind's rate of success.

        Of a Beta distribution, from a uniform one before the first score.

        >>> [round(scores.gain, 4) for scores in (KindScores(), KindScores(4, 2.0), KindScores(4, 4.0))]
        [0.0278, 0.0051, 0.0028]
        """
        good, bad = 1 + self.total, 1 + self.count - self.total
        both = good + bad
        return good * bad / (both * (both + 1)) ** 2

    def expected(self) -> "KindScores":
        """With one more, of the mean."""
        return KindScores(self.count + 1, self.total + (1 + self.total) / (2 + self.count))


class Unscored(NamedTuple):
    """A task without a score. A kind's tasks are in the order in which they are to be asked about."""

    kind: str
    on_trial: bool


def choose(tasks: Sequence[Unscored], scores: Mapping[str, KindScores], limit: int) -> list[int]:
    """The places of the tasks most worth a score, best first.

    Kinds weigh as much as they have tasks here. Each choice counts as scored for the next.
    """
    waiting: dict[tuple[str, bool], list[int]] = {}
    for place, task in enumerate(tasks):
        waiting.setdefault((task.kind, task.on_trial), []).append(place)
    frequency = {kind: sum(len(waiting.get((kind, trial), ())) for trial in (True, False)) for kind, _ in waiting}
    known = {kind: scores.get(kind, KindScores()) for kind in frequency}

    def entry(group: tuple[str, bool]) -> tuple[float, int, tuple[str, bool]]:
        kind, on_trial = group
        worth = known[kind].gain * frequency[kind] * (_ON_TRIAL if on_trial else 1.0)
        return -worth, waiting[group][0], group

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
        known[group[0]] = known[group[0]].expected()
        if waiting[group]:
            heapq.heappush(heap, entry(group))
    return chosen
