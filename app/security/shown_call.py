"""The arguments of a call as they are shown to the person who decides about it.

What an API's answer, or the agent, called a secret may be what the call is about: it is shown, with a remark that
says where it comes from. Secrets of the project and of the task are shown by their length and origin.
"""

import json
from collections.abc import Mapping

import msgspec

from app.base.secrets import SecretValues, is_telling
from app.base.values import Json

_MOST = 100_000  # characters that a person can be shown
_REMARKS = 20
_NOT_COMPARED = "more was called a secret than can be compared with these arguments"


class ShownCall(msgspec.Struct, frozen=True):
    """`remarks` name the arguments that hold what was returned as a secret; `failure` is why only masked
    arguments can be shown.
    """

    arguments: dict[str, Json]
    remarks: list[str] = []
    failure: str | None = None


def shown_call(arguments: Mapping[str, Json], secrets: SecretValues) -> ShownCall:
    """An argument of a telling name is a secret as a whole: its API says so."""
    shown = dict(arguments)
    for text, origin in secrets.own.items():
        search = SecretValues(mask=_label(text, origin))
        search.add(text)
        shown = {name: search.mask_value(each) for name, each in shown.items()}
    remarks = []
    for name, value in arguments.items():
        if is_telling(name):
            shown[name] = _hidden(value, secrets)
            continue
        written = _text(value)
        found = {origin: text for text, origin in secrets.told.items() if _text(text)[1:-1] in written}
        remarks += [f"{name} holds what was {origin} as a secret" for origin in found]
    return ShownCall(shown, remarks[:_REMARKS] + ([_NOT_COMPARED] if secrets.cut else []))


def unshowable(arguments: Mapping[str, Json]) -> str | None:
    """Why nobody can be asked about a call with these arguments."""
    if len(_text(dict(arguments))) <= _MOST:
        return None
    return f"its arguments have more than {_MOST:,} characters, which cannot be shown to the person who approves"


def _hidden(value: Json, secrets: SecretValues) -> Json:
    if isinstance(value, list):
        return [_hidden(each, secrets) for each in value]
    if isinstance(value, dict):
        return {name: _hidden(each, secrets) for name, each in value.items()}
    if value is None or isinstance(value, bool):
        return value
    text = str(value)
    return _label(text, secrets.own.get(text) or secrets.told.get(text) or "of the agent's code")


def _label(text: str, origin: str) -> str:
    return f"[{len(text)} characters {origin}]"


def _text(value: Json) -> str:
    return json.dumps(value)
