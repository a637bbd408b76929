"""Who or what gave a task its score, and from where on a score is a good one."""

from enum import StrEnum

GOOD = 0.5  # scores from here on are successes
SOLVED = 1.0  # scores from here on are worth imitating


class ScoreSource(StrEnum):
    """The first ones count for more than those after them."""

    PERSON = "person"
    CHECK = "check"  # that the task brought
    VERIFIER = "verifier"  # a server of the project
    JUDGE = "judge"  # a model

    def yields_to(self, other: "ScoreSource") -> bool:
        """Whether a score of `other` counts for more.

        >>> ScoreSource.JUDGE.yields_to(ScoreSource.PERSON), ScoreSource.CHECK.yields_to(ScoreSource.CHECK)
        (True, False)
        """
        order = list(ScoreSource)
        return order.index(self) > order.index(other)
