"""The program that solves a task of the crud environment, as a careful reader of the documents would write it."""

from collections.abc import Mapping

import msgspec

from app.apis.names import argument_name
from trainer.worlds.generated.api_calls import indent
from trainer.worlds.generated.crud_apis import CrudApi, Role
from trainer.worlds.generated.crud_collections import Collection, RecordField
from trainer.worlds.generated.crud_plans import CrudForm, CrudPlan
from trainer.worlds.generated.domains import Verb
from trainer.worlds.generated.expert_programs import Program
from trainer.worlds.generated.spelling import spell


class CrudSubject(msgspec.Struct, frozen=True, kw_only=True):
    """What a program is written for: the API as its author believes it to be."""

    form: CrudForm
    api: CrudApi
    at: int  # the place of the collection
    verb: Verb

    @property
    def collection(self) -> Collection:
        return self.api.collections[self.at]

    def with_title(self, words: str) -> "CrudSubject":
        """The subject, if titles had another name."""
        named = msgspec.structs.replace(self.collection, words={**self.collection.words, "title": words})
        every = tuple(named if at == self.at else each for at, each in enumerate(self.api.collections))
        return msgspec.structs.replace(self, api=msgspec.structs.replace(self.api, collections=every))

    @property
    def reads_rows(self) -> bool:
        return self.form.goal not in ("create", "info")

    @property
    def read(self) -> RecordField | None:
        """The field of rows that the task is about, besides the one that names a record."""
        if self.form.goal in ("count_state", "delete_state"):
            return "state"
        return self.form.field if self.form.goal == "read" else None

    @property
    def is_hidden(self) -> bool:
        """Whether rows of lists lack what the task is about."""
        return self.api.shape.lacks_field and self.read == self.collection.hidden

    @property
    def acts_by_update(self) -> bool:
        return self.api.shape.act == "field"

    @property
    def writes(self) -> Role | None:
        """The operation that changes something."""
        match self.form.goal:
            case "create":
                return "create"
            case "change":
                return "update"
            case "delete" | "delete_state":
                return "delete"
            case "act" | "act_all":
                return "update" if self.acts_by_update else "act"
        return None


def subject_of(plan: CrudPlan) -> CrudSubject:
    return CrudSubject(form=plan.form, api=plan.main, at=plan.collection, verb=plan.verb)


def write_program(subject: CrudSubject) -> Program:
    body, result = _body(subject)
    kinds = {name: "int" if _field(subject, name) == "number" else "str" for name in subject.form.parameters}
    return Program(
        name=function_name(subject),
        parameters=tuple((parameter_name(subject, name), kind) for name, kind in kinds.items()),
        returns=_returns(subject),
        body=(*_log_in(subject), *body),
        result=result,
    )


def function_name(subject: CrudSubject) -> str:
    form, domain, prose = subject.form, subject.collection.domain, subject.collection.prose
    by, verb = f"by {prose[form.by]}", subject.verb.base
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
        "info": f"{subject.api.words['version']} of {subject.api.name}",
    }
    return spell(names[form.goal], "snake")


def parameter_name(subject: CrudSubject, name: str) -> str:
    prose = subject.collection.prose
    if name == "new":
        return argument_name(spell(f"new {prose[subject.form.field]}", "snake"))
    return argument_name(spell(prose[_field(subject, name)], "snake"))


def _field(subject: CrudSubject, parameter: str) -> RecordField:
    """Which field a parameter is a value of."""
    return subject.form.field if parameter == "new" else msgspec.convert(parameter, RecordField)


def _returns(subject: CrudSubject) -> str:
    match subject.form.goal:
        case "read":
            return "int" if subject.form.field == "number" else "str"
        case "create" | "info":
            return "str"
        case "count" | "count_state" | "act_all" | "delete_state":
            return "int"
    return "int" if subject.api.shape.ids == "number" else "str"


def _log_in(subject: CrudSubject) -> list[str]:
    if subject.api.shape.auth == "open":
        return []
    return [f'token = apis.supervisor.show_passwords()["{subject.api.name}"]']


def _body(subject: CrudSubject) -> tuple[list[str], str]:
    """The lines, and the result."""
    form, api, fields = subject.form, subject.api, subject.collection.fields
    key, identity = _key(subject), argument_name(api.id_name)
    match form.goal:
        case "info":
            return [], f'{call(subject, "info")}["{api.wire("version")}"]'
        case "create":
            given = {fields[field]: parameter_name(subject, field) for field in form.written}
            return [_writing(subject, "create", {}, given)], parameter_name(subject, form.written[0])
        case "count" if api.shape.paging == "whole":
            return [f"rows = {_rows(subject)}"], "len(rows)"
        case "count":
            return ["count = 0", *for_each_row(subject, ["count += 1"])], "count"
        case "count_state":
            hit = [f"if {_is_in_state(subject, key)}:", "    count += 1"]
            return ["count = 0", *for_each_row(subject, hit)], "count"
        case "act_all":
            return ["count = 0", *for_each_row(subject, [_act(subject, key), "count += 1"])], "count"
        case "delete_state":
            hit = [f"if {_is_in_state(subject, key)}:", f"    chosen.append({key})"]
            delete = call(subject, "delete", {identity: "each"})
            return [
                "chosen = []",
                *for_each_row(subject, hit),
                "for each in chosen:",
                f"    {delete}",
            ], "len(chosen)"
    value = key if form.goal != "read" else _value(subject, key)
    test = f"if {access(subject, form.by)} == {parameter_name(subject, form.by)}:"
    find = ["found = None", *for_each_row(subject, [test, f"    found = {value}"])]
    match form.goal:
        case "change":
            new = {fields[form.field]: parameter_name(subject, "new")}
            return [*find, _writing(subject, "update", {identity: "found"}, new)], "found"
        case "delete":
            return [*find, call(subject, "delete", {identity: "found"})], "found"
        case "act":
            return [*find, _act(subject, "found")], "found"
    return find, "found"


def _key(subject: CrudSubject) -> str:
    """The id of a row."""
    return "key" if subject.api.shape.is_keyed else f'row["{subject.api.id_name}"]'


def _value(subject: CrudSubject, key: str) -> str:
    """What is read of a row."""
    field = subject.read or "state"
    if not subject.is_hidden:
        return access(subject, field)
    return access(subject, field, call(subject, "show", {argument_name(subject.api.id_name): key}))


def _is_in_state(subject: CrudSubject, key: str) -> str:
    """Whether a row is in the state that is given: its name, or that of its flag."""
    state = parameter_name(subject, "state")
    return f"{_fields(subject)}[{state}]" if subject.collection.has_flags else f"{_value(subject, key)} == {state}"


def access(subject: CrudSubject, field: RecordField, row: str = "row") -> str:
    """The value of a field of a row."""
    return f'{_fields(subject, row)}["{subject.collection.fields[field]}"]'


def _fields(subject: CrudSubject, row: str = "row") -> str:
    """What has the fields of a row."""
    return f'{row}["{subject.api.wire("group")}"]' if subject.api.shape.nesting == "grouped" else row


def call(subject: CrudSubject, role: Role, arguments: Mapping[str, str] | None = None) -> str:
    """A call with these arguments, as expressions by Python name, and the key of the app."""
    api, given = subject.api, dict(arguments or {})
    if api.shape.auth == "key":
        given = {argument_name(api.words["header"]): "token", **given}
    listed = ", ".join(f"{name}={value}" for name, value in given.items())
    verb = subject.verb if role == "act" else None
    return f"apis.{api.name}.{api.route(role, subject.at, verb).python}({listed})"


def _act(subject: CrudSubject, identity: str) -> str:
    target = {argument_name(subject.api.id_name): identity}
    if subject.acts_by_update:
        field, value = state_of(subject)
        return _writing(subject, "update", target, {field: str(value) if value is True else f'"{value}"'})
    return call(subject, "act", target)


def state_of(subject: CrudSubject) -> tuple[str, str | bool]:
    """The field that an update sets for the task's verb, and its value."""
    done = subject.verb.done
    return (done, True) if subject.collection.has_flags else (subject.collection.fields["state"], done)


def _writing(subject: CrudSubject, role: Role, target: Mapping[str, str], given: Mapping[str, str]) -> str:
    """A call that writes fields, expressions by wire name, to a record."""
    if subject.api.shape.body == "flat":
        return call(subject, role, {**target, **{argument_name(name): value for name, value in given.items()}})
    whole = ", ".join(f'"{name}": {value}' for name, value in given.items())
    return call(subject, role, {**target, argument_name(subject.collection.singular): f"{{{whole}}}"})


def where_rows_are(subject: CrudSubject) -> str:
    """The key that leads to the rows of a list's answer, if any."""
    match subject.api.shape.listing:
        case "named" | "named_keyed":
            return subject.collection.resource
        case "data":
            return subject.api.wire("data")
    return ""


def _rows(subject: CrudSubject, arguments: Mapping[str, str] | None = None) -> str:
    key = where_rows_are(subject)
    return call(subject, "list", arguments) + (f'["{key}"]' if key else "")


def for_each_row(subject: CrudSubject, body: list[str]) -> list[str]:
    """Code that executes `body` for every `row`; where ids are keys, each is `key`."""
    if subject.api.shape.is_keyed:
        return [f"for key, row in {_rows(subject)}.items():", *indent(body)]
    if subject.api.shape.paging == "whole":
        return [f"for row in {_rows(subject)}:", *indent(body)]
    page = _rows(subject, {argument_name(subject.api.wire("page")): "page"})
    loop = ["for row in rows:", *indent(body), "page += 1"]
    return ["page = 1", f"while rows := {page}:", *indent(loop)]
