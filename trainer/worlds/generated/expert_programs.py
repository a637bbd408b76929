"""The program that solves a task of the gym, as a careful reader of the documents would write it.

It is put together from the form of the task, the shapes of the APIs and a style, so every combination has one.
"""

from random import Random
from typing import Literal

import msgspec

from trainer.worlds.generated.api_calls import access, change, for_each_row, identity_argument, indent, log_in
from trainer.worlds.generated.domains import Verb
from trainer.worlds.generated.gym_apis import FILTERED, GymApi, ItemField
from trainer.worlds.generated.spelling import spell
from trainer.worlds.generated.task_forms import WRITING, Condition, Parameter, TaskForm

_STREAMED = ("count", "total", "act", "act_count", "move")  # goals that need no list of all rows
NUMERIC = ("total", "peak", "who", "act_top")
_INTEGERS = ("over", "under", "threshold")
FIELDS: dict[Condition, ItemField] = {
    "person": "person", "label": "label", "over": "number", "under": "number", "before": "date",
    "member": "person", "other": "person",
}  # fmt: skip
_PROGRESS: tuple[ItemField, ...] = ("progress",)
_NAMES: dict[Parameter, tuple[str, ...]] = {
    "person": ("name", "person", "who"),
    "label": ("label", "value", "wanted"),
    "over": ("limit", "minimum", "bound"),
    "under": ("limit", "maximum", "bound"),
    "before": ("day", "date", "until"),
    "group": ("group", "team", "part"),
    "target": ("target", "new_value"),
    "threshold": ("threshold", "most"),
}

_LOOPS: tuple[Literal["gather", "stream", "filter"], ...] = ("gather", "stream", "filter")
_USUAL = (8, 1, 1)  # weights of three choices
_ASKS = 0.2


class ProgramStyle(msgspec.Struct, frozen=True, kw_only=True):
    """How an expert writes: a habit, the same for all tasks of a scenario."""

    loop: Literal["gather", "stream", "filter"] = "gather"  # keep matches; act at once; keep all, then filter
    asks: bool = False  # lets the service filter where it can
    names: dict[Parameter, str] = {}


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """Code for one form of task; `values` are Python expressions by parameter name."""

    name: str
    parameters: tuple[tuple[str, str], ...]  # name and type
    returns: str
    body: tuple[str, ...]
    result: str  # an expression

    @property
    def function(self) -> str:
        """A skill."""
        given = ", ".join(f"{name}: {kind}" for name, kind in self.parameters)
        lines = [f"def {self.name}({given}) -> {self.returns}:", *indent([*self.body, f"return {self.result}"])]
        return "\n".join([*self._imports, *lines])

    def call(self, values: tuple[str, ...]) -> str:
        return f"result = {self.name}({', '.join(values)})\nprint(result)"

    def inline(self, values: tuple[str, ...]) -> str:
        """The same without a function: it solves one task and leaves no skill."""
        given = [f"{name} = {value}" for (name, _), value in zip(self.parameters, values, strict=True)]
        return "\n".join([*self._imports, *given, *self.body, f"result = {self.result}", "print(result)"])

    @property
    def _imports(self) -> list[str]:
        return ["import time", ""] if any("time.sleep" in line for line in self.body) else []


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What a program is written for: the APIs as its author believes them to be."""

    form: TaskForm
    main: GymApi
    joined: GymApi | None
    verbs: tuple[Verb, Verb]

    @property
    def apis(self) -> tuple[GymApi, ...]:
        """In the order in which the program reads them."""
        return (self.main,) if self.joined is None else (self.joined, self.main)


def draw_style(rng: Random) -> ProgramStyle:
    """Mostly the usual one: a small model mixes styles that it meets equally often."""
    names = {parameter: rng.choices(names, _USUAL[: len(names)])[0] for parameter, names in _NAMES.items()}
    loop = rng.choices(_LOOPS, _USUAL)[0]
    return ProgramStyle(loop=loop, asks=rng.random() < _ASKS, names=names)


def write_program(subject: Subject, style: ProgramStyle) -> Program:
    form, main = subject.form, subject.main
    body = [*_join(subject, style), *log_in(main)]
    asked = style.asks and main.shape.filters == "equal"
    streams = style.loop == "stream" and form.goal in _STREAMED and main.shape.write != "batch"
    if streams and not (
        asked and form.goal == "move"
    ):  # a list that is changed must not be filtered by the change
        body += _stream(subject, style, asked)
        result = "total" if form.goal == "total" else "count"
    else:
        body += _select(subject, style, asked)
        done, result = _conclude(subject, style)
        body += done
    return Program(
        name=function_name(subject),
        parameters=tuple((_name(style, each), "int" if each in _INTEGERS else "str") for each in form.parameters),
        returns="int" if _is_integer(subject) else "str",
        body=tuple(body),
        result=result,
    )


def function_name(subject: Subject) -> str:
    domain, form = subject.main.domain, subject.form
    first, second = (verb.base for verb in subject.verbs)
    names = {
        "count": f"count {domain.nouns}",
        "total": f"total {domain.number} of {domain.nouns}",
        "peak": f"highest {domain.number} of {domain.nouns}",
        "who": f"{domain.person} with highest {domain.number} of {domain.nouns}",
        "act": f"{first} {domain.nouns}",
        "act_top": f"{first} {domain.noun} with highest {domain.number}",
        "act_count": f"{first} and count {domain.nouns}",
        "move": f"set {domain.label} of {domain.nouns}",
        "act_check": f"{first} {domain.nouns} and check",
        "branch": f"{first} or {second} {domain.nouns}",
    }
    return spell(f"{names[form.goal]} by {' '.join(form.selection)}", "snake")


def _is_integer(subject: Subject) -> bool:
    if subject.form.goal == "act_top":
        return subject.main.shape.ids == "number"
    return subject.form.goal != "who"


def _name(style: ProgramStyle, parameter: Parameter) -> str:
    return style.names.get(parameter, _NAMES[parameter][0])


def _join(subject: Subject, style: ProgramStyle) -> list[str]:
    """Bind `people` to those whom the joined app puts into the group."""
    api = subject.joined
    if api is None:
        return []
    group = _name(style, "group")
    found = [f"if {access(api, 'label')} == {group}:", f"    people.append({access(api, 'person')})"]
    return [*log_in(api), "people = []", *for_each_row(api, found, ("person", "label"))]


def _condition(subject: Subject, style: ProgramStyle, asked: bool) -> str:
    """The test of a row; "" if the service filters."""
    tests: dict[Condition, str] = {
        "person": f"== {_name(style, 'person')}",
        "label": f"== {_name(style, 'label')}",
        "over": f"> {_name(style, 'over')}",
        "under": f"< {_name(style, 'under')}",
        "before": f"< {_name(style, 'before')}",
        "member": "in people",
        "other": "in people",
    }
    own = [each for each in subject.form.selection if not (asked and each in ("person", "label"))]
    return " and ".join(f"{access(subject.main, FIELDS[each])} {tests[each]}" for each in own)


def _filters(subject: Subject, style: ProgramStyle, asked: bool) -> dict[str, str]:
    own = [each for each in FILTERED if asked and each in subject.form.selection]
    return {subject.main.argument(subject.main.fields[each]): _name(style, each) for each in own}


def needed_fields(form: TaskForm) -> set[ItemField]:
    """The fields that a program for tasks of this form reads."""
    needs: set[ItemField] = {FIELDS[each] for each in form.selection}
    if form.goal in NUMERIC:
        needs.add("number")
    return needs | ({"person"} if form.goal == "who" else set())


def lacks_a_field(subject: Subject) -> bool:
    """Whether rows lack a field that the program reads."""
    return subject.main.shape.rows == "partial" and subject.main.hidden in needed_fields(subject.form)


def _guard(condition: str, body: list[str]) -> list[str]:
    return [f"if {condition}:", *indent(body)] if condition else body


def _select(subject: Subject, style: ProgramStyle, asked: bool) -> list[str]:
    """Bind `chosen` to the rows that the task means."""
    condition, filters = _condition(subject, style, asked), _filters(subject, style, asked)
    if style.loop == "filter" and condition:
        loop = for_each_row(subject.main, ["found.append(row)"], needed_fields(subject.form), filters)
        return ["found = []", *loop, f"chosen = [row for row in found if {condition}]"]
    hit = _guard(condition, ["chosen.append(row)"])
    return ["chosen = []", *for_each_row(subject.main, hit, needed_fields(subject.form), filters)]


def _stream(subject: Subject, style: ProgramStyle, asked: bool) -> list[str]:
    """Handle each row as it is read."""
    form, main = subject.form, subject.main
    if form.goal == "total":
        start, hit = "total = 0", [f"total += {access(main, 'number')}"]
    else:
        start, hit = "count = 0", ["count += 1"]
    if form.goal in WRITING:
        hit = [*_change_row(subject, style, subject.verbs[0]), *hit]
    loop = for_each_row(
        main,
        _guard(_condition(subject, style, asked), hit),
        needed_fields(subject.form),
        _filters(subject, style, asked),
    )
    return [start, *loop]


def _conclude(subject: Subject, style: ProgramStyle) -> tuple[list[str], str]:
    """What is done with `chosen`, and the result."""
    form, main, (first, second) = subject.form, subject.main, subject.verbs
    number = access(main, "number")
    best = [f"best = max(chosen, key=lambda row: {number})"]
    match form.goal:
        case "total":
            return [], f"sum({number} for row in chosen)"
        case "peak":
            return [], f"max({number} for row in chosen)"
        case "who":
            return best, access(main, "person", "best")
        case "act_top":
            return [*best, "chosen = [best]", *_change_all(subject, style, first)], access(main, "id", "best")
        case "act" | "act_count" | "move":
            return _change_all(subject, style, first), "len(chosen)"
        case "act_check":
            left = [f'if {access(main, "progress")} == "{main.domain.initial}":', "    left += 1"]
            again = ["left = 0", *for_each_row(main, left, _PROGRESS)]
            return [*_change_all(subject, style, first), *again], "left"
        case "branch":
            more = f"if len(chosen) > {_name(style, 'threshold')}:"
            do, instead = _change_all(subject, style, first), _change_all(subject, style, second)
            return [more, *indent(do), "else:", *indent(instead)], "len(chosen)"
    return [], "len(chosen)"


def _change_all(subject: Subject, style: ProgramStyle, verb: Verb) -> list[str]:
    main = subject.main
    if main.shape.write == "batch" and subject.form.goal != "move":
        ids = f"[{access(main, 'id')} for row in chosen]"
        return change(main, {"ids": ids}, verb)
    return ["for row in chosen:", *indent(_change_row(subject, style, verb))]


def _change_row(subject: Subject, style: ProgramStyle, verb: Verb) -> list[str]:
    main, identity = subject.main, access(subject.main, "id")
    if subject.form.goal == "move":
        label = main.argument(main.fields["label"])
        return change(main, {"id": identity, label: _name(style, "target")}, None)
    role: Literal["update", "act"] = "update" if main.shape.write == "patch" else "act"
    return change(main, {identity_argument(main, role): identity}, verb)
