"""What the expert notes before it writes code, so that a small model finds the right names. Pure.

Names stand as in the text that they are taken from, with a space or a dot before them and without a capital: a
small model copies tokens, not letters.
"""

from collections.abc import Iterator, Mapping

from trainer.worlds.generated.api_calls import where_rows_are
from trainer.worlds.generated.expert_programs import FIELDS, NUMERIC, Subject
from trainer.worlds.generated.gym_apis import GymApi, ItemField
from trainer.worlds.generated.gym_documents import item_schema
from trainer.worlds.generated.task_forms import JOINED, PARAMETERS, WRITING, Parameter


def note_apps(subject: Subject) -> str:
    """Which app has what the task is about, and whom."""
    return _sentence([f"the {api.domain.nouns} are in apis.{api.name}" for api in subject.apis])


def note_fields(subject: Subject, values: Mapping[Parameter, str | int]) -> str:
    """How to get at the rows, what they have, and what each detail of the task is called there.

    A small model does not see that a field is absent unless it has just listed what is there.
    """
    one = len(subject.apis) == 1
    gets = [f"{'here' if one else f'in apis.{api.name}'} {_access(api)}" for api in subject.apis]
    return _sentence([*gets, *_details(subject, values)])


def _sentence(parts: list[str]) -> str:
    """The first part begins with a word that no code has."""
    said = "; ".join(parts)
    return f"{said[0].upper()}{said[1:]}."


def token_of(api: GymApi) -> str:
    """Where the token comes from."""
    match api.shape.auth:
        case "open":
            return "no token is needed"
        case "key":
            return "the password is the token"
        case _:
            return f"{api.route('login').python} gives the token"


def _access(api: GymApi) -> str:
    keys = where_rows_are(api)
    rows = f"the rows are in {'.'.join(keys)}" if keys else "the answer is the rows"
    again = ", a 429 is tried again" if api.shape.errors == "limited" else ""
    return f"{token_of(api)}, {rows}{again}, each has {_row(api)}"


def _row(api: GymApi) -> str:
    """The names of the fields of a row, in its order."""
    fields = item_schema(api, whole=False)["properties"]
    group = api.wire("group") if api.shape.nesting == "grouped" else ""
    inner = fields.pop(group)["properties"] if group else {}
    return ", ".join(fields) + (f" and {group} with {', '.join(inner)}" if group else "")


def _details(subject: Subject, values: Mapping[Parameter, str | int]) -> Iterator[str]:
    main, joined, goal = subject.main, subject.joined, subject.form.goal
    for condition in subject.form.selection:
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
        yield f"I call {_change(subject, values)}{again}"
    if goal == "act_check":
        yield f"then I count all rows where {main.fields['progress']} is {main.domain.initial}"


def _field(api: GymApi, field: ItemField) -> str:
    """What a field is called, and what has it: rows, or only what the look-up of one item returns."""
    place = api.route("show").python if api.shape.rows == "partial" and api.hidden == field else "rows"
    if api.shape.nesting == "grouped":
        place = f"{api.wire('group')} of {place}"
    inner = f".{api.wire('inner')}" if api.shape.nesting == "object" and field == "person" else ""
    return f"{api.fields[field]}{inner} in {place}"


def _change(subject: Subject, values: Mapping[Parameter, str | int]) -> str:
    """The operation, and what it sets."""
    main, goal = subject.main, subject.form.goal
    verbs = subject.verbs if goal == "branch" else subject.verbs[:1]
    if goal == "move":
        return f"{main.route('update').python} with {main.fields['label']} {values['target']}"
    if main.shape.write == "patch":
        states = " or ".join(verb.done for verb in verbs)
        return f"{main.route('update').python} with {main.fields['progress']} {states}"
    return " or ".join(main.route("act", verb).python for verb in verbs)
