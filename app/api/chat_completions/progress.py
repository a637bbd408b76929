"""What an agent does, as text for people who wait for its answer. Pure."""

from collections.abc import Mapping
from typing import Final

from app.base.values import Json

_MOST: Final = 1_000  # characters of an output
_MOST_OF_A_VALUE: Final = 80


def progress(kind: str, data: Mapping[str, Json]) -> str:
    """Lines about an event of a task; "" for one that says nothing to people.

    >>> progress("call", {"api": "mail.send", "arguments": {"to": "iris"}, "error": None})
    "mail.send(to='iris')\\n"
    """
    match kind:
        case "turn":
            return f"{data['text'].rstrip()}\n"
        case "call":
            given = ", ".join(
                f"{name}={_cut(repr(each), _MOST_OF_A_VALUE)}" for name, each in data["arguments"].items()
            )
            failed = f" raised {_cut(data['error'], _MOST)}" if data.get("error") else ""
            return f"{data['api']}({given}){failed}\n"
        case "observation":
            return f"{_cut(data['text'].rstrip(), _MOST)}\n"
        case "skill" if data["status"] in ("offered", "used", "written"):
            return f"skill {data['status']}: {data['name']}\n"
        case "approval" if data.get("status") == "wanted":
            because = f"{data['because']}\n" if data.get("because") else ""
            return f"waits for a person's approval of {data.get('api', 'a call')}\n{because}"
        case "approval":
            return f"{data.get('api', 'the call')} is {data.get('status')}\n"
        case "remark":
            return f"{data['text']}\n"
    return ""


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}..."
