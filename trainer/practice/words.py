"""How the tasks of a form are worded, in the words of the document: nouns from its paths, fields from their names
and descriptions, verbs from its actions. Each split has wordings of its own. Pure.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Final

from app.apis import naming
from app.apis.double.meanings import participle
from app.apis.double.model import Collection, Home, Modelled
from app.apis.double.shapes import own_name, root_of
from app.apis.naming import singular, split_words
from app.base.values import Json
from trainer.environment import Split
from trainer.lessons.phrases import CONDITIONS, CRUD_FRAMES, GIVEN, GYM_FRAMES, ONE, TITLED, Wordings
from trainer.practice.forms import Condition, Form, Reach, is_address
from trainer.practice.tasks import Values

_SYNONYMS: Final = 2
_TOLD: Final = 4  # words of a description that are a name
_IN_FRONT: Final = 0.4  # of conditions on a flag are said in front of the noun
_TOLD_ANYWAY: Final = 0.3  # of places that nobody has to be told
_SAID_ALONE: Final = 0.5  # of fields of objects, if no other is called the same
_ASKED: Final = 0.7  # of questions about a flag are answered by yes or no
_NO_NOUNS: Final = {"all", "api", "rest", "php", "json", "xml", "html", "aspx", "v1", "v2", "v3"}
_AT: Final = {"at", "on", "date", "time"}
_DONE: Final = {
    "begun", "born", "bought", "built", "due", "found", "given", "grown", "held", "made", "met", "paid", "read",
    "run",
    "seen", "sent", "shot", "sold", "sown", "taken", "won", "written",
}  # fmt: skip
_PARTICIPLES: Final = {
    "send": "sent", "pay": "paid", "run": "run", "read": "read", "freeze": "frozen", "hide": "hidden",
    "set": "set",
}  # fmt: skip
_OPPOSITES: Final[Mapping[str, tuple[str, ...]]] = {
    "enable": ("disable",), "activate": ("deactivate",), "pause": ("unpause", "resume"), "show": ("hide",),
    "close": ("reopen",), "open": ("close",), "lock": ("unlock",), "complete": ("reopen",),
    **{each: (f"un{each}",) for each in (
        "archive", "assign", "ban", "block", "check", "flag", "follow", "freeze", "install", "link", "mute", "pin",
        "publish", "share", "snooze", "star", "subscribe",
    )},
}  # fmt: skip
_ADJECTIVES: Final = {
    "active", "alive", "anonymous", "automatic", "available", "closed", "default", "done", "external", "favorite",
    "favourite", "final", "free", "hidden", "internal", "locked", "mandatory", "manual", "new", "offline",
    "online",
    "open", "optional", "paid", "primary", "private", "public", "read", "ready", "recurring", "remote", "sent",
    "sticky", "urgent", "valid", "visible",
}  # fmt: skip

FRAMES: Final[dict[Split, dict[str, Wordings]]] = {
    "train": {
        "list": (
            "List the {field} of all {them}.", "Give me the {field} of each of the {them}.",
            "What are the {field} values of the {them}?", "I need the {field} of every one of the {them}.",
            "Show me the {field} of the {them}, all of them.",
        ),
        "most": (
            "Which of the {them} has the highest {field}? Give me its {by}.",
            "Tell me the {by} of the {noun} with the largest {field} among the {them}.",
            "Find the one with the maximum {field} among all {them}; I need its {by}.",
        ),
        "least": (
            "Which of the {them} has the lowest {field}? Give me its {by}.",
            "Tell me the {by} of the {noun} with the smallest {field} among the {them}.",
            "Find the one with the minimum {field} among all {them}; I need its {by}.",
        ),
        "latest": (
            "Which of the {them} has the latest {field}? Give me its {by}.",
            "Tell me the {by} of the {noun} whose {field} is the most recent among the {them}.",
        ),
        "earliest": (
            "Which of the {them} has the earliest {field}? Give me its {by}.",
            "Tell me the {by} of the {noun} whose {field} comes first among the {them}.",
        ),
        "ensure": (
            "If there is no {noun} {given}, create it. Then tell me how many {nouns} there are{place}.",
            "Make sure that there is a {noun} {given}, and say how many {nouns} there are{place} then.",
            "There has to be a {noun} {given}: add it if it is missing. How many {nouns} are there{place} then?",
        ),
        "on": (
            "Mark {one} as {flag}.", "Make {one} {flag}.", "{One} should be {flag}.",
            "Set {flag} of {one} to true.", "I want {one} to be {flag}.",
        ),
        "off": (
            "Mark {one} as not {flag}.", "Set {flag} of {one} to false.", "{One} should not be {flag}.",
            "{One} should no longer be {flag}.", "I do not want {one} to be {flag}.",
        ),
        "set": (
            "Set {flag} of {one} to true.", "Turn on {flag} for {one}.", "Enable {flag} for {one}.",
            "{One} should have {flag} on.", "set {flag} to true for {one}",
        ),
        "unset": (
            "Set {flag} of {one} to false.", "Turn off {flag} for {one}.", "Disable {flag} for {one}.",
            "{One} should have {flag} off.", "set {flag} to false for {one}",
        ),
        "link": (
            "Add {one} to {owner}.", "Give {one} {owner}.", "Put {one} into {owner}.",
            "{One} belongs to {owner}, too: add it.",
            "Please assign {one} to {owner}.", "{One} should be in {owner}.",
        ),
        "unlink": (
            "Remove {one} from {owner}.", "Take {one} out of {owner}.", "{One} should no longer be in {owner}.",
        ),
        "move": (
            "Move {one} to {owner}.", "Assign {one} to {owner}.", "{One} should belong to {owner}.",
            "Set the {field} of {one} to {owner}.",
        ),
        "is": ("Is {one} {flag}?", "Is {one} {flag} or not?", "Tell me whether {one} is {flag}."),
        "is_set": ("Is {flag} on for {one}?", "Does {one} have {flag} set?", "Say if {flag} is set for {one}."),
        "all_on": ("Mark all {them} as {flag}.", "All {them} should be {flag}.", "Make all {them} {flag}."),
        "all_off": (
            "Mark all {them} as not {flag}.", "All {them} should no longer be {flag}.",
            "None of the {them} should be {flag}.",
        ),
        "all_set": (
            "Set {flag} of all {them} to true.", "Turn on {flag} for all {them}.", "Enable {flag} for the {them}.",
        ),
        "all_unset": (
            "Set {flag} of all {them} to false.", "Turn off {flag} for all {them}.",
            "Disable {flag} for the {them}.",
        ),
        "texts": (
            "List the {field} of {one}.", "What are the {field} of {one}?", "Which {field} does {one} have?",
            "Give me all {field} of {one}.",
        ),
        "add": (
            "Add {new} to the {field} of {one}.", "{One} needs one more of its {field}: {new}.",
            "Put {new} into the {field} of {one}, too.", "Add the {item} {new} to {one}.",
            "{One} should also have {new} among its {field}.",
        ),
        "drop": (
            "Remove {new} from the {field} of {one}.", "Take {new} out of the {field} of {one}.",
            "Remove the {item} {new} from {one}.",
        ),
        "alone count": ("How many {field} are there?", "How many {field} does {app} have?", "Count the {field}."),
        "alone read": (
            "What is the {field}?", "Tell me the {field} of {app}.", "Which {field} does {app} have?",
            "Look up the {field}.", "What {field} does {app} say it has?", "I need to know the {field}.",
            "Check {one}: what is the {field}?", "What is the {field} in {one}?",
        ),
        "alone texts": (
            "List the {field}.", "What are the {field}?", "Which {field} are there?",
            "Give me all {field} of {app}.",
        ),
        "alone change": (
            "Set the {field} to {new}.", "Change the {field} to {new}.", "The {field} should be {new}.",
            "Set the {field} in {one} to {new}.", "Use {new} as the {field} from now on.",
        ),
        "alone add": (
            "Add {new} to the {field}.", "Add the {item} {new}.", "Put {new} into the {field}, too.",
            "There should be one more {item}: {new}.", "Also use the {item} {new}.",
        ),
        "alone drop": (
            "Remove {new} from the {field}.", "Remove the {item} {new}.", "Take {new} out of the {field}.",
        ),
        "check": (
            "{change} Then tell me how many {nouns}{place} there are {that}.",
            "{change} After that, how many {nouns}{place} are there {that}?",
            "{change} Check how many {nouns}{place} {that} there are now.",
        ),
    },
    "validation": {
        "list": ("What do the {them} have as {field}? Name them all.",),
        "most": ("How is the one called, by its {by}, that tops the {them} in {field}?",),
        "least": ("How is the one called, by its {by}, that is last of the {them} in {field}?",),
        "latest": ("The newest of the {them} by {field}: what is its {by}?",),
        "earliest": ("The oldest of the {them} by {field}: what is its {by}?",),
        "ensure": ("A {noun} {given} is needed: add it unless it is there, and count the {nouns}{place}.",),
        "on": ("See to it that {one} is {flag}.",),
        "off": ("See to it that {one} is not {flag}.",),
        "set": ("Let {flag} be true for {one}.",),
        "unset": ("Let {flag} be false for {one}.",),
        "link": ("Let {one} be one of those of {owner}.",),
        "unlink": ("Let {one} be none of those of {owner}.",),
        "move": ("Let {one} go under {owner}.",),
        "is": ("Check if {one} is {flag}.",),
        "is_set": ("Check if {one} has {flag} on.",),
        "all_on": ("See to it that all {them} are {flag}.",),
        "all_off": ("See to it that all {them} are not {flag}.",),
        "all_set": ("Let {flag} be true for all {them}.",),
        "all_unset": ("Let {flag} be false for all {them}.",),
        "texts": ("Go and see which {field} {one} has.",),
        "add": ("Let {new} be one of the {field} of {one}.",),
        "drop": ("Let {new} be none of the {field} of {one}.",),
        "alone count": ("The number of {field}, please.",),
        "alone read": ("Do you know the {field} of {app}?",),
        "alone texts": ("Go and see which {field} {app} has.",),
        "alone change": ("Let {new} be the {field}.",),
        "alone add": ("Let {new} be one of the {field}.",),
        "alone drop": ("Let {new} be none of the {field}.",),
        "check": ("{change} Report the number of {nouns}{place} {that} afterwards.",),
    },
    "test": {
        "list": ("Go through the {them} and write down each {field}.", "Every {field} among the {them}, please."),
        "most": ("Look at the {them}: one beats the others in {field}. What does it say under {by}?",),
        "least": ("Look at the {them}: one has less {field} than any other. What does it say under {by}?",),
        "latest": ("Look at the {them}: the last one by {field}, what does it say under {by}?",),
        "earliest": ("Look at the {them}: the first one by {field}, what does it say under {by}?",),
        "ensure": ("Should a {noun} {given} be missing, put one in; then tell me the count of {nouns}{place}.",),
        "on": ("Make sure {one} counts as {flag}.", "Switch {flag} on for {one}."),
        "off": ("Make sure {one} does not count as {flag}.", "Switch {flag} off for {one}."),
        "set": ("I need {flag} to be true on {one}.", "Switch {flag} on for {one}."),
        "unset": ("I need {flag} to be false on {one}.", "Switch {flag} off for {one}."),
        "link": ("{One} is missing in {owner}: see that it gets there.", "Make {owner} include {one}."),
        "unlink": ("{One} has no business in {owner} any more.",),
        "move": ("{One} is in the wrong place: it has to be under {owner}.",),
        "is": ("Can you see whether {one} is {flag} at the moment?",),
        "is_set": ("Can you see whether {flag} is on for {one} at the moment?",),
        "all_on": ("Every one of the {them} has to count as {flag}.", "Switch {flag} on for the {them}."),
        "all_off": ("Not one of the {them} may count as {flag}.", "Switch {flag} off for the {them}."),
        "all_set": ("I need {flag} to be true on all the {them}.", "Switch {flag} on for the {them}."),
        "all_unset": ("I need {flag} to be false on all the {them}.", "Switch {flag} off for the {them}."),
        "texts": ("Write down each of the {field} that {one} has.",),
        "add": ("{One} lacks {new} among its {field}: see that it gets there.",),
        "drop": ("{new} has no business among the {field} of {one}.",),
        "alone count": ("Go through the {field} and say how many you see.",),
        "alone read": ("I cannot remember the {field}, can you check?",),
        "alone texts": ("Write down each of the {field}.",),
        "alone change": ("The {field} is wrong: it has to be {new}.",),
        "alone add": ("{new} is missing among the {field}: see that it gets there.",),
        "alone drop": ("{new} has no business among the {field}.",),
        "check": ("{change} Once that is done, let me know the count of {nouns}{place} {that}.",),
    },
}  # fmt: skip
_MORE: Final[dict[str, Wordings]] = {
    "count": (
        "How many {them} have we got?", "Tell me the number of {them}.", "Number of {them}?",
        "I want to know how many {them} there are.", "How many {them} do we have right now?",
        "Check how many {them} there are.",
    ),
    "total": ("How much {number} do the {them} have together?", "Give me the sum of {number} of the {them}."),
    "list": (
        "What is the {field} of each of the {them}?", "Which {them} are there? Tell me the {field} of each.",
        "Give me a list with the {field} of the {them}.", "list the {field} of the {them}",
    ),
    "read": (
        "What does {one} have as {field}?", "Give me the {field} of {one}.",
        "Can you tell me the {field} of {one}?",
        "Check the {field} of {one}.", "What {field} does {one} have?",
    ),
    "create": (
        "Set up a new {noun} {given}.", "Could you add a {noun} {given}?", "There should be a new {noun} {given}.",
        "We need a {noun} {given}: add it.", "add one more {noun} {given}", "Start a new {noun} {given}.",
    ),
    "change": (
        "{One} needs another {field}: {new}.", "Could you set the {field} of {one} to {new}?",
        "I want the {field} of {one} to be {new}.", "Use {new} as the {field} of {one}.",
        "Replace the {field} of {one} by {new}.", "For {one}, set the {field} to {new}.",
    ),
    "rename": (
        "Rename {one} to {new}.", 'Rename {one}: call it "{new}".', 'Give {one} the {field} "{new}".',
        "{One} is to be called {new} from now on.", "Call {one} {new} instead.",
    ),
    "delete": (
        "Could you delete {one}?", "We do not need {one} any more; remove it.", "Drop {one}.",
        "I want {one} gone.", "Please remove {one} for good.",
    ),
    "act": (
        "Could you {act} {one}?", "{One} needs to be {acted}.", "I need you to {act} {one}.", "Get {one} {acted}.",
    ),
    "act_many": (
        "{Act} each of the {them}.", "I need all {them} {acted}.", "Could you {act} all {them}?",
        "Get all the {them} {acted}.", "{Act} whatever {them} there are.",
    ),
    "move": (
        "Use {target} as the {label} of all {them}.", "I want {target} as the {label} of the {them}.",
        "For all {them}, set the {label} to {target}.",
    ),
}  # fmt: skip
_AS_VERB: Final[Wordings] = (
    "{Verb} {given}.", "Please {verb} the page {given}.", "Start {verb}ing {given}.", "I want to {verb} {given}.",
)  # fmt: skip
_FLAGS: Final[dict[Split, dict[bool, Wordings]]] = {
    "train": {
        True: ("that are {flag}", "which are {flag}", "with {flag} set", "whose {flag} is true"),
        False: ("that are not {flag}", "which are not {flag}", "with {flag} not set", "whose {flag} is false"),
    },
    "validation": {True: ("for which {flag} holds",), False: ("for which {flag} does not hold",)},
    "test": {True: ("where {flag} says yes",), False: ("where {flag} says no",)},
}
_GIVEN_FLAG: Final[dict[Split, dict[bool, dict[bool, Wordings]]]] = {  # adjectives, and other names of flags
    "train": {
        True: {True: ("that is {flag}", "with {flag} true"), False: ("that is not {flag}", "with {flag} false")},
        False: {True: ("with {flag} on", "with {flag} true"), False: ("with {flag} off", "with {flag} false")},
    },
    "validation": {
        True: {True: ("which is to be {flag}",), False: ("which is not to be {flag}",)},
        False: {True: ("having {flag} on",), False: ("having {flag} off",)},
    },
    "test": {
        True: {True: ("where {flag} says true",), False: ("where {flag} says false",)},
        False: {True: ("where {flag} says true",), False: ("where {flag} says false",)},
    },
}
_TESTS: Final[dict[Split, dict[str, Wordings]]] = {
    "train": {
        "has": (
            'with "{v}" in the {field}',
            'whose {field} contains "{v}"',
            "that have {v} in their {field}",
            'whose {field} has the word "{v}"',
            "that mention {v} in their {field}",
            "where the {field} includes {v}",
        ),
        "at": ("on {v}", "at {v}", "of {v}", "whose {field} is at {v}", "whose {field} contains {v}"),
        "before": ("whose {field} is before {v}", "with a {field} earlier than {v}"),
        "after": ("whose {field} is after {v}", "with a {field} later than {v}"),
        "done before": ("{field} before {v}", "that were {field} before {v}", "{field} earlier than {v}"),
        "done after": ("{field} after {v}", "that were {field} after {v}", "{field} later than {v}"),
    },
    "validation": {
        "has": ('where the {field} mentions "{v}"',),
        "at": ("hosted at {v}",),
        "done before": ("{field} prior to {v}",),
        "done after": ("{field} past {v}",),
        "before": ("with a {field} prior to {v}",),
        "after": ("with a {field} past {v}",),
    },
    "test": {
        "has": ('where "{v}" occurs in the {field}',),
        "at": ("that live on {v}",),
        "done before": ("{field} ahead of {v}",),
        "done after": ("{field} beyond {v}",),
        "before": ("dated ahead of {v} by their {field}",),
        "after": ("dated beyond {v} by their {field}",),
    },
}
_ID: Final[dict[Split, Wordings]] = {
    "train": (
        "the {noun} with the id {value}",
        "{noun} {value}",
        "the {noun} whose id is {value}",
        "the {noun} {value}",
    ),
    "validation": ("the {noun} that has {value} as its id",),
    "test": ("the one of our {nouns} under the id {value}",),
}
BY: Final[dict[Split, Wordings]] = {
    "train": (
        'the {noun} with the {by} "{value}"', "the {noun} whose {by} is {value}",
        'the {noun} that has the {by} "{value}"',
    ),
    "validation": ('the {noun} that goes by "{value}" as its {by}',),
    "test": ('the one of our {nouns} that says "{value}" under {by}',),
}  # fmt: skip
_OWNER: Final[dict[Split, Wordings]] = {
    "train": (
        "of {one}",
        "in {one}",
        "that belong to {one}",
        "with {one}",
        "that are in {one}",
        "that have {one}",
    ),
    "validation": ("under {one}",),
    "test": ("that go with {one}",),
}
_HOME: Final[dict[Split, Wordings]] = {
    "train": ("in the {what} {key}", "in {what} {key}", "in the {key} {what}", "in {key}"),
    "validation": ("inside the {what} {key}",),
    "test": ("that the {what} {key} holds",),
}
_BUT: Final[dict[Split, Wordings]] = {
    "train": ("except {one}", "but not {one}", "apart from {one}", "but {one}"),
    "validation": ("with the exception of {one}",),
    "test": ("other than {one}",),
}
_NEW_OWNER: Final[dict[Split, Wordings]] = {
    "train": ("in {one}", "for {one}", "that belongs to {one}"),
    "validation": ("under {one}",),
    "test": ("that goes with {one}",),
}


def noun(collection: Collection) -> str:
    """What one record is called: the last word of its path that is none of a parameter.

    >>> noun(Collection(name="x", path=("v1", "line-items"), noun="", item={}, key="", key_schema={}))
    'line item'
    """
    words = _path_words(collection)
    return " ".join([*words[:-1], singular(words[-1])])


def nouns(collection: Collection) -> str:
    *words, last = _path_words(collection)
    return " ".join([*words, last if singular(last) != last else _plural(last)])


def _plural(one: str) -> str:
    if re.search("[^aeiou]y$", one):
        return f"{one[:-1]}ies"
    return f"{one}es" if re.search("(s|x|ch|sh)$", one) else f"{one}s"


def synonyms(reach: Reach) -> list[tuple[str, str]]:
    """One and many of what the records of a collection are called: as in its path, several times, and as the
    document explains that word, in "a tag/group" or in "change monitors (watches)".
    """
    one, many = noun(reach.collection), nouns(reach.collection)
    own = re.escape(one), re.escape(many)
    texts = [each.operation.summary for each in reach.model.operations.values()]
    texts += [each.operation.description for each in reach.model.operations.values()]
    found: set[str] = set()
    for text in texts:
        for pattern in (rf"\b{own[0]}/(\w+)\b", rf"\b(\w+)/{own[0]}\b", rf"\b{own[1]}/(\w+)\b"):
            found |= {singular(each.lower()) for each in re.findall(pattern, text or "", re.IGNORECASE)}
        for each in re.findall(rf"([a-z][a-z ]+?) \((?:{own[0]}|{own[1]})\)", text or "", re.IGNORECASE):
            words = re.split(
                r"\b(?:an?|the|all|single|existing|new|of|from|for|get|list|to|by|in)\b", each.lower()
            )
            told = words[-1].split()
            if 0 < len(told) <= _TOLD:
                found.add(" ".join([*told[:-1], singular(told[-1])]))
    others = sorted(each for each in found if each and each != one and each.split()[-1] not in naming.CLEAR)
    return [(one, many)] * 3 + [(each, _plural(each)) for each in others[:_SYNONYMS]]


def homes(collection: Collection) -> tuple[Home, ...]:
    """Where the records are, but for the part of their path that they are called by."""
    called = collection.home and collection.path[-1] == collection.home[-1].key
    return collection.home[:-1] if called else collection.home


def _path_words(collection: Collection) -> list[str]:
    """Of the last part of the path that names something, without verbs; of verbs alone, the last is a noun."""
    parts = [split_words(part) for part in reversed(collection.path) if part != "{}"]
    for left_out in (naming.CLEAR | _NO_NOUNS, _NO_NOUNS):
        for part in parts:
            if words := [each for each in part if each not in left_out]:
                return words
    return ["record"]


def prose(field: str, reach: Reach, rng: Random) -> str:
    """What a field is called: by its name, or by a description that is hardly longer."""
    own = own_name(field)
    others = any(each != field and own in each.split("/") for each in reach.fields)
    words = split_words(own if own != field and not others and rng.random() < _SAID_ALONE else field)
    if reach.kinds.get(field) == "date" and len(words) > 1 and words[-1] in _AT:
        words = [*words[:-1], "date"]
    described = reach.fields.get(field, {}).get("description")
    told = str(described or "").strip().rstrip(".")
    short = re.fullmatch(r"(?:the |a |an )?([\w -]+?)(?: of (?:the|a|an) [\w -]+)?", told, re.IGNORECASE)
    if short and len(short[1].split()) <= _TOLD and set(split_words(short[1])) & set(words) and rng.random() < 0.5:
        return short[1].lower()
    return " ".join(words) or field


def word(form: Form, every: Mapping[str, Reach], values: Values, split: Split, rng: Random) -> str:
    """The instruction of a task."""
    return _Wording(form, every, values, split, rng).text()


class _Wording:
    def __init__(self, form: Form, every: Mapping[str, Reach], values: Values, split: Split, rng: Random) -> None:
        self._form, self._every, self._values, self._split, self._rng = form, every, values, split, rng
        self._reach = every[form.collection]
        self._noun, self._nouns = self._rng.choice(synonyms(self._reach))

    def text(self) -> str:
        said = self._said()
        if self._noun[:1] in "aeiou":
            said = re.sub(rf"\b([Aa]) (?={re.escape(self._noun)}\b)", r"\1n ", said)
        outer = [
            f"{' '.join(split_words(scope.parameter))} {self._values[f'above{at}']}"
            for at, scope in enumerate(self._reach.collection.scopes[:-1])
        ]
        said = f"{said[:1].upper()}{said[1:]}" if self._rng.random() < 0.8 else said
        return f"In {', '.join(outer)}: {said}" if outer else said

    def _said(self) -> str:
        form, split = self._form, self._split
        field = prose(form.field, self._reach, self._rng) if form.field else ""
        by = prose(form.key, self._reach, self._rng) if form.key else ""
        own = FRAMES[split]
        if form.by == "only" and form.value is None:
            return self._of_lists("alone ")
        if form.goal in ("add", "drop") or (form.goal == "read" and form.kind == "texts"):
            return self._of_lists()
        match form.goal:
            case "count":
                return self._of_many(self._frames("count", GYM_FRAMES[split]["count"]))
            case "sum":
                return self._of_many(self._frames("total", GYM_FRAMES[split]["total"]), number=field)
            case "list":
                return self._of_many(self._frames("list", own["list"]), field=field)
            case "most" | "least":
                date = {"most": "latest", "least": "earliest"}[form.goal] if form.kind == "date" else form.goal
                return self._of_many(own[date], field=field, by=by)
            case "read":
                return self._read(field)
            case "create":
                return self._created()
            case "ensure":
                given = self._titled(form.key, self._values["key"])
                place = self._place(_NEW_OWNER)
                return self._choose(own["ensure"]).format(
                    noun=f"{self._noun}{place}", nouns=self._nouns, given=given, place=""
                )
            case "check":
                change = self._changed(field)
                told = {"nouns": self._nouns, "place": self._place(), "that": self._that(field)}
                change = f"{change[:1].upper()}{change[1:].rstrip('.?')}."
                return self._choose(own["check"]).format(change=change, **told)
            case "link" | "unlink":
                return self._joined()
        return self._changed(field)

    def _created(self) -> str:
        frames = self._frames("create", CRUD_FRAMES[self._split]["create"])
        verb = noun(self._reach.collection)
        if self._split == "train" and verb in naming.ALL and is_address(self._form.fields[0], self._reach):
            frames = (*frames, *_AS_VERB * 3)  # a watch that is created is a page to watch
        chosen = self._choose(frames)
        given = self._given(bare=chosen in _AS_VERB)
        return chosen.format(noun=self._noun, given=given, Verb=verb.capitalize(), verb=verb)

    def _of_lists(self, alone: str = "") -> str:
        """What is asked of lists of texts, and of the fields of what there is one of."""
        form = self._form
        asked = "texts" if form.kind == "texts" and form.goal == "read" else form.goal
        field = (
            " ".join(split_words(form.field))
            if form.kind == "texts"
            else prose(form.field, self._reach, self._rng)
        )
        *words, last = split_words(form.field) or [form.field]
        new = _value(self._values.get("new"))
        item = " ".join([*words, singular(last)])
        return self._of_one(FRAMES[self._split][f"{alone}{asked}"], field=field, item=item, new=new)

    def _read(self, field: str) -> str:
        is_said = is_adjective(self._form.field)
        if self._form.kind != "flag" or (not is_said and self._rng.random() > _ASKED):
            return self._of_one(self._frames("read", CRUD_FRAMES[self._split]["read"]), field=field)
        frames = FRAMES[self._split]["is" if is_said else "is_set"]
        return self._of_one(frames, flag=_flag(self._form.field))

    def _joined(self) -> str:
        """A record that is put into another one, or taken out."""
        form = self._form
        one, owner = f"{self._one()}{self._home()}", self._owner()
        many = form.through is not None and form.through.link is not None and form.through.link.many
        frames = FRAMES[self._split][form.goal if many else "move"]
        field = " ".join(split_words(form.field.removesuffix("_id")))
        return self._choose(frames).format(one=one, One=f"{one[:1].upper()}{one[1:]}", owner=owner, field=field)

    def _changed(self, field: str) -> str:
        form, split = self._form, self._split
        if form.goal == "delete":
            return self._act("delete", "deleted", self._frames("delete", CRUD_FRAMES[split]["delete"]))
        if form.goal == "act":
            base, done = action(self._reach.model.operations[form.operation])
            return self._act(base, done, self._frames("act", CRUD_FRAMES[split]["act"]))
        if form.value is not None:
            verb = flag_verb(form.field, self._reach.kinds)
            bases = () if not verb else (verb,) if form.value else _OPPOSITES.get(verb, ())
            if bases and self._rng.random() < 0.5:
                base = self._choose(bases)
                return self._act(base, _participle(base), self._frames("act", CRUD_FRAMES[split]["act"]))
            adjective = is_adjective(form.field)
            kind = ("on" if form.value else "off") if adjective else ("set" if form.value else "unset")
            flag = _flag(form.field)
            if self._is_one:
                return self._of_one(FRAMES[split][kind], flag=flag)
            return self._of_many(FRAMES[split][f"all_{kind}"], flag=flag)
        if self._is_one:
            frames = self._frames("change", CRUD_FRAMES[split]["change"])
            if split == "train" and form.field in self._reach.names[:1]:
                frames = frames[::2] + _MORE["rename"]
            return self._of_one(frames, field=field, new=_value(self._values["new"]))
        frames = self._frames("move", GYM_FRAMES[split]["move"])
        return self._of_many(frames, label=field, target=self._values["new"])

    def _that(self, field: str) -> str:
        """Which records have the new value."""
        if self._form.value is not None:
            return self._flagged(self._form.field, self._form.value)
        return self._choose(CONDITIONS[self._split]["label"]).format(label=field, v=self._values["new"])

    def _flagged(self, field: str, value: bool) -> str:
        frames = _FLAGS[self._split][value]
        if not is_adjective(field):
            frames = tuple(each for each in frames if " are " not in each)
        return self._choose(frames).format(flag=_flag(field))

    @property
    def _is_one(self) -> bool:
        return self._form.by in ("id", "text", "only")

    def _act(self, base: str, done: str, frames: Wordings) -> str:
        more = {"act": base, "Act": base.capitalize(), "acted": done}
        if self._is_one:
            return self._of_one(frames, **more)
        return self._of_many(self._frames("act_many", GYM_FRAMES[self._split]["act"]), **more)

    def _of_one(self, frames: Wordings, **more: Json) -> str:
        one = f"{self._one()}{self._place(_NEW_OWNER)}"
        return self._choose(frames).format(
            **more,
            one=one,
            One=f"{one[:1].upper()}{one[1:]}",
            app=self._reach.model.app.name,
            noun=self._noun,
            nouns=self._nouns,
        )

    def _of_many(self, frames: Wordings, **more: Json) -> str:
        adjective = self._in_front()
        conditions = f"{self._where(adjective)}{self._place()}{self._but()}".strip()
        fit = [each for each in frames if conditions or "{conditions}" not in each] or list(
            GYM_FRAMES["test"]["count"]
        )
        nouns = " ".join(filter(None, (adjective and _flag(adjective), self._nouns)))
        them = f"{nouns} {conditions}".strip()
        return self._choose(fit).format(**more, them=them, conditions=conditions, noun=self._noun, nouns=nouns)

    def _in_front(self) -> str:
        """The flag that is said in front of the noun, as in "all paused watches"; "" for none."""
        flags = [each.field for each in self._form.conditions.values() if each.flag and is_adjective(each.field)]
        return flags[0] if flags and self._split == "train" and self._rng.random() < _IN_FRONT else ""

    def _but(self) -> str:
        """The record that is not meant."""
        form = self._form
        if not form.but:
            return ""
        one = self._called(self._reach, form.but, self._values["but"])
        return f" {self._choose(_BUT[self._split]).format(one=one)}"

    def _one(self) -> str:
        form = self._form
        if form.by == "only":
            return f"the {' '.join(_path_words(self._reach.collection))}"
        value = self._values["key"]
        if form.by == "id":
            return self._choose(_ID[self._split]).format(noun=self._noun, nouns=self._nouns, value=value)
        return self._called(self._reach, form.key, value)

    def _called(self, reach: Reach, field: str, value: Json) -> str:
        """A record by a text: whose text it is goes without saying of its name alone."""
        is_its_name = field in reach.names[:1] and root_of(field) == field
        frames = ONE[self._split] if is_its_name else BY[self._split]
        own, many = noun(reach.collection), nouns(reach.collection)
        return self._choose(frames).format(noun=own, nouns=many, by=prose(field, reach, self._rng), value=value)

    def _place(self, frames: Mapping[Split, Wordings] = _OWNER) -> str:
        """Of which record they are."""
        of = f" {self._choose(frames[self._split]).format(one=self._owner())}" if self._form.through else ""
        return f"{of}{self._home()}"

    def _home(self) -> str:
        """Where they are, if there are others that are called the same, and sometimes if there are none."""
        own = self._reach.collection
        alike = (each.collection for each in self._every.values() if each.collection.home)
        several = any(each.name != own.name and noun(each) == noun(own) for each in alike)
        several = several or len(homes(own)) == len(own.home)  # what they are called says nothing
        if not homes(own) or not (several or self._rng.random() < _TOLD_ANYWAY):
            return ""
        said = [
            self._choose(_HOME[self._split]).format(what=each.what or "place", key=each.key)
            for each in reversed(homes(own))
        ]
        return f" {' '.join(said)}"

    def _owner(self) -> str:
        through, value = self._form.through, self._values["owner"]
        if through is None or not through.collection:
            return f"{' '.join(split_words(self._reach.collection.scopes[-1].parameter))} {value}"
        target = self._every[through.collection]
        own, many = noun(target.collection), nouns(target.collection)
        if not through.name:
            return self._choose(_ID[self._split]).format(noun=own, nouns=many, value=value)
        return self._called(target, through.name, value)

    def _where(self, left_out: str) -> str:
        told = {name: each for name, each in self._form.conditions.items() if each.field != left_out}
        return " and ".join(self._condition(each, self._values.get(name)) for name, each in told.items())

    def _condition(self, where: Condition, value: Json) -> str:
        field, split = prose(where.field, self._reach, self._rng), self._split
        if where.flag is not None:
            return self._flagged(where.field, where.flag)
        match where.test:
            case "is":
                return self._choose(CONDITIONS[split]["label"]).format(label=field, v=value)
            case "more" | "less":
                frames = CONDITIONS[split]["over" if where.test == "more" else "under"]
                return self._choose(frames).format(number=field, v=value)
        test: str = where.test
        if test == "has" and is_address(where.field, self._reach):
            test = "at"
        elif where.kind == "date" and (done := when(where.field)):
            test, field = f"done {test}", done
        return self._choose(_TESTS[split][test]).format(field=field, v=value)

    def _given(self, *, bare: bool = False) -> str:
        """The fields of a new record; of the first one its value alone if `bare`."""
        form = self._form
        said = [self._titled(each, self._values[each]) for each in form.fields]
        if bare:
            said[0] = str(self._values[form.fields[0]])
        if form.through is not None:
            said.append(self._choose(_NEW_OWNER[self._split]).format(one=self._owner()))
        said[0] += self._home()
        return f"{', '.join(said[:-1])} and {said[-1]}" if len(said) > 1 else said[0]

    def _titled(self, field: str, value: Json) -> str:
        called, split = prose(field, self._reach, self._rng), self._split
        if isinstance(value, bool):
            frames = _GIVEN_FLAG[split][is_adjective(field)][value]
            return self._choose(frames).format(flag=_flag(field))
        if self._reach.kinds.get(field) == "date" and (done := when(field)) and split == "train":
            return f"{done} on {value}"
        is_title = called in ("name", "title") or field == self._reach.collection.key
        frames = TITLED[split] if is_title else GIVEN[split]
        return self._choose(frames).format(field=called, value=_value(value))

    def _frames(self, name: str, frames: Wordings) -> Wordings:
        """With those that practice has besides."""
        return frames + _MORE[name] if self._split == "train" else frames

    def _choose(self, frames: Sequence[str]) -> str:
        return self._rng.choice(frames)


def action(made: Modelled) -> tuple[str, str]:
    """What an action does, and what it has done."""
    words = split_words(made.operation.path.rstrip("/").rpartition("/")[2]) or ["act"]
    if made.operation.method == "DELETE":
        named = split_words(made.operation.name)[0]
        words = [named if named not in ("delete", "remove") else f"un{words[0]}", *words[1:]]
    return " ".join(words), " ".join([_participle(words[0]), *words[1:]])


def _participle(verb: str) -> str:
    return _PARTICIPLES.get(verb, participle(verb))


def flag_verb(field: str, others: Iterable[str] = ()) -> str:
    """The verb that a flag is the participle of; "" if it is none, or one of several that are told apart by it.

    >>> [flag_verb(each) for each in ("paused", "is_pinned", "archived", "public", "enabled")]
    ['pause', 'pin', 'archive', '', 'enable']
    >>> flag_verb("text_added", ["text_added", "text_removed"])
    ''
    """
    *first, last = split_words(field) or [""]
    if not last.endswith("ed"):
        return ""
    alike = [each for each in others if each != field and split_words(each)[:-1] == first and each.endswith("ed")]
    if alike and first not in ([], ["is"]):
        return ""
    return next(
        (each for each in (last[:-1], last[:-2], last[:-3]) if each in naming.ALL and participle(each) == last), ""
    )


def when(field: str) -> str:
    """What a date says of a record: published of `published_on`; "" if it is no participle.

    >>> [when(each) for each in ("published_on", "last_taken_at", "expires_at", "date")]
    ['published', 'last taken', '', '']
    """
    words = split_words(field)
    is_done = len(words) > 1 and words[-1] in _AT and (words[-2].endswith("ed") or words[-2] in _DONE)
    return " ".join(words[:-1]) if is_done else ""


def is_adjective(field: str) -> bool:
    """Whether a record can be said to be what a flag is called.

    >>> [is_adjective(each) for each in ("is_paused", "notification_muted", "public", "in_stock_only")]
    [True, True, True, False]
    """
    words = [each for each in split_words(field) if each not in ("is", "has")] or [""]
    is_one = words[-1].endswith(("ed", "able", "ible")) or words[-1] in _ADJECTIVES
    return is_one and len(words) < 3 and root_of(field) == field


def _flag(field: str) -> str:
    return " ".join(each for each in split_words(field) if each not in ("is", "has"))


def _value(value: Json) -> str:
    if isinstance(value, list):
        return " and ".join([", ".join(map(str, value[:-1])), str(value[-1])]) if len(value) > 1 else str(*value)
    return str(value).lower() if isinstance(value, bool) else str(value)
