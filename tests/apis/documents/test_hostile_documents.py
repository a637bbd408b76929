"""API documents of a hostile author: each is refused with the place, or gives an app whose use stays cheap."""

import random
from collections.abc import Callable

import pytest

from app.apis.catalog import Catalog, Operation, Parameter
from app.apis.documents.protocols import encode, parse_document
from app.apis.look_ups import show_api_doc
from app.apis.naming import nearest
from app.base.errors import HostError
from app.base.values import Json
from tests.support.document_parts import REF, answer, body, get, nest, openapi, parsed, query, use
from tests.support.every_row import every_row
from tests.support.processor_time import within


def recursive(width: int) -> dict[str, Json]:
    fields = {f"field{number}": {"$ref": f"{REF}Node"} for number in range(width)}
    return {"type": "object", "properties": fields}


def entangled(word: str, width: int, levels: int) -> dict[str, Json]:
    """Schemas that refer to the next one several times over."""
    return {
        f"S{level}": {word: [{"$ref": f"{REF}S{level + 1}"}] * width} if level < levels else {"type": "string"}
        for level in range(levels + 1)
    }


def twins(levels: int) -> dict[str, Json]:
    """Two families of schemas with equal members, so that merging compares them."""
    return {
        f"{family}{level}": {
            "type": "array",
            "items": {"properties": {name: {"$ref": f"{REF}{family}{level + 1}"} for name in "abcdefgh"}},
        }
        for family in "LR"
        for level in range(levels)
    } | {f"{family}{levels}": {"type": "string"} for family in "LR"}


HOSTILE: dict[str, Callable[[], dict[str, Json]]] = {
    "one operationId 8,000 times": lambda: openapi(
        {f"/p{n}": {"get": {"operationId": "a"}} for n in range(8_000)}
    ),
    "taken numbers": lambda: openapi(
        {f"/p{n}": {"get": {"operationId": f"a_{n % 99}"}, "put": {"operationId": "a"}} for n in range(5000)}
    ),
    "too many operations": lambda: openapi({f"/p{n}": {"get": {}} for n in range(20_001)}),
    "a recursive schema": lambda: openapi(get(**answer({"$ref": f"{REF}Node"})), Node=recursive(30)),
    "a recursive argument": lambda: openapi(
        {"/x": {"post": {"operationId": "x", **body({"$ref": f"{REF}Node"})}}}, Node=recursive(30)
    ),
    "alternatives of alternatives": lambda: openapi(
        {"/x": {"post": {**body({"$ref": f"{REF}S0"}), **answer({"$ref": f"{REF}S0"})}}},
        **entangled("anyOf", 30, 7),
    ),
    "allOf of allOf": lambda: openapi({"/x": {"post": body({"$ref": f"{REF}S0"})}}, **entangled("allOf", 30, 7)),
    "equal families": lambda: openapi(
        {"/x": {"post": body({"allOf": [{"$ref": f"{REF}L0"}, {"$ref": f"{REF}R0"}]})}}, **twins(7)
    ),
    "a wide allOf": lambda: openapi(
        {"/x": {"post": body({"allOf": [{"properties": {f"f{n}": {}}} for n in range(20_000)]})}}
    ),
    "one big schema merged often": lambda: openapi(
        {"/x": {"post": body({"allOf": [{"$ref": f"{REF}Big"}] * 1_000})}},
        Big={"properties": {f"f{n}": {"type": "string"} for n in range(5000)}},
    ),
    "a big operation shared by many paths": lambda: openapi(
        {f"/p{n}": {"$ref": "#/paths/~1big"} for n in range(10_000)}
        | {"/big": {"get": {"summary": "s" * 100_000, "description": "d" * 100_000}}}
    ),
    "many parameters shared by many paths": lambda: openapi(
        {f"/p{n}": {"$ref": "#/paths/~1big"} for n in range(2_000)}
        | {"/big": {"get": {"parameters": [{"name": f"q{n}", "in": "query"} for n in range(5_000)]}}}
    ),
    "a pointer of 5,000 digits": lambda: openapi({"/x": {"$ref": "#/servers/" + "1" * 5000}}),
    "a pointer of 1,000 digits": lambda: openapi({"/x": {"$ref": "#/servers/" + "1" * 1000}}),
    "a pointer beyond an index": lambda: openapi({"/x": {"$ref": "#/servers/99999999999999999999"}}),
    "a deep schema": lambda: openapi(get(**answer(nest("items", 900)))),
    "a deep allOf": lambda: openapi({"/x": {"post": body(nest("allOf", 300))}}),
    "a deep not": lambda: openapi({"/x": {"post": {"operationId": "x", **body(nest("not", 200))}}}),
    "large patterns": lambda: openapi(
        get(parameters=[query(f"q{n}", pattern=f"((a{{1,30}}){{1,30}}){n}") for n in range(5_000)])
    ),
    "patterns of names": lambda: openapi(
        {
            "/x": {
                "post": body(
                    {"items": {"patternProperties": {"(": {}, "(?=a)": {}}, "additionalProperties": False}}
                )
            }
        }
    ),
    "a huge enum": lambda: openapi(get(parameters=[query("q", enum=list(range(300_000)), nullable=True)])),
    "a huge default": lambda: openapi(get(parameters=[query("q", default=[["x" * 1000] * 1000])])),
    "integers beyond 64 bits": lambda: openapi(get(parameters=[query("q", maximum=10**30, enum=[10**300])])),
    "integers beyond a float": lambda: openapi(
        get(parameters=[query("q", maximum=10**3000, multipleOf=10**3000, enum=[10**3000])])
    ),
    "numbers that are none": lambda: openapi(
        get(parameters=[query("q", maximum=float("nan"), multipleOf=float("inf"), default=float("nan"))])
    ),
    "half a surrogate pair": lambda: openapi(
        get(summary="\ud800", parameters=[query("\udfff", pattern="\ud800")])
    ),
    "a media type of two lines": lambda: openapi(
        {"/x": {"post": {"requestBody": {"content": {"text/x\r\nEvil: 1": {"schema": {}}}}}}}
    ),
    "types repeated": lambda: openapi(get(parameters=[query("q", type=["string"] * 200_000)])),
    "fields without end": lambda: openapi(
        get(**answer({"type": "object", "properties": {f"f{n}": {} for n in range(100_000)}}))
    ),
    "a long path": lambda: openapi({"/" + "{a}" * 100_000: {"get": {"parameters": [query("a")] * 1000}}}),
    "a header of two lines": lambda: openapi(get(parameters=[{"name": "X-A\r\nEvil: 1", "in": "header"}])),
}


@pytest.mark.slow
def test_a_hostile_document_is_refused_or_usable_within_moments() -> None:
    with every_row() as row:
        for kind in HOSTILE:
            with row(kind):
                made = HOSTILE[kind]()
                with within():
                    app = parsed(made)
                if app is None:
                    continue
                with within():
                    use(app)


def test_an_unknown_name_is_compared_with_hostile_ones_within_moments() -> None:
    pick = random.Random(1)
    names = ["".join(pick.choices("ab", k=100)) for _ in range(5_000)]
    with within():
        assert nearest("ab" * 50, names).startswith("did you mean")


def test_names_stay_those_that_counting_gives() -> None:
    ids = ["a", "a", "a_2", "a", "b", "a_2"]
    made = openapi({f"/p{number}": {"get": {"operationId": each}} for number, each in enumerate(ids)})
    assert list(parse_document("t", made).operations) == ["a", "a_2", "a_2_2", "a_3", "b", "a_2_3"]


def test_what_is_beyond_the_size_of_a_look_up_is_shown_as_its_type() -> None:
    wide = {"type": "object", "properties": {f"f{number}": {"type": "string"} for number in range(6_000)}}
    row = {"type": "object", "properties": {"wide": wide, "id": {"type": "integer"}}}
    app = parse_document("t", openapi(get(**answer({"type": "array", "items": row}))))
    shown = show_api_doc(Catalog({"t": app}), "t", "x")["response_schemas"]["success"]
    assert shown == [{"wide": "object", "id": "integer"}]


@pytest.mark.parametrize(
    "name",
    ["Host", "transfer-encoding", "Content-Length", "X-Forwarded-For", "Proxy-Authorization", "Cookie", "TE"],
)
def test_a_document_cannot_make_an_argument_of_a_header_that_is_ours(name: str) -> None:
    parameters = [{"name": name, "in": "header"}, {"name": "X-Trace", "in": "header"}]
    app = parse_document("t", openapi(get(parameters=parameters)))
    assert [each.wire_name for each in app.operations["x"].parameters] == ["X-Trace"]
    own = Parameter(name="own", wire_name=name, place="header", required=True, schema={})
    operation = Operation(app="t", name="x", method="GET", path="/x", summary="", parameters=(own,))
    with pytest.raises(HostError, match="this header cannot be set"):
        encode(app, operation, {"own": "1"})


def test_arguments_that_form_one_segment_cannot_climb_together() -> None:
    parameters = [{"name": name, "in": "path"} for name in ("a", "b")]
    app = parse_document("t", openapi({"/x/{a}{b}": {"get": {"operationId": "x", "parameters": parameters}}}))
    assert encode(app, app.operations["x"], {"a": "v", "b": ".1"}).target == "/x/v.1"
    for second in (".", "%2e"):
        with pytest.raises(HostError, match="cannot be"):
            encode(app, app.operations["x"], {"a": ".", "b": second})
