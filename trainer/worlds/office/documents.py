"""The OpenAPI 3.1 document of each app at a site. Only the summaries of its operations state the site's rules.

Log-ins are declared `x-safe`: they change nothing, so checks, which may only read, can call them.
"""

from app.errors import NotFoundError
from app.records import Json
from trainer.worlds.office.apps import ACTS, APPS, LOGIN_NAMES, MEMBER_NAMES
from trainer.worlds.office.site import AppSite, Site, candidates

APP_NAMES = (*APPS, "contacts", "supervisor")

_INTEGER: dict[str, Json] = {"type": "integer"}
_STRING: dict[str, Json] = {"type": "string"}
_TOKEN: dict[str, Json] = {"name": "access_token", "in": "header", "required": True, "schema": _STRING}
_ERROR: dict[str, Json] = {
    "description": "refused",
    "content": {"application/json": {"schema": {"type": "object", "properties": {"message": _STRING}}}},
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
    return {
        "get": {"operationId": name, "summary": summary, "parameters": parameters, "responses": _answers(answer)}
    }


def _post(name: str, summary: str, parameters: list[Json], body: dict[str, Json], answer: Json) -> Json:
    operation = {"operationId": name, "summary": summary, "parameters": parameters, "responses": _answers(answer)}
    content = {"application/json": {"schema": _object(body)}}
    return {"post": {**operation, "requestBody": {"required": True, "content": content}}}


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
