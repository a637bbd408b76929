"""How the tasks of a form are worded, in the words of the document: nouns from its paths, fields from their names
and descriptions, verbs from its actions. Each split has wordings of its own. Pure.
"""

import re
from collections.abc import Mapping, Sequence
from random import Random
from typing import Final

from app.apis import verbs
from app.apis.double.effects import participle
from app.apis.double.model import Collection, Modelled
from app.apis.double.shapes import fields_of
from app.apis.words import singular, split_words
from app.records import Json
from trainer.environment import Split
from trainer.lessons.phrases import CONDITIONS, CRUD_FRAMES, GIVEN, GYM_FRAMES, ONE, TITLED, Wordings
from trainer.practice.forms import Condition, Form, Reach
from trainer.practice.tasks import Values

_TOLD: Final = 4  # words of a description that are a name
_NO_NOUNS: Final = {"all", "api", "rest", "php", "json", "xml", "html", "aspx", "v1", "v2", "v3"}
_AT: Final = {"at", "on", "date", "time"}
_TIMES: Final = {"created", "updated", "modified", "due", "closed", "start", "end"}
_PARTICIPLES: Final = {
    "send": "sent", "pay": "paid", "run": "run", "read": "read", "freeze": "frozen", "hide": "hidden",
    "set": "set",
}  # fmt: skip
_OPPOSITES: Final = {
    "enable": "disable", "activate": "deactivate", "pause": "unpause", "show": "hide", "close": "reopen",
    "open": "close",
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
        "check": ("{change} Once that is done, let me know the count of {nouns}{place} {that}.",),
    },
}  # fmt: skip
_FLAGS: Final[dict[Split, dict[bool, Wordings]]] = {
    "train": {
        True: ("that are {flag}", "with {flag} set", "whose {flag} is true"),
        False: ("that are not {flag}", "with {flag} not set", "whose {flag} is false"),
    },
    "validation": {True: ("for which {flag} holds",), False: ("for which {flag} does not hold",)},
    "test": {True: ("where {flag} says yes",), False: ("where {flag} says no",)},
}
_TESTS: Final[dict[Split, dict[str, Wordings]]] = {
    "train": {
        "has": ('with "{v}" in the {field}', 'whose {field} contains "{v}"', "that have {v} in their {field}"),
        "before": ("whose {field} is before {v}", "with a {field} earlier than {v}"),
        "after": ("whose {field} is after {v}", "with a {field} later than {v}"),
    },
    "validation": {
        "has": ('where the {field} mentions "{v}"',),
        "before": ("with a {field} prior to {v}",),
        "after": ("with a {field} past {v}",),
    },
    "test": {
        "has": ('where "{v}" occurs in the {field}',),
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
    "train": ("of {one}", "in {one}", "that belong to {one}"),
    "validation": ("under {one}",),
    "test": ("that go with {one}",),
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
    one = singular(last)
    if one == last:
        last = (
            f"{last[:-1]}ies"
            if re.search("[^aeiou]y$", last)
            else f"{last}es"
            if re.search("(s|x|ch|sh)$", last)
            else f"{last}s"
        )
    return " ".join([*words, last])


def _path_words(collection: Collection) -> list[str]:
    """Of the last part of the path that names something, without verbs."""
    for part in reversed(collection.path):
        words = [each for each in split_words(part) if each not in verbs.CLEAR | _NO_NOUNS] if part != "{}" else []
        if words:
            return words
    return ["record"]


def prose(field: str, reach: Reach, rng: Random) -> str:
    """What a field is called: by its name, or by a description that is hardly longer."""
    words = split_words(field)
    if len(words) > 1 and words[-1] in _AT and words[-2] in _TIMES:
        words = [*words[:-1], "date"]
    described = fields_of(reach.collection.item).get(field, {}).get("description")
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
        self._noun, self._nouns = noun(self._reach.collection), nouns(self._reach.collection)

    def text(self) -> str:
        said = self._said()
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
        match form.goal:
            case "count":
                return self._of_many(GYM_FRAMES[split]["count"])
            case "sum":
                return self._of_many(GYM_FRAMES[split]["total"], number=field)
            case "list":
                return self._of_many(own["list"], field=field)
            case "most" | "least":
                date = {"most": "latest", "least": "earliest"}[form.goal] if form.kind == "date" else form.goal
                return self._of_many(own[date], field=field, by=by)
            case "read":
                return self._of_one(CRUD_FRAMES[split]["read"], field=field)
            case "create":
                return self._choose(CRUD_FRAMES[split]["create"]).format(noun=self._noun, given=self._given())
            case "ensure":
                given = self._titled(form.key, self._values["key"])
                place = self._place(_NEW_OWNER)
                return self._choose(own["ensure"]).format(
                    noun=f"{self._noun}{place}", nouns=self._nouns, given=given, place=""
                )
            case "check":
                change = self._changed(field)
                told = {"nouns": self._nouns, "place": self._place(), "that": self._that(field)}
                change = f"{change[:1].upper()}{change[1:].rstrip('.')}."
                return self._choose(own["check"]).format(change=change, **told)
            case "delete":
                return self._act("delete", "deleted", CRUD_FRAMES[split]["delete"])
            case "act":
                base, done = action(self._reach.model.operations[form.operation])
                return self._act(base, done, CRUD_FRAMES[split]["act"])
        return self._changed(field)

    def _changed(self, field: str) -> str:
        form, split = self._form, self._split
        if form.value is not None:
            verb = flag_verb(form.field)
            if verb and self._rng.random() < 0.5:
                base = verb if form.value else _OPPOSITES.get(verb, f"un{verb}")
                return self._act(base, _participle(base), CRUD_FRAMES[split]["act"])
            frames = FRAMES[split]["on" if form.value else "off"]
            flag = _flag(form.field)
            return self._of_one(frames, flag=flag) if self._is_one else self._flag_of_many(flag)
        if self._is_one:
            return self._change(CRUD_FRAMES[split]["change"], self._values["new"], field)
        return self._of_many(GYM_FRAMES[split]["move"], label=field, target=self._values["new"])

    def _that(self, field: str) -> str:
        """Which records have the new value."""
        if self._form.value is not None:
            return self._choose(_FLAGS[self._split][self._form.value]).format(flag=_flag(self._form.field))
        return self._choose(CONDITIONS[self._split]["label"]).format(label=field, v=self._values["new"])

    def _flag_of_many(self, flag: str) -> str:
        return self._of_many(GYM_FRAMES[self._split]["move"], label=flag, target=_value(self._form.value))

    @property
    def _is_one(self) -> bool:
        return self._form.by in ("id", "text")

    def _act(self, base: str, done: str, frames: Wordings) -> str:
        more = {"act": base, "Act": base.capitalize(), "acted": done}
        return (
            self._of_one(frames, **more) if self._is_one else self._of_many(GYM_FRAMES[self._split]["act"], **more)
        )

    def _change(self, frames: Wordings, new: Json, field: str) -> str:
        return self._of_one(frames, field=field, new=new)

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
        conditions = f"{self._where()}{self._place()}".strip()
        fit = [each for each in frames if conditions or "{conditions}" not in each] or list(
            GYM_FRAMES["test"]["count"]
        )
        them = f"{self._nouns} {conditions}".strip()
        return self._choose(fit).format(
            **more, them=them, conditions=conditions, noun=self._noun, nouns=self._nouns
        )

    def _one(self) -> str:
        form, value = self._form, self._values["key"]
        if form.by == "id":
            return self._choose(_ID[self._split]).format(noun=self._noun, nouns=self._nouns, value=value)
        return self._called(self._reach, form.key, value)

    def _called(self, reach: Reach, field: str, value: Json) -> str:
        """A record by a text: whose text it is goes without saying of its name alone."""
        frames = BY[self._split] if field not in reach.names[:1] else ONE[self._split]
        own, many = noun(reach.collection), nouns(reach.collection)
        return self._choose(frames).format(noun=own, nouns=many, by=prose(field, reach, self._rng), value=value)

    def _place(self, frames: Mapping[Split, Wordings] = _OWNER) -> str:
        """Of which record they are."""
        return f" {self._choose(frames[self._split]).format(one=self._owner())}" if self._form.through else ""

    def _owner(self) -> str:
        through, value = self._form.through, self._values["owner"]
        if through is None or not through.collection:
            return f"{' '.join(split_words(self._reach.collection.scopes[-1].parameter))} {value}"
        target = self._every[through.collection]
        own, many = noun(target.collection), nouns(target.collection)
        if not through.name:
            return self._choose(_ID[self._split]).format(noun=own, nouns=many, value=value)
        return self._called(target, through.name, value)

    def _where(self) -> str:
        where = self._form.where
        return "" if where is None else f"{self._condition(where)}"

    def _condition(self, where: Condition) -> str:
        field, split = prose(where.field, self._reach, self._rng), self._split
        if where.flag is not None:
            return self._choose(_FLAGS[split][where.flag]).format(flag=_flag(where.field))
        value = self._values["where"]
        match where.test:
            case "is":
                return self._choose(CONDITIONS[split]["label"]).format(label=field, v=value)
            case "more" | "less":
                frames = CONDITIONS[split]["over" if where.test == "more" else "under"]
                return self._choose(frames).format(number=field, v=value)
        return self._choose(_TESTS[split][where.test]).format(field=field, v=value)

    def _given(self) -> str:
        """The fields of a new record."""
        form = self._form
        said = [self._titled(each, self._values[each]) for each in form.fields]
        if form.through is not None:
            said.append(self._choose(_NEW_OWNER[self._split]).format(one=self._owner()))
        return f"{', '.join(said[:-1])} and {said[-1]}" if len(said) > 1 else said[0]

    def _titled(self, field: str, value: Json) -> str:
        called = prose(field, self._reach, self._rng)
        is_title = called in ("name", "title")
        frames = TITLED[self._split] if is_title else GIVEN[self._split]
        return self._choose(frames).format(field=called, value=_value(value))

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


def flag_verb(field: str) -> str:
    """The verb that a flag is the participle of; "" if it is none.

    >>> [flag_verb(each) for each in ("paused", "is_pinned", "archived", "public", "enabled")]
    ['pause', 'pin', 'archive', '', 'enable']
    """
    last = (split_words(field) or [""])[-1]
    if not last.endswith("ed"):
        return ""
    return next(
        (each for each in (last[:-1], last[:-2], last[:-3]) if each in verbs.ALL and participle(each) == last), ""
    )


def _flag(field: str) -> str:
    return " ".join(each for each in split_words(field) if each not in ("is", "has"))


def _value(value: Json) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
