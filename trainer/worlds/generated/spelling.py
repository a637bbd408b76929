"""The four styles in which APIs spell names of several words. Pure."""

import re
from typing import Literal, TypeAlias

Style: TypeAlias = Literal["snake", "camel", "kebab", "pascal"]

_WORD = re.compile(r"[A-Za-z0-9]+")


def spell(words: str, style: Style) -> str:
    """
    >>> [spell("due date", style) for style in ("snake", "camel", "kebab", "pascal")]
    ['due_date', 'dueDate', 'due-date', 'DueDate']
    """
    parts = [word.lower() for word in _WORD.findall(words)]
    if style == "snake":
        return "_".join(parts)
    if style == "kebab":
        return "-".join(parts)
    titled = "".join(word.capitalize() for word in parts)
    return titled if style == "pascal" else titled[:1].lower() + titled[1:]
