"""Text of an agent or an API, made safe for a terminal."""

import re

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    r"""The text with control characters escaped, which a terminal would obey.

    >>> visible("a\tb\n\x1b[2J")
    'a\tb\n\\x1b[2J'
    """
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
