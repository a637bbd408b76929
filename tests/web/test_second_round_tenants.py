"""Second round of attacks: every route of the OpenAPI document, with ids and names of another project.

The requests are derived from the document, so a new route is attacked as well, or fails for want of a body.
"""

import contextlib
from collections.abc import AsyncIterator
from functools import cache
from typing import Any

import httpx
import msgspec
import pytest_asyncio

from app.processes.api import create_app
from app.processes.dependencies import Dependencies
from app.projects import store as projects
from tests.support.api_app import ApiApp, open_api_app
from tests.support.emptied_database import emptied_database
from tests.support.every_row import every_row
from tests.support.tenant_rows import MARK, content, fill

_SCOPES = ("admin", "tasks", "skills", "approvals")
_METHODS = ("get", "post", "put", "patch", "delete")
_VICTIM = "victim-project"
_BODIES: dict[str, dict[str, Any]] = {
    "tasks_submit": {"instruction": "spy", "project": _VICTIM},
    "tasks_settle": {"arrived": False},
    "approvals_decide": {"decision": "approve"},
    "feedback_give": {"task_id": "{task_id}", "score": 0},
    "apis_change": {"bearer_token": "mine"},
    "apis_change_operation": {"hidden": True},
    "apis_put": {"name": "vault", "project": _VICTIM, "document": {"openapi": "3.1.0", "paths": {}}},
    "secrets_store": {"value": "mine"},
    "apis_store_credentials": {"value": "mine", "place": "header", "name": "X-Key"},
    "hosted_models_add": {"name": "spy", "project": _VICTIM, "url": "http://127.0.0.1:9", "model": "m"},
    "hosted_models_change": {"price_in": 1},
    "hosted_models_do_tasks": {"tasks": "failed"},
    "datasets_upload": {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
    "projects_change": {"settings": {"skills": "open"}},
    "projects_create": {"name": "third"},
    "keys_create": {"name": "k", "scopes": ["admin"], "project": _VICTIM},
    "releases_propose": {"adapter": "0" * 32, "project": _VICTIM},
    "releases_start_canary": {"percent": 50},
    "releases_start_shadows": {"tasks": 1},
    "tasks_start_replay": {"release": 1},
    "training_runs_create": {"project": _VICTIM},
    "exams_create": {"name": "mine", "tasks": [{"instruction": "spy", "check": "score = 1"}]},
    "schedule_put": {"every_hours": 1},
    "chat_complete": {"model": _VICTIM, "messages": [{"role": "user", "content": "spy"}]},
    "skills_import_folders": {"folders": [{"name": "spy", "files": {}}], "project": _VICTIM},
}
_NAMES = {
    "projects": "{project}",
    "apis": "{api}",
    "secrets": "{secret}",
    "hosted-models": "{hosted}",
    "exams": "{exam}",
}


class ForeignRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for what is the victim's. A `listing` may be answered, without the victim's rows."""

    name: str
    method: str
    path: str
    operation: str
    params: dict[str, str] = {}
    listing: bool = False


@cache
def _attacks() -> list[ForeignRequest]:
    """Of each route: with ids in its path and query, with the project's name, and without either."""

    @contextlib.asynccontextmanager
    async def closed() -> AsyncIterator[Dependencies]:
        raise AssertionError
        yield

    found = []
    paths: dict[str, Any] = create_app(closed).openapi_schema.to_schema()["paths"]
    for path, methods in paths.items():
        for method in _METHODS:
            if path.startswith("/v1/") and method in methods:
                found += _of_route(method, path, methods[method])
    return found


def _value(schema: dict[str, Any]) -> str:
    return "1" if schema["type"] == "integer" else "words"


def _of_route(method: str, path: str, route: dict[str, Any]) -> list[ForeignRequest]:
    name = route["operationId"]
    given = {each["name"]: each for each in route.get("parameters", []) if each["in"] == "query"}
    needed = {each: _value(about["schema"]) for each, about in given.items() if about.get("required")}
    ids = {each: f"{{{each}}}" for each in given if each.endswith("_id")}
    collection = path.split("/")[2]
    path = path.replace("{name}", _NAMES.get(collection, ""))
    about: dict[str, Any] = {"method": method.upper(), "path": path, "operation": name}
    found = []
    if "{" in path and name != "secrets_store":
        found.append(ForeignRequest(name=f"{name} by path", params=needed, **about))
    if "project" in given:
        found.append(ForeignRequest(name=f"{name} by project", params=needed | {"project": _VICTIM}, **about))
    if ids:
        listing = any(not given[each].get("required") for each in ids)
        found.append(ForeignRequest(name=f"{name} by id", params=needed | ids, listing=listing, **about))
    if method == "get" and "{" not in path:
        if not ids.keys() & needed.keys():
            found.append(ForeignRequest(name=f"{name} at large", params=needed, listing=True, **about))
    elif not found:
        found.append(ForeignRequest(name=f"{name} by body", **about))
    return found


Outcomes = dict[tuple[str, str], httpx.Response]


class Raid(msgspec.Struct, frozen=True):
    """The answers by attack and key, and the victim's rows before and after."""

    answers: Outcomes
    before: dict[str, list[str]]
    after: dict[str, list[str]]
    ids: dict[str, str]


@pytest_asyncio.fixture(scope="module")
async def raid(database_url: str) -> AsyncIterator[Raid]:
    async with (
        emptied_database(database_url) as database,
        open_api_app(database.sessions, database_url) as api,
    ):
        async with api.sessions.begin() as session:
            ids = await fill(session, _VICTIM)
            intruder = await projects.create(session, "intruder")
        keys = {scope: await api.key(scope, project_id=intruder.id) for scope in _SCOPES}
        keys |= {"none": {"Authorization": ""}, "forged": {"Authorization": "Bearer sage_" + "0" * 43}}
        before = await content(api.sessions, ids["project_id"])
        answers = {
            (attack.name, who): await _send(api, attack, ids, headers)
            for attack in _attacks()
            for who, headers in keys.items()
        }
        yield Raid(answers, before, await content(api.sessions, ids["project_id"]), ids)


async def _send(
    api: ApiApp, attack: ForeignRequest, ids: dict[str, str], headers: dict[str, str]
) -> httpx.Response:
    body = {name: str(value).format(**ids) if "{" in str(value)[:1] and isinstance(value, str) else value
            for name, value in _BODIES.get(attack.operation, {}).items()}  # fmt: skip
    params = {name: value.format(**ids) for name, value in attack.params.items()}
    return await api.client.request(
        attack.method,
        attack.path.format(**ids),
        params=params,
        headers=headers,
        json=body if attack.method in ("POST", "PUT", "PATCH") else None,
    )


async def test_a_key_of_another_project_gets_nothing(raid: Raid) -> None:
    with every_row() as row:
        for scope in _SCOPES:
            for attack in _attacks():
                with row(attack.name, scope):
                    answer = raid.answers[attack.name, scope]
                    allowed = {200} if attack.listing else set()
                    assert answer.status_code in {403, 404} | allowed, answer.text
                    sent = f"{answer.request.url} {answer.request.content.decode()}"  # an error may repeat it
                    known = {each for each in (*raid.ids.values(), MARK) if each not in sent}
                    assert not [each for each in known if each in answer.text], answer.text


async def test_without_a_valid_key_a_route_answers_nothing(raid: Raid) -> None:
    with every_row() as row:
        for who in ("none", "forged"):
            for attack in _attacks():
                with row(attack.name, who):
                    answer = raid.answers[attack.name, who]
                    assert answer.status_code in {401, 429}, answer.text
                    assert not [each for each in {*raid.ids.values(), MARK} if each in answer.text]


async def test_no_request_has_changed_a_row_of_the_other_project(raid: Raid) -> None:
    assert raid.before == raid.after
    filled = {table for table, rows in raid.before.items() if rows}
    assert len(filled) >= 17, sorted(filled)


async def test_every_request_that_writes_has_a_body_that_is_valid_for_the_owner(raid: Raid) -> None:
    """Else it would have been refused for its form, and prove nothing."""
    refused = {name: answer.text for (name, _), answer in raid.answers.items() if answer.status_code in (400, 405)}
    assert refused == {}
    written = {attack.operation for attack in _attacks()} & _BODIES.keys()
    assert written == set(_BODIES)
