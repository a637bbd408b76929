"""The OpenAPI document of the server itself, and the page that shows it."""

from collections.abc import AsyncIterator

import pytest

from app.base.run_settings import RunSettings
from app.db.database import Sessions
from app.processes.dependencies import Dependencies
from app.projects.settings import ProjectSettings
from app.web.openapi import field_docs
from tests.support.api_app import ApiApp, open_api_app
from tests.support.reference_pages import openapi_document

OPENAI_PATHS = ("/v1/chat/", "/v1/models")  # with errors as OpenAI has them; fields that clients add are ignored


@pytest.fixture
async def api(committed: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url) as opened:
        yield opened


async def test_the_openapi_document_shows_errors_keys_and_every_route(api: ApiApp) -> None:
    del api.client.headers["Authorization"]
    document = (await api.client.get("/schema/openapi.json")).json()
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if path.startswith("/v1"):
                assert operation["security"] == [{"key": []}], (method, path)
                refusals = {"401"} if path == "/v1/environments" else {"401", "403"}  # any key may list those
                assert refusals <= operation["responses"].keys(), (method, path)
                assert operation["summary"], (method, path)
    submit = document["paths"]["/v1/tasks"]["post"]
    assert submit["operationId"] == "tasks_submit"
    assert {"202", "400", "404", "409", "413"} <= submit["responses"].keys()
    for status in ("400", "401", "409"):
        content = submit["responses"][status]["content"]
        assert content["application/problem+json"]["schema"] == {"$ref": "#/components/schemas/Problem"}
    names = {parameter["name"] for parameter in document["paths"]["/v1/tasks"]["get"]["parameters"]}
    assert {"state", "stop_reason", "scenario", "project", "cursor", "limit", "created_after"} <= names
    used = {tag for methods in document["paths"].values() for each in methods.values() for tag in each["tags"]}
    assert used <= {tag["name"] for tag in document["tags"]}


async def test_the_documentation_page_loads_nothing_from_other_hosts(api: ApiApp) -> None:
    del api.client.headers["Authorization"]
    page = await api.client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "//" not in page.text.replace("<!doctype", "")
    for name in ("swagger-ui-bundle.js", "swagger-ui.css", "favicon-32x32.png"):
        assert f"/docs/static/{name}" in page.text
        assert (await api.client.get(f"/docs/static/{name}")).status_code == 200


def test_every_error_in_the_document_is_a_problem_or_one_of_openai_s() -> None:
    operations = [
        (path, operation["responses"])
        for path, methods in openapi_document()["paths"].items()
        for operation in methods.values()
        if path.startswith("/v1")
    ]
    for path, responses in operations:
        errors = {status: each for status, each in responses.items() if status >= "400"}
        assert {"400", "401", "429", "500", "503"} <= errors.keys(), path
        spoken = "application/json" if path.startswith(OPENAI_PATHS) else "application/problem+json"
        for each in errors.values():
            assert list(each["content"]) == [spoken], path


def test_errors_outside_of_v1_are_problems_but_what_readyz_finds() -> None:
    content = {
        (path, status): list(each["content"])
        for path, methods in openapi_document()["paths"].items()
        for operation in methods.values()
        for status, each in operation["responses"].items()
        if status >= "400" and not path.startswith("/v1")
    }
    assert content.pop(("/readyz", "503")) == ["application/json"]
    assert set(map(tuple, content.values())) <= {("application/problem+json",)}, content


def test_every_body_in_the_document_is_closed_as_the_server_closes_it() -> None:
    document = openapi_document()
    schemas = document["components"]["schemas"]
    bodies = {
        reference["$ref"].rpartition("/")[2]
        for path, methods in document["paths"].items()
        if not path.startswith(OPENAI_PATHS)
        for operation in methods.values()
        for each in operation.get("requestBody", {"content": {}})["content"].values()
        for reference in each["schema"].get("oneOf", [each["schema"]])
        if "$ref" in reference
    }
    assert {"Submission", "ApiPatch", "RunRequest", "Rerun"} <= bodies
    open_bodies = {name for name in bodies | {"TaskRequest", "RunSettings"} if "properties" in schemas[name]
                   and schemas[name].get("additionalProperties") is not False}  # fmt: skip
    assert open_bodies == set()


async def test_the_root_and_the_usual_place_of_the_document_lead_to_them(api: ApiApp) -> None:
    del api.client.headers["Authorization"]
    root = await api.client.get("/", follow_redirects=True)
    assert root.url.path == "/docs"
    assert root.status_code == 200
    document = await api.client.get("/openapi.json", follow_redirects=True)
    assert document.json()["info"]["title"] == "sage-server"


def test_fields_are_described_as_in_the_source() -> None:
    schemas = openapi_document()["components"]["schemas"]
    for kind in (RunSettings, ProjectSettings):  # all are documented
        fields = schemas[kind.__name__]["properties"]
        assert {name: each.get("description") for name, each in fields.items()} == dict(field_docs(kind))
    renamed = schemas["TaskView"]["properties"]["stop_reason"]
    assert renamed["description"] == "why the rollout ended", "inherited"
    typed = schemas["TaskRequest"]["properties"]["instruction"]
    assert typed["description"].startswith("what to do"), "of its type"


async def test_no_field_of_a_body_has_the_name_of_a_dependency() -> None:
    """Its invalid values would be taken for a fault of the server."""
    document = openapi_document()
    bodies = [
        content["schema"].get("$ref", "").rpartition("/")[2]
        for methods in document["paths"].values()
        for each in methods.values()
        for content in each.get("requestBody", {}).get("content", {}).values()
    ]
    fields = {field for body in bodies if body for field in document["components"]["schemas"][body]["properties"]}
    assert len(fields) > 50
    assert not fields & {*Dependencies.__struct_fields__, "session", "access", "visit"}
