"""The URL that a call and its token are sent to: the parts that a task may choose, and those that it may not."""

import pytest

from app.apis.documents.protocols import parse_document
from app.apis.servers import address, check_reachable
from app.base.errors import ApiDocumentError
from app.base.values import Json


def at(url: str, given: dict[str, str], **variables: Json) -> str:
    document: dict[str, Json] = {
        "openapi": "3.1.0",
        "servers": [{"url": url, "variables": variables}],
        "paths": {"/x": {"get": {"operationId": "look", "responses": {}}}},
    }
    app = parse_document("shop", document, source="https://documents.test/openapi.json")
    return address(app, app.server, given)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://shop.test/{name}/v1", "https://shop.test/w7/v1"),
        ("/{name}/v1", "https://documents.test/w7/v1"),
        ("https://{name}.shop.test:{port}/v1", "https://w7.shop.test:8443/v1"),
    ],
)
def test_a_task_may_choose_a_path_or_a_subdomain(url: str, expected: str) -> None:
    assert at(url, {"name": "w7"}, port={"default": 8443}) == expected


@pytest.mark.parametrize(
    ("url", "value"),
    [
        ("https://{name}/v1", "evil.test"),
        ("https://{name}.test/v1", "evil"),
        ("https://shop{name}/v1", "evil.test"),
        ("https://shop.test:{name}/v1", "22"),
        ("https://{name}.{port}/v1", "evil"),
        ("{name}://shop.test/v1", "ftp"),
        ("https://shop.test/{name}/v1", "../admin"),
        ("https://{name}.shop.test/v1", "evil.test/"),
    ],
)
def test_a_task_never_chooses_the_host_that_gets_the_token(url: str, value: str) -> None:
    with pytest.raises(ValueError, match="'name' cannot be part of the address of shop"):
        at(url, {"name": value}, name={"default": "own"}, port={"default": "443"})


def test_only_values_listed_in_the_document_may_be_chosen() -> None:
    listed: dict[str, Json] = {"default": "git.shop.test", "enum": ["git.shop.test", "git.shop.example"]}
    assert at("https://{host}/v1", {}, host=listed) == "https://git.shop.test/v1"
    assert at("https://{host}/v1", {"host": "git.shop.example"}, host=listed) == "https://git.shop.example/v1"
    with pytest.raises(ValueError, match=r"is none of git\.shop\.test, git\.shop\.example"):
        at("https://{host}/v1", {"host": "evil.test"}, host=listed)


def test_a_scheme_may_be_a_variable() -> None:
    assert at("{scheme}://shop.test/v1", {}, scheme={"default": "http"}) == "http://shop.test/v1"


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("http://127.0.0.1:8195api/v1", "Invalid port"),
        ("http://a.test:99999/x", "Port out of range"),
        ("https://[broken/x", "Invalid IPv6 URL"),
        ("http://a b/x", "no server has the host and port"),
        ("http://a.test:0", "no server has the host and port"),
        ("http://{host}:8x/v1", "Invalid port"),
    ],
)
def test_a_server_that_no_client_can_reach_is_refused(url: str, cause: str) -> None:
    with pytest.raises(ApiDocumentError, match=cause):
        check_reachable(url)


@pytest.mark.parametrize(
    "url", ["https://{region}.a.test:{port}/v1", "{scheme}://a.test/{v}", "http://[::1]:8/x", "https://é.test"]
)
def test_a_server_may_have_variables_anywhere(url: str) -> None:
    check_reachable(url)
