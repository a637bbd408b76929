"""What an OpenAPI document tells of the records behind it: collections, parts, actions, and what is left out."""

import time
from typing import Any

import pytest

from app.apis.double.model import Model, read_model
from app.apis.double.service import Double
from app.base.errors import ApiDocumentError
from app.base.values import Json
from tests.support.double_documents import DESK, answer, body, document, path, query
from tests.support.every_row import every_row

_NOTE: dict[str, Json] = {
    "type": "object",
    "required": ["id", "title"],
    "properties": {"id": {"type": "integer"}, "title": {"type": "string"}},
}
_ROWS: dict[str, Json] = {"type": "array", "items": _NOTE}


def model(paths: dict[str, Any], **more: Json) -> Model:
    return read_model("desk", document(paths, **more))


def reading(schema: Json, *parameters: Json) -> dict[str, Any]:
    return {"get": {"parameters": list(parameters), "responses": {"200": answer(schema)}}}


def test_lists_are_found_wherever_an_answer_has_them() -> None:
    meta: dict[str, Json] = {"type": "object", "properties": {"total": {"type": "integer"}}}
    rows: list[tuple[Json, tuple[str, ...] | None, str]] = [
        (_ROWS, (), "list"),
        ({"type": "object", "properties": {"items": _ROWS, "meta": meta}}, ("items",), "list"),
        ({"type": "object", "properties": {"notes": _ROWS, "count": {"type": "integer"}}}, ("notes",), "list"),
        ({"type": "object", "properties": {"data": {"properties": {"rows": _ROWS}}}}, ("data", "rows"), "list"),
        ({"type": "object", "additionalProperties": _NOTE}, (), "map"),
        ({"type": "object", "properties": {"notes": {"additionalProperties": _NOTE}}}, ("notes",), "map"),
        ({"allOf": [meta, {"properties": {"results": _ROWS}}]}, ("results",), "list"),
        ({"oneOf": [{"type": "null"}, _ROWS]}, (), "list"),
        ({"type": "array", "items": {"type": "string"}}, None, ""),
        ({"type": "object", "properties": {"id": {}, "title": {}, "lines": _ROWS}}, None, ""),
    ]
    with every_row() as row:
        for schema, keys, holds in rows:
            with row(keys, holds, schema):
                [made] = model({"/notes": reading(schema)}).operations.values()
                assert (made.role == "list") == (keys is not None)
                if keys is not None:
                    assert made.shape is not None
                    assert (made.shape.keys, made.shape.holds) == (keys, holds)


def test_a_record_is_found_in_its_wrapper_and_by_its_key() -> None:
    wrapped: dict[str, Json] = {"type": "object", "properties": {"note": _NOTE}}
    uuid: dict[str, Json] = {
        "type": "object",
        "properties": {"uuid": {"type": "string"}, "text": {"type": "string"}},
    }
    rows: list[tuple[str, Json, tuple[str, ...], str]] = [
        ("id", _NOTE, (), "id"),
        ("note_id", _NOTE, (), "id"),
        ("id", wrapped, ("note",), "id"),
        ("id", {"type": "object", "properties": {"data": _NOTE, "status": {"type": "string"}}}, ("data",), "id"),
        ("note_uuid", uuid, (), "uuid"),
        ("title", {"type": "object", "properties": {"title": {"type": "string"}, "size": {}}}, (), "title"),
    ]
    with every_row() as row:
        for name, schema, keys, key in rows:
            with row(name, schema):
                found = model({f"/notes/{{{name}}}": reading(schema, path(name))})
                [made] = found.operations.values()
                assert made.shape is not None
                assert (made.role, made.shape.keys, found.collections["notes"].key) == ("get", keys, key)


def test_what_cannot_be_answered_is_left_out_with_the_reason() -> None:
    binary: dict[str, Json] = {"content": {"image/png": {}}, "description": ""}
    upload: dict[str, Json] = {"content": {"application/octet-stream": {}}}
    rows: list[tuple[str, dict[str, Any], str]] = [
        ("/notes", {"get": {"responses": {"200": answer()}}}, "its answer has no schema"),
        ("/logo", {"get": {"responses": {"200": binary}}}, "its answer is a file"),
        ("/stream", {"get": {"responses": {"200": {"content": {"text/event-stream": {}}}}}}, "a stream of events"),
        ("/files", {"post": {"requestBody": upload, "responses": {"200": answer(_NOTE)}}}, "it takes a file"),
        ("/reindex", {"post": {"responses": {"200": answer(_NOTE)}}}, "what POST reindex does cannot be told"),
        ("/route", reading(_NOTE, query("from") | {"required": True}), "what its parameter 'from' chooses"),
        ("/login", {"get": {"responses": {"302": answer()}}}, "it answers with a redirect"),
        ("/n/{a}-{b}", reading(_NOTE, path("a"), path("b")), "a part of its path has more than one value"),
    ]
    with every_row() as row:
        for where, item, reason in rows:
            with row(where, reason):
                found = model({where: item, "/notes/{id}": reading(_NOTE, path("id"))})
                [left_out] = found.left_out
                assert reason in left_out.reason
                assert left_out.operation.endswith(where)
                assert found.coverage == "1 of 2"


def test_records_of_one_kind_are_one_collection_however_they_are_listed() -> None:
    """A list under a record, a list of some of them and a record's own path show the same records."""
    found = model(
        {
            "/teams": reading({"type": "array", "items": {"properties": {"id": {"type": "integer"}}}}),
            "/teams/{team_id}": reading({"properties": {"id": {"type": "integer"}}}, path("team_id")),
            "/teams/{team_id}/notes": {
                **reading(_ROWS, path("team_id")),
                "post": {
                    "parameters": [path("team_id")],
                    "requestBody": body(_NOTE),
                    "responses": {"201": answer(_NOTE)},
                },
            },
            "/notes/latest": reading(_ROWS),
            "/notes/{id}": reading(_NOTE, path("id", type="integer")),
        }
    )
    assert sorted(found.collections) == ["notes", "teams"]
    double = Double(found, "seed")
    head = {"content-type": "application/json"}
    made = double.respond("POST", "/teams/1/notes", "", head, b'{"id": 77, "title": "a"}').value
    assert double.respond("GET", "/notes/77").value == made
    assert made in double.respond("GET", "/teams/1/notes").value
    assert made in double.respond("GET", "/notes/latest").value
    assert made not in double.respond("GET", "/teams/2/notes").value
    assert double.respond("GET", "/teams/99/notes").status == 404


def test_links_are_told_from_names_and_types() -> None:
    people = {"type": "object", "properties": {"id": {"type": "integer"}, "name": {"type": "string"}}}
    fields: dict[str, Json] = {
        "id": {"type": "integer"},
        "user_id": {"type": "integer"},
        "owner": {"type": "object", "properties": {"id": {"type": "integer"}, "name": {"type": "string"}}},
        "userIds": {"type": "array", "items": {"type": "integer"}},
        "parent_id": {"type": "integer"},
        "user_count": {"type": "integer"},
        "user": {"type": "string"},
        "title": {"type": "string"},
    }
    note: dict[str, Json] = {"type": "object", "properties": fields}
    found = model(
        {
            "/users/{id}": reading(people, path("id", type="integer")),
            "/notes": {
                **reading({"type": "array", "items": note}),
                "post": {
                    "requestBody": body(
                        {"type": "object", "properties": {"owner": {"type": "integer"}, "user_id": {}}}
                    ),
                    "responses": {"201": answer(note), "422": answer()},
                },
            },
            "/notes/{id}": reading(note, path("id", type="integer")),
        }
    )
    links = {each.field: (each.collection, each.many, each.embedded) for each in found.collections["notes"].links}
    assert links == {
        "user_id": ("users", False, False),
        "owner": ("users", False, True),
        "userIds": ("users", True, False),
        "parent_id": ("notes", False, False),
    }
    double = Double(found, "seed")
    users = {each.key: each.fields for each in double.state.records["users"].values()}
    made = double.respond("POST", "/notes", "", {"content-type": "application/json"}, b'{"owner": 1}').value
    assert made["owner"] == {name: users["1"][name] for name in ("id", "name")}
    refused = double.respond("POST", "/notes", "", {"content-type": "application/json"}, b'{"user_id": 99}')
    assert refused.status == 422
    for each in double.state.records["notes"].values():
        if each.key == str(made["id"]):
            continue
        assert each.fields["owner"] == users[str(each.fields["owner"]["id"])]
        assert str(each.fields["user_id"]) in users


def test_counters_count_the_records_that_there_are() -> None:
    team = {"id": {"type": "integer"}, "note_count": {"type": "integer"}, "num_members": {"type": "integer"}}
    note = {"id": {"type": "integer"}, "team_id": {"type": "integer"}, "page_count": {"type": "integer"}}
    member = {"id": {"type": "integer"}}
    number = path("team_id", type="integer")
    found = model(
        {
            "/teams/{team_id}": reading({"type": "object", "properties": team}, number),
            "/notes/{id}": {
                **reading({"type": "object", "properties": note}, path("id", type="integer")),
                "delete": {"parameters": [path("id", type="integer")], "responses": {"204": answer()}},
            },
            "/teams/{team_id}/members": reading({"type": "array", "items": {"properties": member}}, number),
        }
    )
    double = Double(found, "seed")
    notes = [each.fields["team_id"] for each in double.state.records["notes"].values()]
    for key in {str(each) for each in notes}:
        team_now = double.respond("GET", f"/teams/{key}").value
        assert team_now["note_count"] == notes.count(int(key))
        assert team_now["num_members"] == len(double.respond("GET", f"/teams/{key}/members").value)
    [first, *_] = double.state.records["notes"].values()
    before = double.respond("GET", f"/teams/{first.fields['team_id']}").value["note_count"]
    double.respond("DELETE", f"/notes/{first.key}")
    assert double.respond("GET", f"/teams/{first.fields['team_id']}").value["note_count"] == before - 1


def _many(count: int) -> dict[str, Json]:
    """So many operations, five a collection, whose schemas refer to one another."""
    paths: dict[str, Any] = {}
    schemas: dict[str, Any] = {}
    for number in range(count // 5):
        noun = f"thing{number}"
        reference = {"$ref": f"#/components/schemas/{noun}"}
        fields: dict[str, Json] = {f"field_{each}": {"type": "string"} for each in range(30)}
        more = {"next": {"$ref": f"#/components/schemas/thing{(number + 1) % (count // 5)}"}}
        schemas[noun] = {"type": "object", "properties": {"id": {"type": "integer"}, **fields, **more}}
        paths[f"/{noun}s"] = {
            **reading({"type": "array", "items": reference}),
            "post": {"requestBody": body(reference), "responses": {"201": answer(reference)}},
        }
        paths[f"/{noun}s/{{id}}"] = {
            "parameters": [path("id", type="integer")],
            **reading(reference),
            "put": {"requestBody": body(reference), "responses": {"200": answer(reference)}},
            "delete": {"responses": {"204": answer()}},
        }
    return document(paths, schemas)


def test_a_document_that_tells_little_or_nonsense_is_modelled_as_far_as_it_goes() -> None:
    tree: dict[str, Any] = {
        "Tree": {
            "type": "object",
            "required": ["id"],
            "properties": {
                "id": {"type": "integer"},
                "parent": {"$ref": "#/components/schemas/Tree"},
                "children": {"type": "array", "items": {"$ref": "#/components/schemas/Tree"}},
            },
        },
        "Endless": {
            "type": "object",
            "required": ["self"],
            "properties": {"self": {"$ref": "#/components/schemas/Endless"}},
        },
        "Wide": {
            "type": "object",
            "required": list("abcdefghij"),
            "properties": {each: {"$ref": "#/components/schemas/Wide"} for each in "abcdefghij"},
        },
        "Loop": {"$ref": "#/components/schemas/Loop"},
    }
    wrong: dict[str, Json] = {
        "type": "object",
        "required": ["id", "size"],
        "properties": {
            "id": {"type": "integer", "example": "not a number"},
            "size": {"type": "integer", "minimum": 5, "maximum": 3, "default": "big"},
        },
    }
    odd: dict[str, Json] = {
        "type": "object",
        "properties": {
            "id": {"type": "string", "pattern": "^(?=a)[0-9]+$", "example": 7},
            "state": {"type": "string", "enum": ["open"], "default": "lost", "example": ["x"]},
            "text": {"type": "string", "minLength": 50, "maxLength": 20},
            "bits": {"type": "object", "minProperties": 1_000_000_000},
            "rows": {"type": "array", "minItems": 1_000_000_000},
        },
        "example": "no object at all",
    }
    rows: list[tuple[str, dict[str, Json], str]] = [
        ("without a schema", document({"/": {"get": {"responses": {"200": {"description": ""}}}}}), "0 of 1"),
        (
            "a tree",
            document({"/x/{id}": reading({"$ref": "#/components/schemas/Tree"}, path("id"))}, tree),
            "1 of 1",
        ),
        (
            "endless",
            document({"/x/{id}": reading({"$ref": "#/components/schemas/Endless"}, path("id"))}, tree),
            "1 of 1",
        ),
        (
            "a loop",
            document({"/x/{id}": reading({"$ref": "#/components/schemas/Loop"}, path("id"))}, tree),
            "0 of 1",
        ),
        (
            "wide",
            document({"/x/{id}": reading({"$ref": "#/components/schemas/Wide"}, path("id"))}, tree),
            "0 of 1",
        ),
        ("no target", document({"/x/{id}": reading({"$ref": "#/nothing"}, path("id"))}), "0 of 1"),
        ("no value", document({"/x/{id}": reading(wrong, path("id"))}), "0 of 1"),
        ("odd examples", document({"/x/{id}": reading(odd, path("id"))}), "1 of 1"),
        ("no answers", document({"/x": {"get": {}}}), "0 of 1"),
        (
            "odd answers",
            document({"/x": {"get": {"responses": {"200": {"content": {"application/json": 3}}}}}}),
            "0 of 1",
        ),
    ]
    with every_row() as row:
        for name, given, coverage in rows:
            with row(name):
                started = time.process_time()
                found = read_model("desk", given)
                double = Double(found, "seed")
                assert found.coverage == coverage
                assert all(each.reason for each in found.left_out)
                for each in double.state.records.values():
                    for record in each.values():
                        assert double.respond("GET", f"/x/{record.key}").status == 200
                assert time.process_time() - started < 10


def test_what_is_no_document_is_refused_by_name() -> None:
    for given in ({}, {"openapi": "3.0.0", "paths": {}}, {"openapi": "9", "paths": {"/a": {}}}):
        with pytest.raises(ApiDocumentError):
            read_model("desk", given)


@pytest.mark.parametrize("count", [200, pytest.param(1_000, marks=pytest.mark.slow)])
def test_a_large_document_is_modelled_in_time(count: int) -> None:
    given = _many(count)
    started = time.process_time()
    found = read_model("desk", given)
    Double(found, "seed")
    assert found.coverage == f"{count} of {count}"
    assert time.process_time() - started < count / 50  # 20 s for 1,000


@pytest.mark.slow
def test_a_document_of_megabytes_is_modelled_in_time() -> None:
    described = {"x-text": "a long description " * 300_000}
    given = {**_many(100), "info": {"title": "Desk", "version": "1", **described}}
    started = time.process_time()
    assert read_model("desk", given).coverage == "100 of 100"
    assert time.process_time() - started < 20


def test_answers_of_the_real_server_stand_in_for_schemas_that_the_document_lacks() -> None:
    given = document({"/notes": {"get": {"operationId": "listNotes", "responses": {"200": answer()}}}})
    assert read_model("desk", given).coverage == "0 of 1"
    [name] = read_model("desk", given).app.operations
    found = read_model("desk", given, samples={name: {"notes": [{"id": 7, "title": "a"}]}})
    assert found.coverage == "1 of 1"
    [first, *_] = Double(found, "seed").respond("GET", "/notes").value["notes"]
    assert (type(first["id"]), type(first["title"])) == (int, str)


def test_swagger_2_is_modelled_as_openapi_is() -> None:
    note = {"type": "object", "properties": {"id": {"type": "integer"}, "title": {"type": "string"}}}
    given: dict[str, Json] = {
        "swagger": "2.0",
        "info": {"title": "Desk", "version": "1"},
        "host": "desk.test",
        "schemes": ["https"],
        "produces": ["application/json"],
        "paths": {
            "/notes": {
                "get": {"responses": {"200": {"description": "", "schema": {"type": "array", "items": note}}}},
                "post": {
                    "parameters": [{"name": "note", "in": "body", "schema": note}],
                    "responses": {"201": {"description": "", "schema": note}},
                },
            }
        },
    }
    found = read_model("desk", given)
    assert [each.role for each in found.operations.values()] == ["list", "create"]
    assert len(Double(found, "seed").respond("GET", "/notes").value) > 1


def test_every_role_of_the_desk_is_told() -> None:
    found = read_model("desk", DESK)
    roles = {f"{each.operation.method} {each.operation.path}": each.role for each in found.operations.values()}
    assert roles["PUT /notes/{id}"] == "replace"
    assert roles["PATCH /notes/{id}"] == "update"
    assert roles["POST /notes/{id}/close"] == "act"
    assert roles["GET /settings"] == "read"
    assert roles["PATCH /settings"] == "write"
    assert roles["GET /folders/{folder_id}/notes"] == "list"
    assert found.collections["folders"].unique == "name"
