"""What the expert notes before it writes code, so that a small model finds the right names. Pure."""

from collections.abc import Iterator

from trainer.worlds.generated.crud_plans import CrudGoal, Values
from trainer.worlds.generated.crud_programs import CrudSubject, state_of, where_rows_are

_MEANT: dict[CrudGoal, str] = {
    "count": "all rows", "count_state": "these rows", "act_all": "all rows", "delete_state": "these rows",
}  # fmt: skip


def note_app(subject: CrudSubject) -> str:
    if subject.form.goal == "info":
        return f"It is about apis.{subject.api.name}."
    return f"The {subject.collection.described.many} are in apis.{subject.api.name}."


def note_plan(subject: CrudSubject, values: Values) -> str:
    """How to get at the rows, what each detail of the task is called there, and what is called."""
    said = "; ".join(_parts(subject, values))
    return f"{said[0].upper()}{said[1:]}."


def _parts(subject: CrudSubject, values: Values) -> Iterator[str]:
    form, api, fields = subject.form, subject.api, subject.collection.fields
    token = "no token is needed" if api.shape.auth == "open" else "the password is the token"
    yield f"here {token}" + (f", {_rows(subject)}" if subject.reads_rows else "")
    if form.by in values and form.goal != "create":
        yield f"{values[form.by]} is {fields[form.by]} in {_place(subject, 'rows')}"
    read = api.route("show", subject.at).python if subject.is_hidden else "rows"
    if "state" in values:
        yield f"{values['state']} is {fields.get('state', 'a flag')} in {_place(subject, read)}"
    match form.goal:
        case "info":
            yield f"I read {api.wire('version')} in {api.route('info').python}"
        case "read":
            yield f"I read {fields[form.field]} in {_place(subject, read)}"
        case "count" | "count_state":
            yield f"I count {_MEANT[form.goal]}"
    if subject.writes is not None:
        verb = subject.verb if subject.writes == "act" else None
        details = ", ".join(_set(subject, values))
        given = f" with {details}" if details else ""
        meant = f" for {_MEANT[form.goal]}" if form.goal in _MEANT else ""
        yield f"I call {api.route(subject.writes, subject.at, verb).python}{given}{meant}"


def _place(subject: CrudSubject, where: str) -> str:
    """Where a field is, in rows or in what an operation returns."""
    return f"{subject.api.wire('group')} of {where}" if subject.api.shape.nesting == "grouped" else where


def _rows(subject: CrudSubject) -> str:
    key, shape = where_rows_are(subject), subject.api.shape
    pages = "" if shape.paging == "whole" else ", page by page"
    if shape.is_keyed:
        return f"{key or 'the answer'} maps each {subject.api.id_name} to a row{pages}"
    return (f"the rows are in {key}" if key else "the answer is the rows") + pages


def _set(subject: CrudSubject, values: Values) -> Iterator[str]:
    """The fields that are written."""
    form, fields = subject.form, subject.collection.fields
    match form.goal:
        case "create":
            for name in form.written:
                yield f"{fields[name]} {values[name]}"
        case "change":
            yield f"{fields[form.field]} {values['new']}"
        case "act" | "act_all" if subject.acts_by_update:
            yield "{} {}".format(*state_of(subject))
