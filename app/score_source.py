"""Who or what gave a task its score, and from where on a score is a good one."""

from enum import StrEnum
from typing import Final

GOOD = 0.5  # scores from here on are successes
SOLVED = 1.0  # scores from here on are worth imitating
GRADES: Final = (("Solved", 1.0), ("Half", 0.5), ("Failed", 0.0))  # that a person gives in the console


def in_words(score: float | None) -> str:
    """A score as console and CLI say it.

    >>> in_words(1.0), in_words(0.5), in_words(0.25), in_words(0.0), in_words(None)
    ('solved', 'solved 0.5', 'failed 0.25', 'failed', 'unscored')
    """
    if score is None:
        return "unscored"
    word = "solved" if score >= GOOD else "failed"
    return word if score in (0.0, 1.0) else f"{word} {score:.3g}"


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
