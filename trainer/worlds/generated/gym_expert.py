"""The program that solves a task of the gym, as a careful reader of the documents would write it, and its slips.

It is put together from the form of the task, the shapes of the APIs and a style, so every combination has one.
Slips are what a small model notes wrongly although it has read the documents: those that policies make in exams.

Names in notes stand as in the text that they are taken from, with a space or a dot before them and without a
capital: a small model copies tokens, not letters.
"""

import re
from collections.abc import Generator, Iterator, Sequence
from random import Random
from typing import Any, Literal

import msgspec

from app.apis.naming import argument_name
from app.base.values import Offer
from trainer.lessons.experts import (
    Program,
    ProgramExpert,
    ProgramScript,
    indent,
    plug_in,
    raised,
    skill_of,
    turn_of,
)
from trainer.worlds.generated.apis import GymApi, RecordField
from trainer.worlds.generated.documents import FILTERED, SUPERVISOR, record_schema, rows_at
from trainer.worlds.generated.gym import (
    ACTING,
    FIELDS,
    JOINED,
    NUMERIC,
    PARAMETERS,
    RANKED,
    WRITING,
    Condition,
    GymAsk,
    GymEnvironment,
    GymPlan,
    Parameter,
    TaskForm,
    draw_values,
    forms_of,
)
from trainer.worlds.generated.programs import (
    access,
    act,
    bind_rows,
    call,
    for_each_row,
    identity,
    log_in,
    note_field,
    note_rows,
    note_token,
    sentence,
    write,
)
from trainer.worlds.generated.words import GYM_WORDS, Verb, other_state_field, spell
from trainer.worlds.generated.worlds import Values

_STREAMED = ("count", "total", "act", "act_count", "move")  # goals that need no list of all rows
_INTEGERS = ("over", "under", "threshold")
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
_GUESSES: dict[RecordField, tuple[str, ...]] = {
    "person": ("name", "owner", "user"),
    "label": ("label", "type", "category"),
    "number": ("number", "value", "amount"),
    "date": ("date", "day", "time"),
}
_READ_ONLY: tuple[RecordField, ...] = ("person", "number", "date")  # updates do not take them

_KEYS = re.compile(r"\bkeys are (.+)\Z")
_UNREAD = 0.3  # of its mistakes: programs written before it reads how lists look


class ProgramStyle(msgspec.Struct, frozen=True, kw_only=True):
    """How an expert writes: a habit, the same for all tasks of a scenario."""

    loop: Literal["gather", "stream", "filter"] = "gather"  # keep matches; act at once; keep all, then filter
    asks: bool = False  # lets the service filter where it can
    names: dict[Parameter, str] = {}


def draw_style(rng: Random) -> ProgramStyle:
    """Mostly the usual one: a small model mixes styles that it meets equally often."""
    names = {parameter: rng.choices(names, _USUAL[: len(names)])[0] for parameter, names in _NAMES.items()}
    loop = rng.choices(_LOOPS, _USUAL)[0]
    return ProgramStyle(loop=loop, asks=rng.random() < _ASKS, names=names)


def write_program(ask: GymAsk, style: ProgramStyle) -> Program:
    form, main = ask.form, ask.main
    body = [*_join(ask, style), *log_in(main)]
    asked = style.asks and main.shape.filters == "equal"
    streams = style.loop == "stream" and form.goal in _STREAMED and main.shape.write != "batch"
    if streams and not (
        asked and form.goal == "move"
    ):  # a list that is changed must not be filtered by the change
        body += _stream(ask, style, asked)
        result = "total" if form.goal == "total" else "count"
    else:
        body += _select(ask, style, asked)
        done, result = _conclude(ask, style)
        body += done
    is_integer = main.shape.ids == "number" if form.goal == "act_top" else form.goal != "who"
    return Program(
        name=function_name(ask),
        parameters=tuple((_name(style, each), "int" if each in _INTEGERS else "str") for each in form.parameters),
        returns="int" if is_integer else "str",
        body=tuple(body),
        result=result,
    )


def function_name(ask: GymAsk) -> str:
    domain, form = ask.main.domain, ask.form
    first, second = (verb.base for verb in ask.verbs)
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


def _name(style: ProgramStyle, parameter: Parameter) -> str:
    return style.names.get(parameter, _NAMES[parameter][0])


def _join(ask: GymAsk, style: ProgramStyle) -> list[str]:
    """Bind `people` to those whom the joined app puts into the group."""
    api = ask.joined
    if api is None:
        return []
    group = _name(style, "group")
    found = [f"if {access(api, 'label')} == {group}:", f"    people.append({access(api, 'person')})"]
    return [*log_in(api), "people = []", *for_each_row(api, found, ("person", "label"))]


def _condition(ask: GymAsk, style: ProgramStyle, asked: bool) -> str:
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
    own = [each for each in ask.form.selection if not (asked and each in ("person", "label"))]
    return " and ".join(f"{access(ask.main, FIELDS[each])} {tests[each]}" for each in own)


def _filters(ask: GymAsk, style: ProgramStyle, asked: bool) -> dict[str, str]:
    own = [each for each in FILTERED if asked and each in ask.form.selection]
    return {argument_name(ask.main.fields[each]): _name(style, each) for each in own}


def lacks_a_field(ask: GymAsk) -> bool:
    """Whether rows lack a field that the program reads."""
    return ask.main.shape.rows == "partial" and ask.main.hidden in ask.form.needs


def _guard(condition: str, body: list[str]) -> list[str]:
    return [f"if {condition}:", *indent(body)] if condition else body


def _select(ask: GymAsk, style: ProgramStyle, asked: bool) -> list[str]:
    """Bind `chosen` to the rows that the task means."""
    condition, filters = _condition(ask, style, asked), _filters(ask, style, asked)
    if style.loop == "filter" and condition:
        loop = for_each_row(ask.main, ["found.append(row)"], ask.form.needs, filters)
        return ["found = []", *loop, f"chosen = [row for row in found if {condition}]"]
    hit = _guard(condition, ["chosen.append(row)"])
    return ["chosen = []", *for_each_row(ask.main, hit, ask.form.needs, filters)]


def _stream(ask: GymAsk, style: ProgramStyle, asked: bool) -> list[str]:
    """Handle each row as it is read."""
    form, main = ask.form, ask.main
    if form.goal == "total":
        start, hit = "total = 0", [f"total += {access(main, 'number')}"]
    else:
        start, hit = "count = 0", ["count += 1"]
    if form.goal in WRITING:
        hit = [*_change_row(ask, style, ask.verbs[0]), *hit]
    loop = for_each_row(
        main, _guard(_condition(ask, style, asked), hit), ask.form.needs, _filters(ask, style, asked)
    )
    return [start, *loop]


def _conclude(ask: GymAsk, style: ProgramStyle) -> tuple[list[str], str]:
    """What is done with `chosen`, and the result."""
    form, main, (first, second) = ask.form, ask.main, ask.verbs
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
            return [*best, "chosen = [best]", *_change_all(ask, style, first)], identity(main, "best")
        case "act" | "act_count" | "move":
            return _change_all(ask, style, first), "len(chosen)"
        case "act_check":
            left = [f'if {access(main, "state")} == "{main.domain.initial}":', "    left += 1"]
            again = ["left = 0", *for_each_row(main, left, ["state"])]
            return [*_change_all(ask, style, first), *again], "left"
        case "branch":
            more = f"if len(chosen) > {_name(style, 'threshold')}:"
            do, instead = _change_all(ask, style, first), _change_all(ask, style, second)
            return [more, *indent(do), "else:", *indent(instead)], "len(chosen)"
    return [], "len(chosen)"


def _change_all(ask: GymAsk, style: ProgramStyle, verb: Verb) -> list[str]:
    main = ask.main
    if main.shape.write == "batch" and ask.form.goal != "move":
        return _until_done(main, call(main, "act", {"ids": f"[{identity(main)} for row in chosen]"}, verb=verb))
    return ["for row in chosen:", *indent(_change_row(ask, style, verb))]


def _change_row(ask: GymAsk, style: ProgramStyle, verb: Verb) -> list[str]:
    main = ask.main
    if ask.form.goal != "move":
        return _until_done(main, act(main, identity(main), verb))
    label = {main.fields["label"]: _name(style, "target")}
    return _until_done(main, write(main, "update", {main.id_parameter: identity(main)}, label))


def _until_done(api: GymApi, change: str) -> list[str]:
    if api.shape.errors == "soft":
        return [f'while not {change}["{api.wire("ok")}"]:', "    time.sleep(1)"]
    return [change]


def note_apps(ask: GymAsk) -> str:
    """Which app has what the task is about, and whom."""
    return sentence([f"the {api.domain.nouns} are in apis.{api.name}" for api in ask.apis])


def note_fields(ask: GymAsk, values: Values) -> str:
    """How to get at the rows, what they have, and what each detail of the task is called there.

    A small model does not see that a field is absent unless it has just listed what is there.
    """
    said = []
    for api in ask.apis:
        place = "here" if len(ask.apis) == 1 else f"in apis.{api.name}"
        again = ", a 429 is tried again" if api.shape.errors == "limited" else ""
        said.append(f"{place} {note_token(api)}, {note_rows(api)}{again}, each has {_row(api)}")
    return sentence([*said, *_details(ask, values)])


def _row(api: GymApi) -> str:
    """The names of the fields of a row, in its order."""
    fields = record_schema(api, api.collection, whole=False)["properties"]
    group = api.wire("group") if api.shape.nesting == "grouped" else ""
    inner = fields.pop(group)["properties"] if group else {}
    return ", ".join(fields) + (f" and {group} with {', '.join(inner)}" if group else "")


def _details(ask: GymAsk, values: Values) -> Iterator[str]:
    main, joined, goal = ask.main, ask.joined, ask.form.goal
    for condition in ask.form.selection:
        value = values[PARAMETERS[condition]]
        if joined is not None and condition in JOINED:
            yield f"{value} is {_field(joined, 'label')} of apis.{joined.name}"
            yield f"{_field(joined, 'person')} there is {_field(main, 'person')} here"
        else:
            yield f"{value} is {_field(main, FIELDS[condition])}"
    if goal in NUMERIC:
        yield f"the number is {_field(main, 'number')}"
    if goal == "who":
        yield f"the name is {_field(main, 'person')}"
    if goal in WRITING:
        again = " until it is done" if main.shape.errors == "soft" else ""
        yield f"I call {_note_change(ask, values)}{again}"
    if goal == "act_check":
        yield f"then I count all rows where {main.fields['state']} is {main.domain.initial}"


def _field(api: GymApi, field: RecordField) -> str:
    """What a field is called, and what has it: rows, or only what the look-up of one record returns."""
    place = api.route("show").python if api.shape.rows == "partial" and api.hidden == field else "rows"
    inner = f".{api.wire('inner')}" if api.shape.nesting == "object" and field == "person" else ""
    return note_field(api, f"{api.fields[field]}{inner}", place)


def _note_change(ask: GymAsk, values: Values) -> str:
    """The operation, and what it sets."""
    main, goal = ask.main, ask.form.goal
    verbs = ask.verbs if goal == "branch" else ask.verbs[:1]
    if goal == "move":
        return f"{main.route('update').python} with {main.fields['label']} {values['target']}"
    if main.shape.write == "patch":
        states = " or ".join(verb.done for verb in verbs)
        return f"{main.route('update').python} with {main.fields['state']} {states}"
    return " or ".join(main.route("act", verb=verb).python for verb in verbs)


def mistaken(ask: GymAsk, style: ProgramStyle, rng: Random) -> GymAsk:
    """The ask with one mistake about its main API."""
    return ask.of(rng.choice(list(_beliefs(ask, style, rng))))


def _beliefs(ask: GymAsk, style: ProgramStyle, rng: Random) -> Iterator[GymApi]:
    """The API with another name of its list, and as far as its shape allows: without pages from 1, and so on."""
    api, form, shape = ask.main, ask.form, ask.main.shape
    others = [words for words in GYM_WORDS["list"] if words != api.words["list"]]
    yield api.with_word("list", rng.choice(others))
    if shape.paging == "page" and api.first_page == 1:
        yield msgspec.structs.replace(api, first_page=0)
    if shape.write == "patch" and form.goal in ACTING:
        yield api.renamed("state", other_state_field(api.domain, rng))
    for axis, value in _simpler_shapes(ask, style).items():
        yield api.in_shape(axis, value)


def _simpler_shapes(ask: GymAsk, style: ProgramStyle) -> dict[str, str]:
    """Values of axes that would need less code."""
    shape = ask.main.shape
    simpler: dict[str, str] = {}
    if shape.nesting == "grouped":  # an object in place of a name would go unnoticed
        simpler["nesting"] = "flat"
    reads = style.loop != "filter" and not style.asks  # others would take any answer for rows, page by page
    pages = shape.paging in ("page", "offset") and reads
    if shape.envelope != "bare" and (pages or shape.paging == "whole"):
        simpler["envelope"] = "bare"
    if shape.errors == "limited" and shape.paging != "whole":
        simpler["errors"] = "strict"
    if shape.auth != "open":
        simpler["auth"] = "open"
    if lacks_a_field(ask):
        simpler["rows"] = "full"
    return simpler


class Slip(msgspec.Struct, frozen=True, kw_only=True):
    ask: GymAsk  # as it is noted and programmed first
    correction: str  # a clause
    look: str = ""  # code that shows what is wrong, where the error does not


def slips(ask: GymAsk, values: Values, style: ProgramStyle, rng: Random) -> list[Slip]:
    """All that an exception shows, where this API allows them."""
    found = [*_shapes(ask, style), *_names(ask, rng), *_states(ask, rng), *_labels(ask, values, style)]
    right = write_program(ask, style)
    return [each for each in found if write_program(each.ask, style) != right]


def _shapes(ask: GymAsk, style: ProgramStyle) -> Iterator[Slip]:
    """Rows that are taken for whole, flat or bare, and a token that is forgotten."""
    api = ask.main
    corrections = {
        "rows": f"only {api.route('show').python} has {api.fields[api.hidden]}",
        "nesting": f"the fields of a row are in {api.wire('group')}",
        "envelope": f"the rows are in {'.'.join(rows_at(api, api.collection))}",
        "auth": f"a token is needed: {note_token(api)}",
    }
    for axis, value in _simpler_shapes(ask, style).items():
        if axis in corrections:
            yield Slip(ask=ask.of(api.in_shape(axis, value)), correction=corrections[axis])


def _names(ask: GymAsk, rng: Random) -> Iterator[Slip]:
    """A field under a name that nobody gave it."""
    api = ask.main
    known = {*api.collection.prose.values(), *api.domain.distractors, "id"}
    for field in sorted(ask.form.needs & _GUESSES.keys()):
        words = api.collection.prose[field]
        guess = rng.choice([each for each in (words.split()[-1], *_GUESSES[field]) if each not in known])
        yield Slip(ask=ask.of(api.renamed(field, guess)), correction=f"the field is {api.fields[field]}")


def _states(ask: GymAsk, rng: Random) -> Iterator[Slip]:
    """A state that is set in another field."""
    api, goal = ask.main, ask.form.goal
    if api.shape.write == "patch" and goal in ACTING:
        done = " or ".join(verb.done for verb in ask.verbs[: 2 if goal == "branch" else 1])
        wrong = api.renamed("state", api.collection.prose[rng.choice(_READ_ONLY)])
        yield Slip(ask=ask.of(wrong), correction=f"{done} is a value of {api.fields['state']}")


def _labels(ask: GymAsk, values: Values, style: ProgramStyle) -> Iterator[Slip]:
    """A label that is looked for in a field which never has it."""
    api, form = ask.main, ask.form
    asked = style.asks and api.shape.filters == "equal"
    is_hidden = api.shape.rows == "partial" and api.hidden == "label"
    if "label" in form.selection and form.goal in RANKED and not asked and not is_hidden:
        wrong = api.renamed("label", next(iter(api.domain.distractors), api.domain.state))
        look = "\n".join([*log_in(api), *bind_rows(api), "print(rows[:2])"])
        correction = f"{values['label']} is {api.fields['label']}"
        yield Slip(ask=ask.of(wrong), correction=correction, look=look)


class GymScript(ProgramScript):
    def __init__(self, plan: GymPlan, index: int, offers: Sequence[Offer], **habits: Any) -> None:
        self._ask = plan.ask
        self._style = draw_style(plan.key.random("style"))
        right = write_program(self._ask, self._style)
        super().__init__(plan, index, right, offers, **habits)

    def solve(self) -> Generator[str, str, None]:
        yield from self.ask_for_apps()
        names = [api.name for api in self._ask.apis]
        yield from self.read(note_apps(self._ask), SUPERVISOR, *names)
        slip = None
        if self._mistaken and self._rng.random() >= _UNREAD:
            found = slips(self._ask, self._given, self._style, self._rng)
            slip = self._rng.choice(found) if found else None
        if self._mistaken and slip is None:
            wrong = write_program(mistaken(self._ask, self._style, self._rng), self._style)
            if not raised((yield self.say("try", self.attempt(wrong)))):
                return
        noted = self._ask if slip is None else slip.ask
        yield self.say("look", "\n".join(_shape(api) for api in noted.apis))
        solution = self._solution(noted)
        if slip is not None:
            error = yield solution
            if not raised(error):
                return
            if slip.look:
                yield self.say("rows", slip.look)
            keys = _KEYS.search(error)  # its hint lists them all: what is absent decides
            said = f"The keys are {keys[1]}: {slip.correction}." if keys else f"So {slip.correction}."
            solution = turn_of(said, self.code(self._right))
        if raised((yield solution)):
            yield solution

    def _solution(self, ask: GymAsk) -> str:
        note = note_fields(ask, self._given)
        return turn_of(note, self.code(write_program(ask, self._style)))


def _shape(api: GymApi) -> str:
    """Code that shows what a list returns: its line does not tell whether a field is an object."""
    answer = '["response_schemas"]["success"]'
    return f'print(apis.api_docs.show_api_doc("{api.name}", "{api.route("list").python}"){answer})'


class GymExpert(ProgramExpert):
    scripts = GymScript

    def app_words(self, plan: GymPlan) -> str:
        return plan.main.name

    def unfitting_skills(self, plan: GymPlan, count: int, rng: Random) -> Sequence[Offer]:
        joined = plan.form.joined
        forms = [each for each in forms_of("train") if each != plan.form and each.joined in (None, joined)]
        return [_other_skill(plan, form, rng) for form in rng.sample(forms, count)]


def _other_skill(plan: GymPlan, form: TaskForm, rng: Random) -> Offer:
    """For another form of task."""
    ask = msgspec.structs.replace(plan.ask, form=form, joined=plan.ask.joined if form.joined else None)
    values, _ = draw_values(ask, plan.key.pool("domains"), plan.key.random("values"))
    other = msgspec.structs.replace(plan, ask=ask, values=values)
    return skill_of(other, write_program(ask, draw_style(rng)), rng)


load_expert = plug_in("gym", GymExpert, GymEnvironment)
