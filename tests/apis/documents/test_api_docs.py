"""Look-ups of APIs, and validation of the arguments passed to them."""

import pytest

from app.apis.calls.arguments import bind
from app.apis.catalog import Catalog, Operation, with_builtins
from app.apis.documents.protocols import parse_document
from app.apis.look_ups import (
    Room,
    search,
    shape,
    show_api_descriptions,
    show_api_doc,
    show_app_descriptions,
    show_signatures,
)
from app.base.errors import HostError
from app.base.values import Json

MAIL = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "sender": {"type": "string"}, "folder": {"type": "string"}},
}
NAMES = {"type": ["array", "null"], "items": {"type": "string"}}
TOKEN = {"name": "access_token", "in": "header", "required": True, "schema": {"type": "string"}}


def answer(schema: Json) -> Json:
    return {"200": {"content": {"application/json": {"schema": schema}}}}


def number(name: str, **more: Json) -> Json:
    return {"name": name, "in": "query", "schema": {"type": "integer", **more}}


DOCUMENT: dict[str, Json] = {
    "openapi": "3.1.0",
    "info": {"title": "Mail", "description": "Letters."},
    "servers": [{"url": "http://mail.test"}],
    "paths": {
        "/mails": {
            "get": {
                "operationId": "fetchMails",
                "summary": "list mails, pages start at 1",
                "parameters": [number("page", default=1, minimum=1), TOKEN, number("size")],
                "responses": answer({"type": "array", "items": MAIL}),
            },
            "post": {
                "operationId": "archiveMail",
                "description": "archive a mail\nIt is kept.",
                "requestBody": {
                    "required": True,
                    "content": {
                        "application/json": {
                            "schema": {
                                "type": "object",
                                "required": ["id"],
                                "properties": {
                                    "id": {"type": "integer"},
                                    "folder": {"type": ["string", "null"], "default": "old"},
                                },
                            }
                        }
                    },
                },
                "responses": answer(MAIL),
            },
            "delete": {"operationId": "countMails", "responses": answer({"type": "integer"})},
            "put": {
                "operationId": "nameMails",
                "responses": answer(NAMES),
            },
        }
    },
}
LETTERS = {**DOCUMENT, "paths": {"/letters": {"get": {"operationId": "fetchMails", "summary": "list mails"}}}}
CATALOG = Catalog({"mail": parse_document("mail", DOCUMENT)})
FETCH = CATALOG.apps["mail"].operations["fetch_mails"]
ARCHIVE = CATALOG.apps["mail"].operations["archive_mail"]


def test_a_signature_is_one_terse_line() -> None:
    assert show_signatures(CATALOG, "mail").splitlines() == [
        "fetch_mails(access_token, page=1, size=None) -> id, sender, folder: list mails, pages start at 1",
        'archive_mail(id, folder="old") -> id, sender, folder: archive a mail',
        "count_mails() -> integer",
        "name_mails() -> list of string",
    ]


def test_look_ups_have_the_shapes_of_app_world() -> None:
    assert show_app_descriptions(CATALOG) == [{"name": "mail", "description": "Letters."}]
    assert show_api_descriptions(CATALOG, "mail")[1] == {"name": "archive_mail", "description": "archive a mail"}
    assert show_api_doc(CATALOG, "mail", "fetch_mails") == {
        "app_name": "mail",
        "api_name": "fetch_mails",
        "path": "/mails",
        "method": "GET",
        "description": "list mails, pages start at 1",
        "parameters": [
            _described("access_token", "string", required=True),
            {**_described("page", "integer"), "default": 1, "constraints": ["value >= 1"]},
            _described("size", "integer"),
        ],
        "response_schemas": {"success": [{"id": "integer", "sender": "string", "folder": "string"}]},
    }


def _described(name: str, kind: str, *, required: bool = False) -> Json:
    return {
        "name": name,
        "type": kind,
        "required": required,
        "description": "",
        "default": None,
        "constraints": [],
    }


def test_an_unknown_app_or_api_is_answered_with_the_nearest_names() -> None:
    with pytest.raises(HostError, match="no app 'mial': did you mean mail"):
        show_signatures(CATALOG, "mial")
    with pytest.raises(HostError, match="no app 'archived': did you mean mail, which has archive_mail"):
        show_signatures(CATALOG, "archived")
    with pytest.raises(HostError, match="no app 'weather': there is mail"):
        show_signatures(CATALOG, "weather")
    with pytest.raises(HostError, match="did you mean fetch_mails"):
        show_api_doc(CATALOG, "mail", "fetch_mail")
    with pytest.raises(HostError, match=r"did you mean archive_mail\?"):
        show_api_doc(CATALOG, "mail", "mails_archive")
    with pytest.raises(HostError, match=r"no API 'letters' in mail: did you mean fetch_mails\?"):
        show_api_doc(Catalog({"mail": parse_document("mail", LETTERS)}), "mail", "letters")
    with pytest.raises(HostError, match="there is fetch_mails, archive_mail, count_mails, name_mails"):
        show_api_doc(CATALOG, "mail", "xyz")


def test_a_search_ranks_names_over_descriptions_and_omits_other_operations() -> None:
    assert search(CATALOG, "archive the mail")[0]["api_name"] == "archive_mail"
    assert [each["api_name"] for each in search(CATALOG, "page kept")] == ["fetch_mails", "archive_mail"]
    assert search(CATALOG, "payments") == []
    assert len(search(CATALOG, "mails", limit=2)) == 2


def test_a_supervisor_app_keeps_its_operations_and_gains_complete_task() -> None:
    own = parse_document("supervisor", DOCUMENT)
    names = with_builtins(Catalog({"supervisor": own})).names()
    assert names["supervisor"] == ["fetch_mails", "archive_mail", "count_mails", "name_mails", "complete_task"]
    assert with_builtins(CATALOG).names()["supervisor"] == ["complete_task"]


def test_arguments_are_bound_in_the_order_of_the_signature() -> None:
    assert bind(FETCH, ["tok", 2], {"size": 3}) == {"access_token": "tok", "page": 2, "size": 3}


def test_none_leaves_an_optional_argument_out_unless_its_schema_accepts_null() -> None:
    assert bind(FETCH, ["tok"], {"page": None}) == {"access_token": "tok"}
    assert bind(ARCHIVE, [1], {"folder": None}) == {"id": 1, "folder": None}


@pytest.mark.parametrize(
    ("operation", "args", "kwargs", "kind", "message"),
    [
        (FETCH, [], {}, "TypeError", "missing the required argument 'access_token'"),
        (FETCH, ["t", 1, 2, 3], {}, "TypeError", "takes 3 arguments but 4 were given"),
        (FETCH, ["t"], {"access_token": "u"}, "TypeError", "more than one value for 'access_token'"),
        (
            FETCH,
            ["t"],
            {"pages": 1},
            "TypeError",
            "has no argument 'pages', did you mean page?; signature: fetch_mails(",
        ),
        (FETCH, ["t"], {"page": 0}, "ValidationError", "argument 'page': 0 is less than the minimum of 1"),
        (FETCH, ["t"], {"page": "1"}, "ValidationError", "argument 'page': '1' is not of type 'integer'"),
        (FETCH, ["t"], {"page": True}, "ValidationError", "True is not of type 'integer'"),
        (FETCH, [None], {}, "ValidationError", "argument 'access_token': None is not of type 'string'"),
        (ARCHIVE, ["x" * 9000], {}, "ValidationError", "xxx..."),
    ],
)
def test_an_invalid_argument_is_named_with_the_reason(
    operation: Operation, args: list[Json], kwargs: dict[str, Json], kind: str, message: str
) -> None:
    with pytest.raises(HostError) as caught:
        bind(operation, args, kwargs)
    assert caught.value.kind == kind
    assert message in caught.value.message
    assert len(caught.value.message) < 600


@pytest.mark.parametrize("word", ["additionalProperties", "patternProperties"])
def test_a_map_shows_the_fields_of_its_values(word: str) -> None:
    mail = {"$ref": "#/components/schemas/Mail"}
    schema = {"type": "object", word: {"^m": mail} if word == "patternProperties" else mail}
    paths = {"/x": {"get": {"operationId": "list", "responses": answer(schema)}}}
    document = {**DOCUMENT, "paths": paths, "components": {"schemas": {"Mail": MAIL}}}
    catalog = Catalog({"mail": parse_document("mail", document)})
    assert show_signatures(catalog, "mail") == f"list() -> map of {', '.join(MAIL['properties'])}"
    shown = show_api_doc(catalog, "mail", "list")["response_schemas"]
    assert shown == {"success": {"<key>": shape(MAIL)}}


def test_an_object_that_allows_no_fields_is_no_map() -> None:
    closed = {"type": "object", "additionalProperties": False}
    paths = {"/x": {"get": {"operationId": "ping", "responses": answer(closed)}}}
    catalog = Catalog({"mail": parse_document("mail", {**DOCUMENT, "paths": paths})})
    assert show_signatures(catalog, "mail") == "ping() -> object"
    assert show_api_doc(catalog, "mail", "ping")["response_schemas"] == {"success": "object"}


def test_the_forms_of_all_arguments_together_are_limited() -> None:
    wide = {"type": "object", "properties": {f"f{at}": {"type": "string"} for at in range(3_000)}}
    fields = {f"body{at}": {"$ref": "#/components/schemas/Wide"} for at in range(50)}
    body = {"content": {"application/json": {"schema": {"type": "object", "properties": fields}}}}
    paths = {"/x": {"post": {"operationId": "send", "requestBody": body}}}
    document = {**DOCUMENT, "paths": paths, "components": {"schemas": {"Wide": wide}}}
    catalog = Catalog({"mail": parse_document("mail", document)})
    shown = show_api_doc(catalog, "mail", "send", room=Room(10**6))["parameters"]
    assert [len(each.get("fields", ())) for each in shown] == [3_000, *[0] * 49]


def test_an_argument_that_is_an_object_shows_its_fields() -> None:
    whole = {"type": "object", "properties": {"mail": MAIL, "note": {"type": "string"}}, "required": ["mail"]}
    body = {"required": True, "content": {"application/json": {"schema": whole}}}
    document = {**DOCUMENT, "paths": {"/x": {"post": {"operationId": "send", "requestBody": body}}}}
    catalog = Catalog({"mail": parse_document("mail", document)})
    mail, note = show_api_doc(catalog, "mail", "send")["parameters"]
    assert (mail["type"], mail["fields"]) == ("object", shape(MAIL))
    assert "fields" not in note


def test_the_place_within_an_argument_is_named() -> None:
    schema = {"type": "array", "items": MAIL}
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    document = {**DOCUMENT, "paths": {"/x": {"post": {"operationId": "send", "requestBody": body}}}}
    send = parse_document("mail", document).operations["send"]
    with pytest.raises(HostError, match=r"argument 'body': \[1\]\['id'\]: 'a' is not of type 'integer'"):
        bind(send, [[{"id": 1}, {"id": "a"}]], {})


def test_a_long_description_is_shown_in_pages_that_fit_and_together_are_all_of_it() -> None:
    text = "what it is good for, told at length " * 9
    row = {"type": "object", "properties": {f"field_{at}": {"type": "string"} for at in range(30)}}
    answered = {
        "type": "object",
        "properties": {"rows": {"type": "array", "items": row}, "next": {"type": "string"}},
    }
    given = {"type": "object", "properties": {f"part_{at}": {"type": "integer"} for at in range(40)}}
    body = {"type": "object", "required": ["item"], "properties": {"item": given, "note": {"type": "string"}}}
    node = {
        "operationId": "send",
        "description": text,
        "parameters": [{**number(f"option_{at}"), "description": text} for at in range(15)],
        "requestBody": {"content": {"application/json": {"schema": body}}},
        "responses": answer(answered),
    }
    catalog = Catalog({"mail": parse_document("mail", {**DOCUMENT, "paths": {"/x": {"post": node}}})})
    for chars in (300, 2_000, 8_000):
        names, parts, fields, page = set[str](), set[str](), set[str](), 0
        while True:
            page += 1
            shown = show_api_doc(catalog, "mail", "send", page, room=Room(chars, "Set option 14 by field 25."))
            assert len(repr(shown)) <= max(chars, 600), (chars, page)
            names |= {each["name"] for each in shown["parameters"]}
            parts |= {name for each in shown["parameters"] for name in each.get("fields", ())}
            success = shown["response_schemas"]["success"]
            fields |= {*success, *(success.get("rows", [{}])[0] if isinstance(success, dict) else ())}
            if page == 1 and chars > 300:
                assert {"item", "option_14"} <= names
                assert "field_25" in fields
            if "more" not in shown:
                break
            assert shown["more"].endswith(f": apis.api_docs.show_api_doc('mail', 'send', page={page + 1})")
        assert names == {*(f"option_{at}" for at in range(15)), "item", "note"}
        assert parts - {"..."} == set(given["properties"])
        assert fields - {*"..."} == {"rows", "next", *row["properties"]} | (fields & {"..."})
