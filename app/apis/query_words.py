"""The words of a search for operations: what is to be done, and with what. Pure."""

import re
from typing import Final, NamedTuple

from app.apis.words import singular, word_set

_WORD = re.compile(r"[a-z0-9]+")
_CHARS = 10_000
_WORDS = 40  # of a query that count
_KINDS: Final = {
    "read": "list show get read fetch find search retrieve view look see browse display print query filter "
    "inspect download describe which who what where all",
    "count": "count many number",
    "create": "create add new make post register insert open generate submit write",
    "change": "update change edit modify set rename patch replace put configure close reopen adjust",
    "remove": "delete remove destroy drop erase purge clear",
    "start": "start run trigger launch execute begin rerun restart reboot",
    "stop": "stop cancel end abort terminate halt",
}
KIND_OF: Final[dict[str, str]] = {verb: kind for kind, verbs in _KINDS.items() for verb in verbs.split()}
"""What a verb asks for; of verbs of one kind, an API has the one and a person says the other."""
_IDLE: Final = word_set(
    "a an and any are as at be by can current do does for from give has have how i if in into is it its me my of "
    "on one or our out please so than that the their them there these this those to up us want we with you your"
)
_LINKS: Final = word_set("about at by for from in of on to under with within")
_ARTICLES: Final = word_set("a an the my our this")
_VERB = 0.3  # worth of the verb as a word, besides its kind
_CONTEXT = 0.6  # worth of the words behind "of", "in", ...: they say where, not what


class OperationQuery(NamedTuple):
    """`kind` is that of its verb: "act" for an unknown one, "" without any. `terms` are stems with their worth."""

    kind: str
    verb: str
    terms: dict[str, float]
    many: bool  # whether it asks for a list


def read_query(text: str) -> OperationQuery:
    """
    >>> read_query("create an issue")
    OperationQuery(kind='create', verb='create', terms={'issue': 1.0, 'create': 0.3}, many=False)
    >>> read_query("How many flows are there?")
    OperationQuery(kind='count', verb='how', terms={'flow': 1.0}, many=True)
    """
    words = _WORD.findall(text[:_CHARS].lower())[:_WORDS]
    kind = _kind(words)
    verb = next((word for word in words if KIND_OF.get(word) == kind), "")
    terms: dict[str, float] = {}
    worth = 1.0
    for word in words:
        if word in _LINKS and terms:
            worth = _CONTEXT
        elif word not in _IDLE and word != verb:
            terms.setdefault(singular(word), worth)
    if terms and verb and kind not in ("read", "count"):
        terms.setdefault(verb, _VERB)
    if not terms:
        terms = {singular(word): 1.0 for word in words}
    many = not {"list", "all"}.isdisjoint(words) or any(
        each in terms and each != word for word, each in _heads(words)
    )
    return OperationQuery(kind, words[0] if words else "", terms, many)


def _kind(words: list[str]) -> str:
    kinds = [KIND_OF[word] for word in words if word in KIND_OF]
    if "count" in kinds:
        return "count"
    if words[1:] and words[0] not in KIND_OF and words[1] in _LINKS | _ARTICLES:
        return "act"
    return kinds[0] if kinds else ""


def _heads(words: list[str]) -> list[tuple[str, str]]:
    """The words up to the first "of", "in", ..., with their stems."""
    end = next((number for number, word in enumerate(words) if number and word in _LINKS), len(words))
    return [(word, singular(word)) for word in words[:end]]
