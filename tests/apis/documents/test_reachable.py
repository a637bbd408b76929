"""The servers that an API's calls can reach, whatever a task gives: what no trial may take for staging."""

import pytest

from app.apis.catalog import App
from app.apis.documents.protocols import parse_document
from app.apis.servers import CalledServers, address, reaches
from app.base.values import Json

REGIONS: dict[str, Json] = {"default": "eu", "enum": ["eu", "us"]}


def app(url: str, of_one_operation: str | None = None, **variables: Json) -> App:
    look: dict[str, Json] = {"operationId": "look", "responses": {}}
    if of_one_operation is not None:
        look["servers"] = [{"url": of_one_operation}]
    document: dict[str, Json] = {
        "openapi": "3.1.0",
        "servers": [{"url": url, "variables": variables}],
        "paths": {"/x": {"get": look}},
    }
    return parse_document("shop", document)


@pytest.mark.parametrize("region", ["eu", "us"])
def test_each_choice_of_a_variable_is_reached(region: str) -> None:
    shop = app("https://{region}.example.org/v1", region=REGIONS)
    assert reaches(CalledServers.of(shop), f"http://{region}.example.org") == f"https://{region}.example.org/v1"
    assert address(shop, shop.server, {"region": region}) == f"https://{region}.example.org/v1"


def test_another_value_than_the_choices_is_not_reached() -> None:
    assert (
        reaches(
            CalledServers.of(app("https://{region}.example.org", region=REGIONS)), "https://staging.example.org"
        )
        is None
    )


@pytest.mark.parametrize("default", [{}, {"default": "demo"}])
@pytest.mark.parametrize("tenant", ["acme", "demo", "eu.acme", "xn--bcher-kva", "ACME"])
def test_every_value_of_a_free_subdomain_is_reached(default: dict[str, Json], tenant: str) -> None:
    shop = app("https://{tenant}.api.example.org/v1", tenant=default)
    assert reaches(CalledServers.of(shop), f"https://{tenant}.api.example.org") == shop.server


@pytest.mark.parametrize(
    "url",
    ["https://api.example.org", "https://acme.api.example.org:8443", "https://acme.api.example.org.test"],
)
def test_a_free_subdomain_reaches_no_other_domain_and_no_other_port(url: str) -> None:
    assert reaches(CalledServers.of(app("https://{tenant}.api.example.org")), url) is None


@pytest.mark.parametrize(
    ("template", "reached", "not_reached"),
    [
        ("https://{name}/v1", "https://own.test", "https://evil.test"),
        ("https://{name}.test/{name}", "https://own.test.test", "https://evil.test"),
        ("https://shop.test:{port}/v1", "https://shop.test:8443", "https://shop.test:22"),
        ("{scheme}://shop.test/{port}", "https://shop.test", "https://shop.test:8443"),
    ],
)
def test_a_value_that_tasks_may_not_give_is_not_reached(template: str, reached: str, not_reached: str) -> None:
    ports: dict[str, Json] = {"default": "443", "enum": ["8443"]}
    shop = app(template, name={"default": "own.test"}, scheme={"default": "https"}, port=ports)
    assert reaches(CalledServers.of(shop), reached) is not None
    assert reaches(CalledServers.of(shop), not_reached) is None


def test_all_choices_of_several_variables_are_reached_together() -> None:
    ports: dict[str, Json] = {"default": "8443", "enum": ["8443", "9443"]}
    shop = app("https://{region}.example.org:{port}", region=REGIONS, port=ports)
    assert reaches(CalledServers.of(shop), "https://us.example.org:9443") == "https://us.example.org:9443"
    assert reaches(CalledServers.of(shop), "https://us.example.org") is None


def test_the_server_of_one_operation_is_reached_with_its_choices() -> None:
    shop = app("https://{region}.example.org", "https://reports-{region}.example.org", region=REGIONS)
    assert reaches(CalledServers.of(shop), "https://reports-us.example.org") is not None


def test_a_variable_that_nothing_fills_reaches_nothing() -> None:
    assert reaches(CalledServers.of(app("https://{host}/v1")), "https://shop.test") is None


def test_the_forms_of_all_addresses_are_counted_together() -> None:
    many: dict[str, Json] = {"default": "n1", "enum": [f"n{number}" for number in range(80)]}
    one = app("https://{a}-{b}.example.org", a=many, b=many)
    assert reaches(CalledServers.of(one), "https://n1-n2.example.org") is not None
    two = app("https://{a}-{b}.example.org", "https://{a}-{b}.example.com", a=many, b=many)
    with pytest.raises(ValueError, match="with the one that tasks call as `server`"):
        reaches(CalledServers.of(two), "https://staging.example.org")


def test_an_address_with_too_many_forms_says_what_to_do() -> None:
    many: dict[str, Json] = {"default": "n1", "enum": [f"n{number}" for number in range(200)]}
    with pytest.raises(ValueError, match="with the one that tasks call as `server`"):
        reaches(
            CalledServers.of(app("https://{a}-{b}.example.org", a=many, b=many)), "https://staging.example.org"
        )
