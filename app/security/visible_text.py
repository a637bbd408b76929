"""Text of an agent or an API, made safe for people to read: on a terminal, in the console and in webhooks."""

import re
from collections.abc import Mapping
from typing import Final

from app.records import Json

_RANGES = (
    "\0\x08 \x0b\x0c \x0e\x1f \x7f\x9f "  # controls, which a terminal would obey
    "\u061c\u061c \u200e\u200f \u2028\u202e \u2066\u206f "  # of the direction of writing, and ends of lines
    "\u00ad\u00ad \u034f\u034f \u115f\u1160 \u17b4\u17b5 \u180b\u180f \u200b\u200d \u2060\u2065 \u3164\u3164 "
    "\ufe00\ufe0e \ufeff\ufeff \uffa0\uffa0 "
    "\u070f\u070f \u2800\u2800 \U00013430\U0001343f \U00016fe4\U00016fe4 "  # blank, or without a width,
    "\U0001d159\U0001d159 \ufff0\ufffb \U0001bca0\U0001bca3 \U0001d173\U0001d17a "  # but for their names
    "\U000e0000\U000e0fff"
)
_UNSEEN: Final = {
    code: chr(code).encode("unicode_escape").decode()
    for each in _RANGES.split(" ")
    for code in range(ord(each[0]), ord(each[1]) + 1)
}
_RETURN = re.compile(r"\r(?!\n)")
_NO_EMOJI = re.compile(r"(?<![^\x00-\x7f])\ufe0f|(?<=\w)\ufe0f|(?<=\ufe0f)\ufe0f")  # not after a symbol


def visible(text: str) -> str:
    r"""The text with what cannot be seen escaped: controls, and characters that turn text around or have no width.

    >>> visible("a\tb\n\x1b[2J")
    'a\tb\n\\x1b[2J'
    >>> visible("pay 98\u202e321\u200b")
    'pay 98\\u202e321\\u200b'
    """
    if "\ufe0f" in text:
        text = _NO_EMOJI.sub(r"\\ufe0f", text)
    if "\r" in text:
        text = _RETURN.sub(r"\\r", text)
    return text.translate(_UNSEEN)  # a function for each of a million would take seconds


def visible_value(value: Json) -> Json:
    """The same JSON value with `visible` texts and names."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, Mapping):
        return {visible(name): visible_value(each) for name, each in value.items()}
    return [visible_value(each) for each in value] if isinstance(value, list) else value
