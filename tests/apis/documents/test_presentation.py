"""Which names the operations of an API have: unique, and the same in the next version of its document."""

import keyword
from typing import Any

import pytest

from app.apis.calls.arguments import bind_parameters
from app.apis.catalog import App, Catalog
from app.apis.documents.protocols import parse_document
from app.apis.naming import Naming, keys_of
from app.apis.presentation import AppView, OperationOverride, Presentation, keep_names, present
from app.projects.settings import ApprovalRules
from tests.support.document_parts import openapi
from tests.support.processor_time import growth

READABLE = Presentation(naming="readable")


def api(**operations: str) -> App:
    """Operations by operationId, each at "METHOD path"."""
    paths: dict[str, Any] = {}
    for operation_id, place in operations.items():
        method, path = place.split(" ")
        paths.setdefault(path, {})[method.lower()] = {"operationId": operation_id}
    return parse_document("t", openapi(paths))


def names(app: App, naming: Naming = "readable", before: App | None = None) -> list[str]:
    presentation = Presentation(naming=naming)
    if before is not None:
        old = AppView.of(present(before, presentation))
        presentation = keep_names(app, presentation, old.names)
    return list(present(app, presentation).operations)


def test_a_name_that_a_person_gave_comes_before_those_of_the_version_before() -> None:
    app = api(list_a="GET /a", list_b="GET /b", list_c="GET /c")
    first, second, _ = keys_of(list(app.operations.values()))
    called = OperationOverride(place="", was="list_a", name="browse")
    presentation = Presentation(naming="readable", overrides={first: called})
    for before, given in (
        ({first: "former"}, ["browse", "list_b", "list_c"]),  # another one by now
        ({second: "browse"}, ["browse", "list_b", "list_c"]),  # which was free until now
        ({first: "browse", second: "kept"}, ["browse", "kept", "list_c"]),
    ):
        kept = keep_names(app, presentation, before)
        assert list(present(app, kept).operations) == given


POOLS = {
    "create_queue_pools__name__queues_post": "POST /pools/{name}/queues",
    "create_queue_queues__post": "POST /queues/",
}


def test_names_that_two_operations_would_have_are_made_of_method_and_path() -> None:
    assert names(api(**POOLS)) == ["create_pool_queue", "create_queue"]
    reversed_order = api(**dict(reversed(POOLS.items())))
    assert names(reversed_order) == ["create_queue", "create_pool_queue"]


def test_names_are_unique_identifiers_whatever_the_document() -> None:
    hostile = api(
        **{
            "class": "GET /a",
            "2fa": "GET /b",
            "邮件": "GET /邮",
            "listA": "GET /c",
            "list_a": "GET /d",
            "": "GET /e",
        },
        **{"import": "POST /{a}", "list-a": "PUT /{a}", "_": "GET /_"},
    )
    given = names(hostile)
    assert len(set(given)) == len(given) == 9
    assert all(each.isidentifier() and not keyword.iskeyword(each) for each in given)


@pytest.mark.slow
def test_names_of_many_operations_are_found_in_time() -> None:
    def api_of(size: int) -> App:
        paths = [f"/pools/{{name}}/queues/{number % 50}/{{n{number}}}" for number in range(500 * size)]
        return parse_document("t", openapi({path: {"get": {}} for path in paths}))

    def name_twice(app: App) -> None:
        old = AppView.of(present(app, READABLE))
        assert len(present(app, keep_names(app, READABLE, old.names)).operations) == len(app.operations)

    assert growth(api_of, name_twice) < 24


@pytest.mark.parametrize("naming", ["readable", "operation_id"])
def test_names_stay_when_other_operations_are_added(naming: Naming) -> None:
    old = api(createQueue="POST /queues", create_queue="POST /pools/{name}/queues")
    new = api(
        CreateQueue="POST /a", createQueue="POST /queues", create_queue="POST /pools/{name}/queues", more="GET /z"
    )
    before, after = names(old, naming), names(new, naming, old)
    assert after[1:3] == before
    assert len(set(after)) == 4


def test_a_name_stays_when_the_operation_id_or_the_path_changes() -> None:
    old = api(listMails="GET /mails", sendMail="POST /mails")
    assert names(api(listAllMails="GET /mails", sendMail="POST /send"), before=old) == ["list_mails", "send_mail"]
    assert names(api(listAllMails="GET /all", sendMail="POST /mails"), before=old) == [
        "list_all_mails",
        "send_mail",
    ]


def test_an_api_without_presentation_has_the_names_of_the_document() -> None:
    app = api(**POOLS)
    assert present(app, Presentation()) is app
    assert list(app.operations) == ["create_queue_pools_name_queues_post", "create_queue_queues_post"]


def test_tools_of_mcp_servers_keep_their_names() -> None:
    tools = [{"name": "mails_list", "inputSchema": {"type": "object"}}]
    app = parse_document("t", {"mcp": "2025-06-18", "url": "http://a.test/mcp", "tools": tools})
    assert names(app) == ["mails_list"]


def test_rules_for_a_former_name_still_hold() -> None:
    [operation] = present(api(mails_delete="DELETE /mails/{id}"), READABLE).operations.values()
    former = [f"mail.{name}" for name in operation.former_names]
    assert (operation.name, former) == ("delete_mail", ["mail.mails_delete"])

    def wants(**operations: Any) -> bool:
        rules = ApprovalRules(
            default="never", operations={f"mail.{name}": mode for name, mode in operations.items()}
        )
        return rules.wants("mail.delete_mail", safe=False, risk=None, former=former)

    assert wants(mails_delete="always")
    assert wants(delete_mail="always")
    assert wants(delete_mail="never", mails_delete="always")
    assert not wants(list_mails="always")


def test_bindings_to_a_former_name_still_hold() -> None:
    token = {"name": "token", "in": "query", "required": True, "schema": {"type": "string"}}
    paths = {"/mails": {"get": {"operationId": "mails_list", "parameters": [token]}}}
    app = present(parse_document("mail", openapi(paths)), READABLE)
    bound = bind_parameters(app, {"mails_list": {"token": "secret:mail"}})
    assert [each.secret for each in bound.operations["list_mails"].bound] == ["mail"]


def test_code_may_call_an_operation_by_the_name_that_it_had_before() -> None:
    app = present(api(**POOLS, list_pools="GET /pools", ping="GET /ping"), READABLE)
    assert Catalog({"t": app}).callables() == {
        "t": [
            "create_pool_queue",
            "create_queue",
            "list_pools",
            "ping",
            "create_queue_pools_name_queues_post=create_pool_queue",
            "create_queue_queues_post=create_queue",
        ]
    }
    assert Catalog({"t": api(ping="GET /ping")}).callables() == {"t": ["ping"]}
