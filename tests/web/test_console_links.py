"""Answers of REST lead to pages of the console that the same key may see."""

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from app.base.values import Json
from app.db.database import Sessions
from app.projects import keys
from app.projects.keys import by_secret
from tests.support.api_app import ApiApp, asgi_client, open_api_app
from tests.support.tenant_rows import fill

_NAMES = {
    "projects": "{project}",
    "apis": "{api}",
    "secrets": "{secret}",
    "hosted-models": "{hosted}",
    "exams": "{exam}",
}
_PROJECT = "linked"
_KINDS = {
    "admin": {
        *("", "projects", "usage", "tasks", "approvals", "apis", "skills", "releases", "runs", "runs/schedule"),
        *("exams", "models", "secrets", "keys", "audit", "webhooks"),
    },
    "tasks": {"", "usage", "tasks", "apis", "releases"},
    "skills": {"skills"},
    "approvals": {"approvals"},
}
"""The pages that the answers to a key with this scope lead to; the first one is ""."""


@pytest.fixture
async def api(committed: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url) as opened:
        yield opened


@pytest.mark.parametrize("scope", _KINDS)
async def test_every_link_of_an_answer_is_a_page_of_the_same_key(api: ApiApp, scope: str) -> None:
    async with api.sessions.begin() as session:
        ids = await fill(session, _PROJECT)
    headers = await api.key(scope)
    async with api.sessions.begin() as session:
        found = await by_secret(session, headers["Authorization"].removeprefix("Bearer "))
        assert found is not None
        cookie = {"Cookie": f"sage_console={await keys.begin(session, found[0].id)}"}
    links = set[str]()
    for address, params in _reads(api, ids):
        answer = await api.client.get(address, params=params, headers=headers)
        if answer.headers["content-type"] == "application/json":
            links.update(_links(answer.json()))
    assert {_kind(each) for each in links} == _KINDS[scope]
    async with asgi_client(api.app, {}) as browser:
        for each in links:
            assert (await browser.get(each, headers=cookie)).status_code == 200, each


def _reads(api: ApiApp, ids: Mapping[str, str]) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Every address of what the project has, and of the lists, but for streams."""
    paths: dict[str, Any] = api.app.openapi_schema.to_schema()["paths"]
    for path, methods in paths.items():
        if not path.startswith("/v1/") or "get" not in methods or path.endswith("/events"):
            continue
        given = {each["name"]: each for each in methods["get"].get("parameters", []) if each["in"] == "query"}
        needed = {name: "1" for name, about in given.items() if about.get("required")}
        own = {"task_id": ids["task_id"]} if "task_id" in given else {}
        named = {"project": _PROJECT} if "project" in given else {}
        path = path.replace("{name}", _NAMES.get(path.split("/")[2], ""))
        yield path.format_map({name: quote(value) for name, value in ids.items()}), needed | own | named


def _links(value: Json) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(found := value.get("links"), dict):
            yield found["console"]
        yield from (link for each in value.values() for link in _links(each))
    elif isinstance(value, list):
        yield from (link for each in value for link in _links(each))


def _kind(link: str) -> str:
    """
    >>> _kind("/console/runs/schedule?project=x"), _kind("/console/tasks/7#feedback"), _kind("/console?project=x")
    ('runs/schedule', 'tasks', '')
    """
    path = httpx.URL(link).path.removeprefix("/console").strip("/")
    return path if path == "runs/schedule" else path.split("/")[0]
