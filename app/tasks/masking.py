"""Values in events: API calls and text without secrets, and short enough for a stream."""

from app.apis.credentials.credential import mask_call
from app.base.secrets import SecretValues
from app.base.values import Call, Json
from app.db.database import to_json

_MOST = 2_000  # characters of a result as JSON, and of text


def call_fields(call: Call, secrets: SecretValues) -> dict[str, Json]:
    """A call that has ended. `skill` is the offered skill that made it; None: the agent's own code did.

    `http_status` is None if no answer came, or the protocol has none. A large `result` is cut to the beginning of
    its JSON, and `cut` is True.
    """
    secrets.note_call(call)
    shown = mask_call(call)
    result, cut = bounded(secrets.mask_value(shown.result))
    return {
        "turn": call.turn,
        "seq": call.seq,
        "api": call.api,
        "arguments": secrets.mask_value(shown.arguments),
        "skill": call.skill,
        "result": result,
        **({"cut": True} if cut else {}),
        "error": call.error and secrets.mask(call.error),
        "http_status": call.response and call.response.status,
        "seconds": round(call.seconds, 4),
    }


def bounded(value: Json) -> tuple[Json, bool]:
    """The value, or the beginning of its JSON as text and True.

    >>> bounded({"rows": [1, 2]})
    ({'rows': [1, 2]}, False)
    >>> text, cut = bounded(["word"] * 1_000)
    >>> text[:16], text[-7:], len(text) < 2_000, cut
    ('["word", "word",', '"word",', True, True)
    """
    text = to_json(value)
    return (value, False) if len(text) <= _MOST else (beginning(text), True)


def beginning(text: str) -> str:
    """The first words. None is cut in the middle: of half a secret nobody could tell that it is one.

    >>> beginning("short")
    'short'
    """
    return text if len(text) <= _MOST else text[:_MOST].rpartition(" ")[0]
