"""Programs that use an app as its document says, and what is noted before one is written: for all kinds of tasks.

Arguments are expressions by Python name. `at` is the place of the kind of records that a call is about.
"""

from collections.abc import Collection, Mapping

from app.apis.naming import argument_name
from trainer.lessons.experts import indent
from trainer.worlds.generated.apis import Api, RecordField, Role
from trainer.worlds.generated.documents import rows_at
from trainer.worlds.generated.words import Verb


def log_in(api: Api) -> list[str]:
    """Bind `token`, if the app wants one."""
    password = f'apis.supervisor.show_passwords()["{api.name}"]'
    if api.shape.auth == "open":
        return []
    if api.shape.auth == "key":
        return [f"token = {password}"]
    login = f"apis.{api.name}.{api.route('login').python}"
    return [f'token = {login}(password={password})["{api.wire("token")}"]']


def call(
    api: Api, role: Role, arguments: Mapping[str, str] | None = None, *, at: int = 0, verb: Verb | None = None
) -> str:
    """A call with these arguments and the token."""
    given = dict(arguments or {})
    if api.shape.auth != "open":
        token = api.wire("token") if api.shape.auth == "query_token" else api.header
        given = {argument_name(token): "token", **given}
    listed = ", ".join(f"{name}={value}" for name, value in given.items())
    return f"apis.{api.name}.{api.route(role, at, verb).python}({listed})"


def access(api: Api, field: RecordField, row: str = "row", *, at: int = 0) -> str:
    """The value of a field of a row."""
    inner = f'["{api.wire("inner")}"]' if api.shape.nesting == "object" and field == "person" else ""
    return f'{fields_of(api, row)}["{api.collections[at].fields[field]}"]{inner}'


def fields_of(api: Api, row: str = "row") -> str:
    """What has the fields of a row."""
    return f'{row}["{api.wire("group")}"]' if api.shape.nesting == "grouped" else row


def identity(api: Api, row: str = "row") -> str:
    """The id of a row."""
    return "key" if api.shape.is_keyed else f'{row}["{api.id_name}"]'


def for_each_row(
    api: Api,
    body: list[str],
    needs: Collection[RecordField] = (),
    filters: Mapping[str, str] | None = None,
    *,
    at: int = 0,
) -> list[str]:
    """Code that executes `body` for every `row` that the filters leave; where ids are keys, each is `key`.

    It looks up a record by itself if rows lack a field that the body `needs`.
    """
    if api.shape.rows == "partial" and api.collections[at].hidden in needs:
        body = [*_fetch(api, "row", call(api, "show", {api.id_parameter: identity(api)}, at=at)), *body]
    given = dict(filters or {})
    inner = ["for row in rows:", *indent(body)]
    match api.shape.paging:
        case "page":
            start = {argument_name(api.wire("page")): "page"}
            return _counted(api, "page", str(api.first_page), {**start, **given}, [*inner, "page += 1"], at)
        case "offset":
            start = {argument_name(api.wire("offset")): "offset"}
            return _counted(api, "offset", "0", {**start, **given}, [*inner, "offset += len(rows)"], at)
        case "whole" if api.shape.errors == "limited":
            return [*bind_rows(api, given, at=at), *inner]
        case "whole" if api.shape.is_keyed:
            return [f"for key, row in {rows_of(api, given, at=at)}.items():", *indent(body)]
        case "whole":
            return [f"for row in {rows_of(api, given, at=at)}:", *indent(body)]
    loop = [
        *bind_rows(api, {argument_name(api.wire("cursor")): "cursor", **given}, at=at),
        *inner,
        *_next_cursor(api),
        "if not cursor:",
        "    break",
    ]
    return ["cursor = None", "while True:", *indent(loop)]


def rows_of(api: Api, arguments: Mapping[str, str] | None = None, *, at: int = 0) -> str:
    """The rows of one call."""
    return f"{call(api, 'list', arguments, at=at)}{_envelope(api, at)}"


def bind_rows(api: Api, arguments: Mapping[str, str] | None = None, *, at: int = 0) -> list[str]:
    """Bind `answer` and `rows`."""
    return [*_fetch(api, "answer", call(api, "list", arguments, at=at)), f"rows = answer{_envelope(api, at)}"]


def write(api: Api, role: Role, target: Mapping[str, str], given: Mapping[str, str], *, at: int = 0) -> str:
    """A call that writes fields, expressions by wire name, to a record."""
    if api.shape.body == "flat":
        written = {argument_name(name): value for name, value in given.items()}
    else:
        whole = ", ".join(f'"{name}": {value}' for name, value in given.items())
        written = {argument_name(api.collections[at].singular): f"{{{whole}}}"}
    return call(api, role, {**target, **written}, at=at)


def act(api: Api, which: str, verb: Verb, *, at: int = 0) -> str:
    """A call that does something to the record with this id, by an operation of its own or by an update."""
    if api.shape.write == "patch":
        field, value = state_of(api, verb, at=at)
        given = {field: str(value) if value is True else f'"{value}"'}
        return write(api, "update", {argument_name(api.id_parameter): which}, given, at=at)
    name = api.id_name if api.shape.write == "body" else api.id_parameter
    return call(api, "act", {argument_name(name): which}, at=at, verb=verb)


def state_of(api: Api, verb: Verb, *, at: int = 0) -> tuple[str, str | bool]:
    """The field that an update sets for a verb, and its value."""
    collection = api.collections[at]
    return (verb.done, True) if collection.has_flags else (collection.fields["state"], verb.done)


def note_token(api: Api) -> str:
    """Where the token comes from."""
    match api.shape.auth:
        case "open":
            return "no token is needed"
        case "key":
            return "the password is the token"
    return f"{api.route('login').python} gives the token"


def note_rows(api: Api, *, at: int = 0) -> str:
    """Where the rows of a list are."""
    keys = ".".join(rows_at(api, api.collections[at]))
    if api.shape.is_keyed:
        return f"{keys or 'the answer'} maps each {api.id_name} to a row"
    return f"the rows are in {keys}" if keys else "the answer is the rows"


def note_field(api: Api, name: str, place: str) -> str:
    """What a field is called, and what has it: rows, or what an operation returns."""
    return f"{name} in {api.wire('group')} of {place}" if api.shape.nesting == "grouped" else f"{name} in {place}"


def sentence(parts: list[str]) -> str:
    """The first part begins with a word that no code has."""
    said = "; ".join(parts)
    return f"{said[0].upper()}{said[1:]}."


def _counted(api: Api, counter: str, start: str, arguments: dict[str, str], body: list[str], at: int) -> list[str]:
    """Pages by number until one is empty."""
    if api.shape.errors != "limited":
        return [f"{counter} = {start}", f"while rows := {rows_of(api, arguments, at=at)}:", *indent(body)]
    loop = [*bind_rows(api, arguments, at=at), "if not rows:", "    break", *body]
    return [f"{counter} = {start}", "while True:", *indent(loop)]


def _fetch(api: Api, name: str, expression: str) -> list[str]:
    """Bind a name to the answer of a read, which is repeated while the service limits the rate."""
    if api.shape.errors != "limited":
        return [f"{name} = {expression}"]
    return [
        "while True:",
        "    try:",
        f"        {name} = {expression}",
        "        break",
        "    except Exception as error:",
        '        if "429" not in str(error):',
        "            raise",
        "        time.sleep(1)",
    ]


def _envelope(api: Api, at: int) -> str:
    return "".join(f'["{key}"]' for key in rows_at(api, api.collections[at]))


def _next_cursor(api: Api) -> list[str]:
    if api.shape.paging == "cursor":
        return [f'cursor = answer["{api.wire("next")}"]']
    return [f'link = answer["{api.wire("links")}"]["next"]', 'cursor = link.partition("=")[2] if link else None']
