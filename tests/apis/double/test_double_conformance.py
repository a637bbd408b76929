"""Doubles tried by Schemathesis with their own documents; these in any order, and bodies that are forms."""

import json
from pathlib import Path

import pytest

from app.apis.double.model import read_model
from app.apis.double.service import Double, Options, served_document
from app.base.values import Json
from tests.support.double_documents import DESK, answer, document, path
from tests.support.double_server import EVERY, violations

_PART = {"/notes", "/notes/{id}", "/folders"}
_CHECKS = (*EVERY, "negative_data_rejection")


def _small() -> dict[str, Json]:
    """A few operations of the desk."""
    paths = {name: item for name, item in DESK["paths"].items() if name in _PART}
    return {**DESK, "paths": {"/folders": paths["/folders"], "/notes/{id}": paths["/notes/{id}"]}}


def test_a_double_keeps_to_its_document(tmp_path: Path) -> None:
    double = Double(read_model("desk", _small()), "first")
    assert violations(double, tmp_path, _CHECKS, phases="fuzzing", examples=3) == ""


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["coverage", "fuzzing", "stateful"])
@pytest.mark.parametrize("thin", [False, True])
def test_a_double_keeps_to_its_document_at_the_limits_and_for_long(tmp_path: Path, phase: str, thin: bool) -> None:
    double = Double(read_model("desk", DESK), "first", Options(thin_lists=thin))
    assert violations(double, tmp_path, _CHECKS, phases=phase, examples=30) == ""


def test_the_document_of_a_double_has_what_is_modelled_in_an_order_that_its_seed_decides() -> None:
    model = read_model("desk", DESK)
    whole = served_document(model)
    assert "/notes/{id}/sync" not in whole["paths"]
    assert whole["paths"].keys() == DESK["paths"].keys() - {"/notes/{id}/sync"}
    first, again, other = (served_document(model, seed) for seed in ("a", "a", "b"))
    assert json.dumps(first) == json.dumps(again) != json.dumps(other)
    assert first["paths"] == whole["paths"] or sorted(first["paths"]) == sorted(whole["paths"])
    names = list(read_model("desk", first).operations)
    assert sorted(names) == sorted(model.operations)
    assert names != list(model.operations)
    fields = [list(each["components"]["schemas"]["Note"]["properties"]) for each in (first, other)]
    assert fields[0] != fields[1]
    assert sorted(fields[0]) == sorted(fields[1])


def test_a_reference_to_an_operation_that_is_left_out_still_leads_somewhere() -> None:
    note: dict[str, Json] = {"type": "object", "properties": {"id": {"type": "integer"}}}
    shared: dict[str, Json] = {"$ref": "#/paths/~1notes~1{id}~1sync/post/parameters/0"}
    given = document(
        {
            "/notes/{id}": {"get": {"parameters": [shared], "responses": {"200": answer(note)}}},
            "/notes/{id}/sync": {"post": {"parameters": [path("id")], "responses": {"200": answer(note)}}},
        }
    )
    model = read_model("desk", given)
    assert model.coverage == "1 of 2"
    assert read_model("desk", served_document(model, "a")).coverage == "1 of 1"


def test_forms_are_read_as_json_is() -> None:
    fields: dict[str, Json] = {
        "id": {"type": "integer"},
        "title": {"type": "string"},
        "stars": {"type": "integer"},
    }
    card: Json = {"type": "object", "properties": {"number": {"type": "integer"}}}
    fields |= {
        "card": card,
        "lines": {"type": "array", "items": card},
        "done": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
    }
    note: dict[str, Json] = {"type": "object", "required": ["title"], "properties": fields}
    kinds = ("application/x-www-form-urlencoded", "multipart/form-data")
    taken = {"requestBody": {"required": True, "content": {each: {"schema": note} for each in kinds}}}
    listed = {"get": {"responses": {"200": answer({"type": "array", "items": note})}}}
    double = Double(
        read_model(
            "desk", document({"/notes": {**listed, "post": {**taken, "responses": {"201": answer(note)}}}})
        ),
        "a",
    )
    form = double.respond(
        "POST", "/notes", "", {"content-type": kinds[0]}, b"title=7&stars=3&done=true&tags=a&tags=b"
    )
    wanted = {"title": "7", "stars": 3, "lines": [], "done": True, "tags": ["a", "b"]}
    assert form.value == {"id": form.value["id"], **wanted}
    deep = b"title=a&card[number]=7&lines[0][number]=1&lines[1][number]=2&tags[]=x"
    nested = double.respond("POST", "/notes", "", {"content-type": kinds[0]}, deep).value
    assert (nested["card"], nested["lines"]) == ({"number": 7}, [{"number": 1}, {"number": 2}])
    assert nested["tags"] == ["x"]
    parts = "".join(
        f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in (("title", "7"), ("stars", "3"), ("done", "true"), ("tags", "a"), ("tags", "b"))
    )
    head = {"content-type": f"{kinds[1]}; boundary=x"}
    several = double.respond("POST", "/notes", "", head, f"{parts}--x--\r\n".encode())
    assert several.value == {"id": several.value["id"], **wanted}
    refused = double.respond("POST", "/notes", "", {"content-type": "text/plain"}, b"title")
    assert refused.status == 400
