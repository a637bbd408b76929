"""What an action does to a record, as far as its verb and the fields of the record tell: `close` sets the state to
`closed`, `archive` the flag `archived`. Pure.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from app.apis.double.shapes import Schema, flat, kind_of, plain
from app.apis.words import split_words
from app.base.values import Json

_STATES: Final = ("state", "status", "phase", "stage", "condition")
_AFTER: Final[Mapping[str, tuple[str, ...]]] = {  # besides the participle
    "reopen": ("open", "opened", "reopened", "active", "new"), "open": ("open", "opened"),
    "start": ("running", "started", "active", "in_progress", "inprogress"),
    "stop": ("stopped", "inactive", "idle"), "resume": ("running", "active", "resumed", "started"),
    "run": ("running",), "pause": ("paused",), "complete": ("completed", "complete", "done", "finished"),
    "finish": ("finished", "done", "completed"), "cancel": ("cancelled", "canceled"),
    "enable": ("enabled", "active", "on"), "send": ("sent",), "disable": ("disabled", "inactive", "off"),
    "activate": ("active", "activated", "enabled"), "deactivate": ("inactive", "deactivated", "disabled"),
    "approve": ("approved", "accepted"), "reject": ("rejected", "declined", "denied"), "pay": ("paid",),
    "hide": ("hidden",), "read": ("read",), "restore": ("active", "restored", "open"),
    "unpublish": ("draft", "unpublished"), "submit": ("submitted", "pending"), "freeze": ("frozen",),
    "ship": ("shipped",), "suspend": ("suspended",), "void": ("void", "voided"),
}  # fmt: skip
_FLAGS: Final[Mapping[str, tuple[str, bool]]] = {
    "enable": ("enabled", True), "disable": ("enabled", False), "activate": ("active", True),
    "deactivate": ("active", False), "reopen": ("closed", False), "open": ("closed", False),
    "resume": ("paused", False), "restore": ("deleted", False), "show": ("hidden", False),
    "complete": ("completed", True), "read": ("read", True), "finish": ("finished", True),
    "favorite": ("favorite", True), "favourite": ("favourite", True), "like": ("liked", True),
    "follow": ("following", True), "subscribe": ("subscribed", True),
}  # fmt: skip
_DOUBLED: Final = ("pin", "stop", "ship", "star", "ban", "drop", "flag")


class Effect(msgspec.Struct, frozen=True):
    """The fields that an action sets, and those that its body gives. `at` are times of the action."""

    sets: dict[str, Json] = {}
    given: frozenset[str] = frozenset()
    at: tuple[str, ...] = ()


def effect_of(
    words: Sequence[str], fields: Mapping[str, Schema], sent: Mapping[str, Schema], *, undone: bool = False
) -> Effect | None:
    """The effect of an action of these words on a record with these fields; None if it cannot be told.

    `undone`: the action is taken back, as DELETE does. `sent` are the fields of its body.

    >>> state = {"state": {"enum": ["open", "closed"]}, "is_locked": {"type": "boolean"}}
    >>> effect_of(["close"], state, {}).sets, effect_of(["lock"], state, {}, undone=True).sets
    ({'state': 'closed'}, {'is_locked': False})
    >>> effect_of(["sync"], state, {}) is None
    True
    """
    if not words:
        return None
    verb = words[0]
    given = frozenset(each for each in sent if each in fields)
    if verb.startswith("un") and len(verb) > 4:
        verb, undone = verb[2:], not undone
    sets, at = dict[str, Json](), tuple[str, ...]()
    if undone:
        sets = _flag(verb, fields, value=False) or (_state(words[0], fields) if words[0] != verb else {})
    else:
        sets = _state(verb, fields) or _flag(verb, fields, value=True)
        done = plain(participle(verb))
        at = tuple(each for each in fields if plain(each) in (f"{done}at", f"{done}on", f"{done}date"))
        at = tuple(each for each in at if kind_of(flat(fields[each])) == "string")
    if sets or at:
        return Effect(sets, given, at)
    named = [each for each in fields if set(split_words(each)) & set(words)]
    every_known = bool(given) and len(given) == len(sent)
    return Effect(given=given) if every_known and (set(named) & given or verb in _SETTING) else None


_SETTING: Final = {"assign", "rename", "move", "set", "update", "change", "edit", "transfer", "label", "priority"}


def participle(verb: str) -> str:
    """
    >>> [participle(each) for each in ("close", "lock", "pin", "verify", "archive", "send")]
    ['closed', 'locked', 'pinned', 'verified', 'archived', 'sended']
    """
    if verb.endswith("e"):
        return f"{verb}d"
    if verb.endswith("y") and verb[-2:-1] not in "aeiou":
        return f"{verb[:-1]}ied"
    return f"{verb}{verb[-1]}ed" if verb in _DOUBLED else f"{verb}ed"


def _state(verb: str, fields: Mapping[str, Schema]) -> dict[str, Json]:
    wanted = [plain(each) for each in (participle(verb), *_AFTER.get(verb, ()))]
    for name, schema in fields.items():
        if split_words(name)[-1:] and split_words(name)[-1] in _STATES:
            choices = {plain(str(each)): each for each in flat(schema).get("enum", ()) if isinstance(each, str)}
            if found := next((choices[each] for each in wanted if each in choices), None):
                return {name: found}
    return {}


def _flag(verb: str, fields: Mapping[str, Schema], *, value: bool) -> dict[str, Json]:
    name, own = _FLAGS.get(verb, (participle(verb), True))
    names = {name, f"is{name}", verb, f"is{verb}"}
    for each, schema in fields.items():
        if plain(each) in names and kind_of(flat(schema)) == "boolean":
            return {each: own == value}
    return {}
