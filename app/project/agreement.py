"""How often a judge decides as people do. Pure."""

from math import sqrt
from typing import Self

import msgspec

LEAST_TASKS = 30
"""That a person and the judge have scored, before its scores count at all."""

_Z = 1.959963984540054  # 97.5 % quantile of the normal distribution


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """Decisions about the same tasks: a score of at least 0.5 is a success. `low` and `high` are the 95 % interval
    of `share` (Wilson 1927); `kappa` is Cohen's, null where both always decide the same.
    """

    tasks: int
    agreeing: int
    share: float
    low: float
    high: float
    kappa: float | None

    @classmethod
    def of(cls, *, both: int, neither: int, judge_only: int, person_only: int) -> Self:
        """Of at least one task: the numbers of those that both, neither or one of them called a success.

        >>> found = Agreement.of(both=20, neither=20, judge_only=5, person_only=5)
        >>> found.share, round(found.low, 3), round(found.high, 3), round(found.kappa or 0, 3)
        (0.8, 0.67, 0.888, 0.6)
        """
        tasks, agreeing = both + neither + judge_only + person_only, both + neither
        share = agreeing / tasks
        by_judge, by_person = (both + judge_only) / tasks, (both + person_only) / tasks
        by_chance = by_judge * by_person + (1 - by_judge) * (1 - by_person)
        middle, width = share + _Z**2 / (2 * tasks), _Z * sqrt(share * (1 - share) / tasks + (_Z / tasks / 2) ** 2)
        return cls(
            tasks=tasks,
            agreeing=agreeing,
            share=share,
            low=max((middle - width) / (1 + _Z**2 / tasks), 0.0),
            high=min((middle + width) / (1 + _Z**2 / tasks), 1.0),
            kappa=None if by_chance == 1 else (share - by_chance) / (1 - by_chance),
        )

    def suffices(self, least: float) -> bool:
        """Whether it is certainly at least `least`, and better than a judge that always says the same."""
        return self.tasks >= LEAST_TASKS and self.low >= least and (self.kappa or 0.0) > 0
