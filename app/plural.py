"""Counts with their nouns, for texts that people read."""


def numbered(count: int, noun: str) -> str:
    """The noun is one whose plural ends in -s.

    >>> numbered(1, "host"), numbered(0, "call"), numbered(12_000, "token")
    ('1 host', '0 calls', '12,000 tokens')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
