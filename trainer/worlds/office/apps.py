"""The office suite: seven apps of items, a site's own names and rules for them, and the OpenAPI document of each.

Only the summaries of a document's operations state the site's rules. Log-ins are declared `x-safe`: they change
nothing, so checks, which may only read, can call them.
"""

from functools import lru_cache
from random import Random
from typing import Literal

import msgspec

from app.base.errors import NotFoundError
from app.base.values import Json

Role = Literal["login", "list", "show", "prepare", "act1", "act2", "act3"]
Field = Literal["person", "label", "number"]

ACTS: tuple[Role, ...] = ("act1", "act2", "act3")


class Act(msgspec.Struct, frozen=True):
    """An action on an item."""

    verb: str  # in instructions and summaries
    names: tuple[str, ...]  # verbs that a site's operation may be named by
    removes: bool = False  # deletes the item


class AppSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One app: a collection of items, each with a person, a label and a number."""

    name: str
    noun: str
    nouns: str
    persons: tuple[str, ...]  # possible names of the person field
    labels: tuple[str, ...]  # possible names of the label field
    numbers: tuple[str, ...]  # possible names of the number field
    values: tuple[str, ...]  # all labels
    measure: str  # the number, in instructions
    most: str  # the item with the largest number is the ... one
    acts: tuple[Act, Act, Act]


LOGIN_NAMES = ("sign_in", "log_in", "open_session", "start_session")
LIST_VERBS = ("list", "fetch", "find", "browse")
SHOW_VERBS = ("show", "get", "view", "read")
PREPARE_VERBS = ("unlock", "open", "claim")
MEMBER_NAMES = ("list_members", "fetch_members", "find_members", "browse_members")
MEMBER_FIELDS = ("name", "person", "contact")

PEOPLE = ("iris", "omar", "lena", "hugo", "nora", "ivan", "maya", "theo", "ruth", "finn", "zara", "cole")
GROUPS = ("family", "team", "club", "school", "neighbors", "band")
THRESHOLDS = ("20", "30", "40", "50", "60", "70", "80")

DELETE = Act("delete", ("delete", "remove", "erase"), removes=True)

APPS: dict[str, AppSpec] = {
    app.name: app
    for app in (
        AppSpec(
            name="mail",
            noun="mail",
            nouns="mails",
            persons=("sender", "author", "from_name"),
            labels=("folder", "box", "tray"),
            numbers=("size", "bytes", "weight"),
            values=("work", "travel", "bills", "news", "orders", "health"),
            measure="size",
            most="largest",
            acts=(Act("archive", ("archive", "store", "shelve")), DELETE, Act("star", ("star", "flag", "mark"))),
        ),
        AppSpec(
            name="notes",
            noun="note",
            nouns="notes",
            persons=("author", "writer", "owner"),
            labels=("topic", "subject", "theme"),
            numbers=("length", "words", "letters"),
            values=("recipes", "ideas", "quotes", "dreams", "plans", "poems"),
            measure="length",
            most="longest",
            acts=(Act("pin", ("pin", "stick", "fasten")), DELETE, Act("share", ("share", "send", "post"))),
        ),
        AppSpec(
            name="calendar",
            noun="event",
            nouns="events",
            persons=("host", "organizer", "planner"),
            labels=("kind", "type", "category"),
            numbers=("minutes", "duration", "span"),
            values=("meetings", "dinners", "lessons", "trips", "concerts", "visits"),
            measure="duration",
            most="longest",
            acts=(
                Act("accept", ("accept", "confirm", "join")),
                Act("decline", ("decline", "refuse", "reject")),
                Act("cancel", ("cancel", "abort", "void"), removes=True),
            ),
        ),
        AppSpec(
            name="music",
            noun="song",
            nouns="songs",
            persons=("artist", "singer", "performer"),
            labels=("genre", "style", "tag"),
            numbers=("rating", "score", "points"),
            values=("jazz", "rock", "folk", "soul", "blues", "metal"),
            measure="rating",
            most="best",
            acts=(
                Act("like", ("like", "love", "favor")),
                Act("hide", ("hide", "mute", "skip")),
                Act("download", ("download", "save", "pull")),
            ),
        ),
        AppSpec(
            name="payments",
            noun="payment",
            nouns="payments",
            persons=("payer", "debtor", "giver"),
            labels=("purpose", "reason", "category"),
            numbers=("amount", "sum", "value"),
            values=("rent", "food", "fuel", "gifts", "tickets", "repairs"),
            measure="amount",
            most="highest",
            acts=(
                Act("approve", ("approve", "grant", "settle")),
                Act("refund", ("refund", "return", "repay")),
                Act("dispute", ("dispute", "contest", "question")),
            ),
        ),
        AppSpec(
            name="files",
            noun="file",
            nouns="files",
            persons=("owner", "uploader", "creator"),
            labels=("drive", "shelf", "area"),
            numbers=("size", "kilobytes", "bulk"),
            values=("photos", "drafts", "reports", "scans", "backups", "slides"),
            measure="size",
            most="largest",
            acts=(
                Act("compress", ("compress", "pack", "zip")),
                DELETE,
                Act("publish", ("publish", "release", "expose")),
            ),
        ),
        AppSpec(
            name="todo",
            noun="todo",
            nouns="todos",
            persons=("assignee", "worker", "doer"),
            labels=("project", "board", "place"),
            numbers=("effort", "hours", "points"),
            values=("garden", "kitchen", "garage", "office", "attic", "cellar"),
            measure="effort",
            most="hardest",
            acts=(
                Act("finish", ("finish", "complete", "close")),
                Act("postpone", ("postpone", "delay", "defer")),
                Act("drop", ("drop", "discard", "remove"), removes=True),
            ),
        ),
    )
}


APP_NAMES = (*APPS, "contacts", "supervisor")

_INTEGER: dict[str, Json] = {"type": "integer"}
_STRING: dict[str, Json] = {"type": "string"}
_TOKEN: dict[str, Json] = {"name": "access_token", "in": "header", "required": True, "schema": _STRING}
_ERROR: dict[str, Json] = {
    "description": "refused",
    "content": {"application/json": {"schema": {"type": "object", "properties": {"message": _STRING}}}},
}


class AppSite(msgspec.Struct, frozen=True, kw_only=True):
    """One app as deployed at a site."""

    spec: AppSpec
    names: dict[Role, str]
    fields: dict[Field, str]
    first_page: Literal[0, 1]
    hidden: Field  # missing from list rows: only looking up one item returns it
    guarded: Role  # the act that requires the preparing operation first

    def role(self, operation: str) -> Role | None:
        return next((role for role, name in self.names.items() if name == operation), None)


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that differs between deployments. A seed determines its site."""

    seed: int
    apps: dict[str, AppSite]
    contacts_login: str
    members: str  # the operation that lists the members of a group
    member: str  # the field of a member that holds the name

    @staticmethod
    @lru_cache(maxsize=512)
    def of(seed: int) -> "Site":
        rng = Random(f"site {seed}")
        return Site(
            seed=seed,
            apps={name: _app_site(spec, rng) for name, spec in APPS.items()},
            contacts_login=rng.choice(LOGIN_NAMES),
            members=rng.choice(MEMBER_NAMES),
            member=rng.choice(MEMBER_FIELDS),
        )


def candidates(spec: AppSpec) -> dict[Role, tuple[str, ...]]:
    """Every name that a site may choose for each operation of an app."""
    return {
        "login": LOGIN_NAMES,
        "list": tuple(f"{verb}_{spec.nouns}" for verb in LIST_VERBS),
        "show": tuple(f"{verb}_{spec.noun}" for verb in SHOW_VERBS),
        "prepare": tuple(f"{verb}_{spec.noun}" for verb in PREPARE_VERBS),
        **{
            role: tuple(f"{verb}_{spec.noun}" for verb in act.names)
            for role, act in zip(ACTS, spec.acts, strict=True)
        },
    }


def document(site: Site, app: str, base: str) -> dict[str, Json]:
    """`base` is the URL of the services. Raises NotFoundError for an unknown app."""
    if app not in APP_NAMES:
        raise NotFoundError(f"no app {app}, there are {', '.join(APP_NAMES)}")
    url = f"{base.rstrip('/')}/sites/{site.seed}/worlds/{{world}}/{app}"
    return {
        "openapi": "3.1.0",
        "info": {"title": app, "version": "1", "description": _description(app)},
        "servers": [{"url": url, "variables": {"world": {"default": "demo"}}}],
        "paths": _paths(site, app),
    }


def operation_names() -> dict[str, list[str]]:
    """Every name that an operation may have at some site, by app, both sorted."""
    names = {app: {name for each in candidates(spec).values() for name in each} for app, spec in APPS.items()}
    names |= {"contacts": {*LOGIN_NAMES, *MEMBER_NAMES}, "supervisor": {"show_passwords", "show_profile"}}
    return {app: sorted(found) for app, found in sorted(names.items())}


def _app_site(spec: AppSpec, rng: Random) -> AppSite:
    return AppSite(
        spec=spec,
        names={role: rng.choice(names) for role, names in candidates(spec).items()},
        fields={
            "person": rng.choice(spec.persons),
            "label": rng.choice(spec.labels),
            "number": rng.choice(spec.numbers),
        },
        first_page=rng.choice((0, 1)),
        hidden=rng.choice(("label", "number")),
        guarded=rng.choice(ACTS),
    )


def _description(app: str) -> str:
    if app in APPS:
        return f"all your {APPS[app].nouns}"
    return {"contacts": "the people you know", "supervisor": "your profile and your passwords"}[app]


def _paths(site: Site, app: str) -> dict[str, Json]:
    if app == "supervisor":
        passwords = _object(dict.fromkeys((*APPS, "contacts"), _STRING))
        return {
            "/show_passwords": _get("show_passwords", "the password of each app", [], passwords),
            "/show_profile": _get(
                "show_profile", "your name and city", [], _object({"name": _STRING, "city": _STRING})
            ),
        }
    if app == "contacts":
        members = _array({site.member: _STRING})
        group = [_TOKEN, _query("group", _STRING)]
        return {
            f"/{site.contacts_login}": _login(site.contacts_login),
            f"/{site.members}": _get(site.members, "list the members of one group", group, members),
        }
    return _app_paths(site.apps[app])


def _app_paths(here: AppSite) -> dict[str, Json]:
    names, spec = here.names, here.spec
    whole = {
        "id": _INTEGER,
        here.fields["person"]: _STRING,
        here.fields["label"]: _STRING,
        here.fields["number"]: _INTEGER,
    }
    row = {name: schema for name, schema in whole.items() if name != here.fields[here.hidden]}
    pages = f"list {spec.nouns}, pages start at {here.first_page}"
    paths = {
        f"/{names['login']}": _login(names["login"]),
        f"/{names['list']}": _get(names["list"], pages, [_TOKEN, _query("page", _INTEGER)], _array(row)),
        f"/{names['show']}": _get(
            names["show"], f"show one {spec.noun}", [_TOKEN, _query("id", _INTEGER)], _object(whole)
        ),
        f"/{names['prepare']}": _act(names["prepare"], f"unlock one {spec.noun}"),
    }
    for role, act in zip(ACTS, spec.acts, strict=True):
        rule = f", needs {names['prepare']} first" if role == here.guarded else ""
        paths[f"/{names[role]}"] = _act(names[role], f"{act.verb} one {spec.noun}{rule}")
    return paths


def _login(name: str) -> Json:
    described = _post(name, "log in", [], {"password": _STRING}, _object({"access_token": _STRING}))
    return {"post": {**described["post"], "x-safe": True}}


def _act(name: str, summary: str) -> Json:
    return _post(name, summary, [_TOKEN], {"id": _INTEGER}, None)


def _get(name: str, summary: str, parameters: list[Json], answer: Json) -> Json:
    return {"get": _operation(name, summary, parameters, answer)}


def _post(name: str, summary: str, parameters: list[Json], body: dict[str, Json], answer: Json) -> Json:
    content = {"application/json": {"schema": _object(body)}}
    operation = _operation(name, summary, parameters, answer)
    return {"post": {**operation, "requestBody": {"required": True, "content": content}}}


def _operation(name: str, summary: str, parameters: list[Json], answer: Json) -> dict[str, Json]:
    return {"operationId": name, "summary": summary, "parameters": parameters, "responses": _answers(answer)}


def _answers(schema: Json) -> Json:
    if schema is None:
        return {"204": {"description": "done"}, "4XX": _ERROR}
    return {"200": {"description": "done", "content": {"application/json": {"schema": schema}}}, "4XX": _ERROR}


def _query(name: str, schema: Json) -> Json:
    return {"name": name, "in": "query", "required": True, "schema": schema}


def _object(properties: dict[str, Json]) -> Json:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _array(properties: dict[str, Json]) -> Json:
    return {"type": "array", "items": _object(properties)}
