"""The program that solves a task of `crud`, as a careful reader of the documents would write it; mistakes."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from random import Random
from typing import Any, Literal

import msgspec

from app.apis.naming import argument_name
from app.base.values import Offer
from trainer.lessons.experts import (
    Program,
    ProgramExpert,
    ProgramScript,
    plug_in,
    raised,
    signatures_of,
    skill_of,
    turn_of,
)
from trainer.worlds.generated.apis import RecordField, Role
from trainer.worlds.generated.crud import (
    SINGLE,
    CrudAsk,
    CrudEnvironment,
    CrudGoal,
    CrudPlan,
    draw_form,
    draw_values,
)
from trainer.worlds.generated.documents import SUPERVISOR
from trainer.worlds.generated.programs import (
    access,
    act,
    call,
    fields_of,
    for_each_row,
    identity,
    log_in,
    note_field,
    note_rows,
    note_token,
    rows_of,
    sentence,
    state_of,
    write,
)
from trainer.worlds.generated.words import CRUD_WORDS, spell
from trainer.worlds.generated.worlds import Values

_MEANT: dict[CrudGoal, str] = {
    "count": "all rows", "count_state": "these rows", "act_all": "all rows", "delete_state": "these rows",
}  # fmt: skip


Mistake = Literal["app", "word", "code", "slip"]  # the last one although it has read the document


def write_program(ask: CrudAsk) -> Program:
    body, result = _body(ask)
    kinds = {name: "int" if _field(ask, name) == "number" else "str" for name in ask.form.parameters}
    return Program(
        name=function_name(ask),
        parameters=tuple((parameter_name(ask, name), kind) for name, kind in kinds.items()),
        returns=_returns(ask),
        body=(*log_in(ask.main), *body),
        result=result,
    )


def function_name(ask: CrudAsk) -> str:
    form, domain, prose = ask.form, ask.collection.domain, ask.collection.prose
    by, verb = f"by {prose[form.by]}", ask.verb.base
    names = {
        "count": f"count {domain.nouns}",
        "count_state": f"count {domain.nouns} by {prose['state']}",
        "read": f"{prose[form.field]} of {domain.noun} {by}",
        "create": f"create {domain.noun}" + "".join(f" with {prose[field]}" for field in form.given),
        "change": f"change {prose[form.field]} of {domain.noun} {by}",
        "delete": f"delete {domain.noun} {by}",
        "act": f"{verb} {domain.noun} {by}",
        "act_all": f"{verb} all {domain.nouns}",
        "delete_state": f"delete {domain.nouns} by {prose['state']}",
        "info": f"{ask.main.words['version']} of {ask.main.name}",
    }
    return spell(names[form.goal], "snake")


def parameter_name(ask: CrudAsk, name: str) -> str:
    prose = ask.collection.prose
    if name == "new":
        return argument_name(spell(f"new {prose[ask.form.field]}", "snake"))
    return argument_name(spell(prose[_field(ask, name)], "snake"))


def _field(ask: CrudAsk, parameter: str) -> RecordField:
    """Which field a parameter is a value of."""
    return ask.form.field if parameter == "new" else msgspec.convert(parameter, RecordField)


def _returns(ask: CrudAsk) -> str:
    match ask.form.goal:
        case "read":
            return "int" if ask.form.field == "number" else "str"
        case "create" | "info":
            return "str"
        case "count" | "count_state" | "act_all" | "delete_state":
            return "int"
    return "int" if ask.main.shape.ids == "number" else "str"


def _body(ask: CrudAsk) -> tuple[list[str], str]:
    """The lines, and the result."""
    form, api, fields = ask.form, ask.main, ask.collection.fields
    key, identifier = identity(api), argument_name(api.id_name)
    match form.goal:
        case "info":
            return [], f'{_call(ask, "info")}["{api.wire("version")}"]'
        case "create":
            given = {fields[field]: parameter_name(ask, field) for field in form.written}
            return [write(api, "create", {}, given, at=ask.at)], parameter_name(ask, form.written[0])
        case "count" if api.shape.paging == "whole":
            return [f"rows = {rows_of(api, at=ask.at)}"], "len(rows)"
        case "count":
            return ["count = 0", *_each_row(ask, ["count += 1"])], "count"
        case "count_state":
            hit = [f"if {_is_in_state(ask, key)}:", "    count += 1"]
            return ["count = 0", *_each_row(ask, hit)], "count"
        case "act_all":
            return ["count = 0", *_each_row(ask, [act(api, key, ask.verb, at=ask.at), "count += 1"])], "count"
        case "delete_state":
            hit = [f"if {_is_in_state(ask, key)}:", f"    chosen.append({key})"]
            delete = _call(ask, "delete", {identifier: "each"})
            return ["chosen = []", *_each_row(ask, hit), "for each in chosen:", f"    {delete}"], "len(chosen)"
    value = key if form.goal != "read" else _value(ask, key)
    test = f"if {_access(ask, form.by)} == {parameter_name(ask, form.by)}:"
    find = ["found = None", *_each_row(ask, [test, f"    found = {value}"])]
    match form.goal:
        case "change":
            new = {fields[form.field]: parameter_name(ask, "new")}
            return [*find, write(api, "update", {identifier: "found"}, new, at=ask.at)], "found"
        case "delete":
            return [*find, _call(ask, "delete", {identifier: "found"})], "found"
        case "act":
            return [*find, act(api, "found", ask.verb, at=ask.at)], "found"
    return find, "found"


def _value(ask: CrudAsk, key: str) -> str:
    """What is read of a row."""
    field = ask.read or "state"
    if not ask.is_hidden:
        return _access(ask, field)
    return _access(ask, field, _call(ask, "show", {argument_name(ask.main.id_name): key}))


def _is_in_state(ask: CrudAsk, key: str) -> str:
    """Whether a row is in the state that is given: its name, or that of its flag."""
    state = parameter_name(ask, "state")
    return f"{fields_of(ask.main)}[{state}]" if ask.collection.has_flags else f"{_value(ask, key)} == {state}"


def _access(ask: CrudAsk, field: RecordField, row: str = "row") -> str:
    return access(ask.main, field, row, at=ask.at)


def _call(ask: CrudAsk, role: Role, arguments: Mapping[str, str] | None = None) -> str:
    verb = ask.verb if role == "act" else None
    return call(ask.main, role, arguments, at=ask.at, verb=verb)


def _each_row(ask: CrudAsk, body: list[str]) -> list[str]:
    return for_each_row(ask.main, body, at=ask.at)


def note_app(ask: CrudAsk) -> str:
    """Which app has what the task is about."""
    if ask.form.goal == "info":
        return f"It is about apis.{ask.main.name}."
    return f"The {ask.collection.described.many} are in apis.{ask.main.name}."


def note_plan(ask: CrudAsk, values: Values) -> str:
    """How to get at the rows, what each detail of the task is called there, and what is called."""
    return sentence([*_parts(ask, values)])


def _parts(ask: CrudAsk, values: Values) -> Iterator[str]:
    form, api, fields = ask.form, ask.main, ask.collection.fields
    rows = f", {note_rows(api, at=ask.at)}" if ask.reads_rows else ""
    pages = ", page by page" if rows and api.shape.paging != "whole" else ""
    yield f"here {note_token(api)}{rows}{pages}"
    if form.by in values and form.goal != "create":
        yield f"{values[form.by]} is {note_field(api, fields[form.by], 'rows')}"
    read = api.route("show", ask.at).python if ask.is_hidden else "rows"
    if "state" in values:
        yield f"{values['state']} is {note_field(api, fields.get('state', 'a flag'), read)}"
    match form.goal:
        case "info":
            yield f"I read {api.wire('version')} in {api.route('info').python}"
        case "read":
            yield f"I read {note_field(api, fields[form.field], read)}"
        case "count" | "count_state":
            yield f"I count {_MEANT[form.goal]}"
    if ask.writes is not None:
        verb = ask.verb if ask.writes == "act" else None
        details = ", ".join(_set(ask, values))
        given = f" with {details}" if details else ""
        meant = f" for {_MEANT[form.goal]}" if form.goal in _MEANT else ""
        yield f"I call {api.route(ask.writes, ask.at, verb).python}{given}{meant}"


def _set(ask: CrudAsk, values: Values) -> Iterator[str]:
    """The fields that are written."""
    form, fields = ask.form, ask.collection.fields
    match form.goal:
        case "create":
            for name in form.written:
                yield f"{fields[name]} {values[name]}"
        case "change":
            yield f"{fields[form.field]} {values['new']}"
        case "act" | "act_all" if ask.acts_by_update:
            yield "{} {}".format(*state_of(ask.main, ask.verb, at=ask.at))


def looked_up(ask: CrudAsk) -> str:
    """The operation whose line among the signatures does not tell enough, if any."""
    if ask.reads_rows:
        return ask.main.route("list", ask.at).python
    wrapped = ask.main.shape.body == "wrapped" and ask.form.goal == "create"
    return ask.main.route("create", ask.at).python if wrapped else ""


def look(ask: CrudAsk, operation: str) -> str:
    """Code that shows what an operation takes or returns; none without an operation."""
    if not operation:
        return ""
    part = '["response_schemas"]["success"]' if ask.reads_rows else '["parameters"]'
    return f'print(apis.api_docs.show_api_doc("{ask.main.name}", "{operation}"){part})'


def misnamed(ask: CrudAsk, rng: Random) -> list[str]:
    """The operation under one or two names that others give it, or that the description of the app suggests."""
    collection, words = ask.collection, ask.main.words
    if ask.reads_rows:
        kind, called, described = "list", collection.called.many, collection.described.many
    else:
        kind, called, described = "create", collection.called.one, collection.described.one
    known = {route.python for route in ask.main.routes}
    verbs = [spell(f"{word} {called}", "snake") for word in CRUD_WORDS[kind] if word != words[kind]]
    wrong = [rng.choice([name for name in verbs if name not in known])]
    suggested = spell(f"{words[kind]} {described}", "snake")
    if suggested not in known:
        wrong.append(suggested)
    return rng.sample(wrong, rng.randint(1, len(wrong)))


def beliefs(ask: CrudAsk) -> Iterator[CrudAsk]:
    """What is asked, with one mistake about its API that an exception shows."""
    shape = ask.main.shape
    if shape.auth == "key":
        yield ask.of(ask.main.in_shape("auth", "open"))
    for name in _other_words(ask, "info") if ask.form.goal == "info" else ():
        yield ask.of(ask.main.with_word("info", name))
    if not ask.reads_rows or ask.form.goal == "count":
        return
    if shape.envelope == "bare":
        yield ask.of(ask.main.in_shape("envelope", "named"))
    elif shape.paging == "whole":
        yield ask.of(ask.main.in_shape("envelope", "bare"))
    if ask.form.goal in SINGLE and ask.form.by == "title":
        for words in _other_words(ask, "title"):
            yield ask.of(ask.main.renamed("title", words, at=ask.at))


def _other_words(ask: CrudAsk, kind: str) -> list[str]:
    """The names that the makers of the API could have chosen, and did not; nor has any field one of them."""
    taken = {ask.main.words[kind], *ask.collection.prose.values(), *ask.collection.domain.distractors}
    return [words for words in dict.fromkeys(CRUD_WORDS[kind]) if words not in taken]


class CrudScript(ProgramScript):
    def __init__(self, plan: CrudPlan, index: int, offers: Sequence[Offer], **habits: Any) -> None:
        self._ask, self._has_passwords = plan.ask, plan.has_passwords
        super().__init__(plan, index, write_program(self._ask), offers, **habits)

    def solve(self) -> Generator[str, str, None]:
        wrong = list(beliefs(self._ask))
        mistake = self._mistake(wrong)
        yield from self._find_app(mistake)
        if mistake == "code":
            code = self.attempt(write_program(self._rng.choice(wrong)))
            if not raised((yield self.say("try", code))):
                return
        yield from self._look_up(mistake)
        if mistake == "slip" and not raised((yield self._solution(self._rng.choice(wrong)))):
            return
        promised = self._ask.of(self._ask.main.in_shape("rows", "full"))
        if self._is_surprised and not raised((yield self._solution(promised))):
            return
        solution = self._solution(self._ask)
        if raised((yield solution)):
            yield solution

    def _find_app(self, mistake: Mistake | None) -> Generator[str, str, None]:
        yield from self.ask_for_apps()
        if mistake == "app":
            yield self.say("try", signatures_of(self._ask.collection.resource))
        apps = [*([SUPERVISOR] if self._has_passwords else []), self._ask.main.name]
        yield from self.read(note_app(self._ask), *apps)

    def _look_up(self, mistake: Mistake | None) -> Generator[str, str, None]:
        if mistake == "word":
            for name in misnamed(self._ask, self._rng):
                yield self.say("look", look(self._ask, name))
            yield self.say("again", self._look)
        elif self._look:
            yield self.say("look", self._look)

    def _solution(self, ask: CrudAsk) -> str:
        program = write_program(ask)
        if looks := self.look_ups(program):
            return self.say("look", looks)
        return turn_of(note_plan(ask, self._given), self.code(program))

    def _mistake(self, beliefs: Sequence[CrudAsk]) -> Mistake | None:
        """One that something refuses."""
        possible: list[Mistake] = []
        if self._ask.form.goal != "info":
            possible.append("app")
        if self._look:
            possible += ["word", "word"]  # what is wrong most often
        if beliefs:
            possible += ["code", "slip"]
        wants = self._mistaken and not self._is_surprised  # one mistake is enough
        return self._rng.choice(possible) if wants and possible else None

    @property
    def _is_surprised(self) -> bool:
        """Whether rows lack what the documents promise."""
        return self._ask.is_hidden and self._ask.main.shape.rows == "undocumented"

    @property
    def _look(self) -> str:
        return look(self._ask, looked_up(self._ask))


class CrudExpert(ProgramExpert):
    """It errs more often than that of the gym: real documents are long."""

    scripts = CrudScript

    def app_words(self, plan: CrudPlan) -> str:
        return plan.main.name if plan.form.goal == "info" else plan.ask.collection.domain.nouns

    def unfitting_skills(self, plan: CrudPlan, count: int, rng: Random) -> Sequence[Offer]:
        found: dict[str, Offer] = {}
        own = write_program(plan.ask).name
        while len(found) < count:
            offer = _other_skill(plan, rng)
            if offer.name != own:
                found[offer.name] = offer
        return list(found.values())


def _other_skill(plan: CrudPlan, rng: Random) -> Offer:
    """For another form of task with the same records."""
    form, verb = draw_form(plan.ask.collection, rng), rng.choice(plan.ask.collection.verbs)
    ask = msgspec.structs.replace(plan.ask, form=form, verb=verb)
    values = draw_values(ask, plan.key.pool("domains"), plan.key.random("values"))
    return skill_of(msgspec.structs.replace(plan, ask=ask, values=values), write_program(ask), rng)


load_expert = plug_in("crud", CrudExpert, CrudEnvironment)
