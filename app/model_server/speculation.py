"""Drafts the next tokens by look-up: agents copy names, calls and code from what they have read and written.

A draft is verified in the pass that samples its tokens, position by position with the random numbers that would
have been used without it. So it changes nothing but the number of passes: this is rejection sampling with a draft
of probability 1, which accepts a token with the probability that the policy gives it.
"""

from collections.abc import Sequence

_NGRAM = 3  # tokens that have to agree with an earlier place
_MAX_DRAFT = 15  # tokens
_FORGET = 0.9  # weight of what was observed one token earlier
_WORTH = 1.1  # the least expected gain in tokens per second; below it noise decides
_MANY = 8  # rows from which on more is demanded: 16 lost 4 % with _WORTH
_WORTH_OF_MANY = 1.3


class LookupDrafter:
    """Follows one sequence, prompt included. Every token that it could have drafted teaches it how often it is
    right, whether or not it was drafted.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = list(tokens)
        self._after = {  # n-gram -> the position after its latest occurrence but the present one
            tuple(self._tokens[end - _NGRAM : end]): end for end in range(_NGRAM, len(self._tokens))
        }
        self._next = self._look_up()
        self._hits, self._tries = 0.0, 0.0

    @property
    def confidence(self) -> float:
        """The estimated probability that the next token is the drafted one; below 1."""
        return (self._hits + 1) / (self._tries + 2)

    def draft(self, limit: int) -> list[int]:
        if self._next is None:
            return []
        return self._tokens[self._next : self._next + min(limit, _MAX_DRAFT)]

    def append(self, token: int) -> None:
        hit = self._next is not None and self._tokens[self._next] == token
        if self._next is not None:
            self._hits = self._hits * _FORGET + hit
            self._tries = self._tries * _FORGET + 1
        self._after[tuple(self._tokens[-_NGRAM:])] = len(self._tokens)
        self._tokens.append(token)
        self._next = self._next + 1 if self._next is not None and hit else self._look_up()

    def _look_up(self) -> int | None:
        return self._after.get(tuple(self._tokens[-_NGRAM:]))


def draft_lengths(confidences: Sequence[float], limits: Sequence[int], pass_seconds: Sequence[float]) -> list[int]:
    """How many tokens to draft for each row, at most its limit, so that tokens per second are expected highest.

    pass_seconds[n - 1] is the time of a pass over n rows; each drafted token is one more row. Rows are not drafted
    for beyond the passes that were timed.

    >>> draft_lengths([0.9], [4], [1.0, 1.1, 1.2, 1.3, 1.4])
    [4]
    >>> draft_lengths([0.5, 0.9], [4, 2], [1.0, 1.0, 1.4, 1.8, 2.2])
    [0, 0]
    """
    lengths = [0] * len(confidences)
    rows = len(lengths)
    chances = sorted(
        (
            (confidence**length, row)
            for row, (confidence, limit) in enumerate(zip(confidences, limits, strict=True))
            for length in range(1, limit + 1)
        ),
        reverse=True,
    )[: max(0, len(pass_seconds) - rows)]
    if not chances:
        return lengths
    worth = _WORTH if rows < _MANY else _WORTH_OF_MANY
    expected, best, count = float(rows), rows / pass_seconds[rows - 1] * worth, 0
    for drafted, (chance, _) in enumerate(chances, 1):
        expected += chance
        if (rate := expected / pass_seconds[rows + drafted - 1]) > best:
            best, count = rate, drafted
    for _, row in chances[:count]:
        lengths[row] += 1
    return lengths
