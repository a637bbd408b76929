"""Python that calls an app of the gym as its document says: single calls, and loops over all rows. Pure."""

from collections.abc import Collection, Mapping

from trainer.worlds.generated.domains import Verb
from trainer.worlds.generated.gym_apis import GymApi, ItemField, Role


def log_in(api: GymApi) -> list[str]:
    """Bind `token`, if the app wants one."""
    password = f'apis.supervisor.show_passwords()["{api.name}"]'
    if api.shape.auth == "open":
        return []
    if api.shape.auth == "key":
        return [f"token = {password}"]
    login = f"apis.{api.name}.{api.route('login').python}"
    return [f'token = {login}(password={password})["{api.wire("token")}"]']


def call(api: GymApi, role: Role, arguments: Mapping[str, str] | None = None, verb: Verb | None = None) -> str:
    """A call with these arguments, as expressions by Python name, and the token."""
    given = dict(arguments or {})
    if api.shape.auth in ("login", "key"):
        given = {api.argument(api.header): "token", **given}
    elif api.shape.auth == "query_token":
        given = {api.argument(api.wire("token")): "token", **given}
    listed = ", ".join(f"{name}={value}" for name, value in given.items())
    return f"apis.{api.name}.{api.route(role, verb).python}({listed})"


def access(api: GymApi, field: ItemField, row: str = "row") -> str:
    """The value of a field of a row."""
    group = f'["{api.wire("group")}"]' if api.shape.nesting == "grouped" and field != "id" else ""
    inner = f'["{api.wire("inner")}"]' if api.shape.nesting == "object" and field == "person" else ""
    return f'{row}{group}["{api.fields[field]}"]{inner}'


def for_each_row(
    api: GymApi, body: list[str], needs: Collection[ItemField], filters: Mapping[str, str] | None = None
) -> list[str]:
    """Code that executes `body` for every `row` that the filters leave."""
    if api.shape.rows == "partial" and api.hidden in needs:
        identity = {"id": access(api, "id")}
        body = [*_fetch(api, "row", call(api, "show", identity)), *body]
    given = dict(filters or {})
    inner = ["for row in rows:", *indent(body)]
    match api.shape.paging:
        case "page":
            start = {api.argument(api.wire("page")): "page"}
            return _counted(api, "page", str(api.first_page), {**start, **given}, [*inner, "page += 1"])
        case "offset":
            start = {api.argument(api.wire("offset")): "offset"}
            return _counted(api, "offset", "0", {**start, **given}, [*inner, "offset += len(rows)"])
        case "whole" if api.shape.errors != "limited":
            return [f"for row in {call(api, 'list', given)}{_envelope(api)}:", *indent(body)]
        case "whole":
            return [*_rows(api, given), *inner]
    loop = [
        *_rows(api, {api.argument(api.wire("cursor")): "cursor", **given}),
        *inner,
        *_next_cursor(api),
        "if not cursor:",
        "    break",
    ]
    return ["cursor = None", "while True:", *indent(loop)]


def first_rows(api: GymApi) -> list[str]:
    """Code that prints some rows."""
    return [*log_in(api), *_rows(api, {}), "print(rows[:2])"]


def change(api: GymApi, arguments: Mapping[str, str], verb: Verb | None) -> list[str]:
    """One change: an act, or the update of one item."""
    states = {api.argument(api.fields["progress"]): f'"{verb.done}"'} if verb else {}
    if verb is None or api.shape.write == "patch":
        written = call(api, "update", {**arguments, **states})
    else:
        written = call(api, "act", arguments, verb)
    if api.shape.errors == "soft":
        return [f'while not {written}["{api.wire("ok")}"]:', "    time.sleep(1)"]
    return [written]


def identity_argument(api: GymApi, role: Role) -> str:
    """The argument by which a change names its item."""
    return api.argument(api.fields["id"]) if role == "act" and api.shape.write == "body" else "id"


def indent(lines: list[str], levels: int = 1) -> list[str]:
    return ["    " * levels + line for line in lines]


def _counted(api: GymApi, counter: str, start: str, arguments: dict[str, str], body: list[str]) -> list[str]:
    """Pages by number until one is empty."""
    if api.shape.errors != "limited":
        rows = f"{call(api, 'list', arguments)}{_envelope(api)}"
        return [f"{counter} = {start}", f"while rows := {rows}:", *indent(body)]
    loop = [*_rows(api, arguments), "if not rows:", "    break", *body]
    return [f"{counter} = {start}", "while True:", *indent(loop)]


def _rows(api: GymApi, arguments: dict[str, str]) -> list[str]:
    """Bind `answer` and `rows`."""
    return [*_fetch(api, "answer", call(api, "list", arguments)), f"rows = answer{_envelope(api)}"]


def _fetch(api: GymApi, name: str, expression: str) -> list[str]:
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


def where_rows_are(api: GymApi) -> list[str]:
    """The keys that lead to the rows of a list's answer."""
    if api.shape.envelope == "bare":
        return []
    if api.shape.envelope == "named":
        return [api.resource]
    return [*([api.wire("outer")] if api.shape.envelope == "wrapped" else []), api.wire("data")]


def _envelope(api: GymApi) -> str:
    return "".join(f'["{key}"]' for key in where_rows_are(api))


def _next_cursor(api: GymApi) -> list[str]:
    if api.shape.paging == "cursor":
        return [f'cursor = answer["{api.wire("next")}"]']
    return [f'link = answer["{api.wire("links")}"]["next"]', 'cursor = link.partition("=")[2] if link else None']
