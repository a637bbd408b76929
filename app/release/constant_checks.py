"""Checks that give each task of a kind the same score: these show nothing about a release. Pure."""

_FEWEST = 10  # equal scores that make a check constant


class ConstantChecks:
    """The kinds that had at least 10 scores so far, all of them the same.

    >>> checks = ConstantChecks()
    >>> checks.add("mail", 1.0, 9)
    >>> "mail" in checks
    False
    >>> checks.add("mail", 1.0)
    >>> "mail" in checks
    True
    >>> checks.add("mail", 0.5)
    >>> "mail" in checks
    False
    """

    def __init__(self) -> None:
        self._same: dict[str, tuple[float | None, int]] = {}

    def __contains__(self, kind: object) -> bool:
        score, number = self._same.get(str(kind), (None, 0))
        return score is not None and number >= _FEWEST

    def add(self, kind: str, score: float | None, number: int = 1) -> None:
        """So many scores of a kind; None if they differ from each other."""
        same, before = self._same.get(kind, (score, 0))
        self._same[kind] = (score if score == same else None, before + number)
