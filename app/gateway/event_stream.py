"""Reads a body of server-sent events (WHATWG HTML, section 9.2). Pure."""

import re

from app.base.untrusted import JsonError, decode_json
from app.base.values import Json
from app.sandbox.wire import MAX_DEPTH, MAX_NODES

_LINE_END = re.compile(r"\r\n|\r|\n")


def events(text: str, cut: str = "") -> list[Json]:
    """The events in order: `event`, `data` and, where given, `id`. Data that is a JSON object or array is decoded.

    If the stream was `cut`, a last event that no server sends has the reason. An event that is not whole is none.

    >>> events('data: {"n": 1}\\n\\nevent: end\\ndata: bye\\n\\n')
    [{'event': 'message', 'data': {'n': 1}}, {'event': 'end', 'data': 'bye'}]
    """
    found: list[Json] = []
    fields: dict[str, str] = {}
    data: list[str] = []
    for line in _LINE_END.split(text.removeprefix("\ufeff")):
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                found.append({"event": fields.get("event") or "message", "data": _decoded("\n".join(data))})
                found[-1] |= {"id": fields["id"]} if "id" in fields else {}
            data, fields = [], {}
        elif name == "data":
            data.append(value)
        elif name in ("event", "id"):
            fields[name] = value
    return [*found, {"event": "incomplete", "data": None, "reason": cut}] if cut else found


def _decoded(data: str) -> Json:
    if not data.startswith(("{", "[")):
        return data
    try:
        return decode_json(data.encode(), max_values=MAX_NODES, max_depth=MAX_DEPTH // 2)
    except (JsonError, UnicodeEncodeError):
        return data
