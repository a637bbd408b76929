"""The beginning of a text that may be endless: resolved schemas share parts, and unfold without bound."""

from collections.abc import Iterator

from app.base.values import Json


def short_repr(value: Json, limit: int) -> str:
    """`repr(value)`, or its first `limit` characters and dots. Takes no longer than what it returns.

    >>> short_repr({"a": [1, None], "b": "xyz"}, 99), short_repr([[], {}, "long"], 9)
    ("{'a': [1, None], 'b': 'xyz'}", '[[], {}, ...')
    """
    text = ""
    for piece in _pieces(value):
        text += piece
        if len(text) > limit:
            return f"{text[:limit]}..."
    return text


def _pieces(value: Json) -> Iterator[str]:
    if isinstance(value, dict):
        yield "{"
        for number, (name, each) in enumerate(value.items()):
            yield f"{', ' if number else ''}{name!r}: "
            yield from _pieces(each)
        yield "}"
    elif isinstance(value, list):
        yield "["
        for number, each in enumerate(value):
            if number:
                yield ", "
            yield from _pieces(each)
        yield "]"
    else:
        yield repr(value)
