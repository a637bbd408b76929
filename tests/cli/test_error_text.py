"""What the command line says of errors: no names of classes, no routes of REST, no regular expressions."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec

from app.base import errors
from app.client.words import readable_error
from tests.support.every_row import every_row
from tests.support.reference_pages import openapi_document

ROOT = Path(__file__).parents[1].parent
_ROUTE = re.compile(r"(GET|POST|PUT|PATCH|DELETE) /v1/")


def texts() -> Iterator[tuple[str, str]]:
    """Every text of the code that names a route, with its place; values that are filled in are X."""
    for path in sorted([*ROOT.glob("app/**/*.py"), *ROOT.glob("trainer/**/*.py")]):
        tree = ast.parse(path.read_text())
        docs = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        inner = {part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            if node not in docs | inner and _ROUTE.search(text := text_of(node)):
                yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}", text


def text_of(node: ast.AST) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) or "X" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def test_every_route_that_an_error_names_is_told_as_a_command_or_as_the_console() -> None:
    with every_row() as row:
        for place, text in texts():
            with row(place):
                assert "/v1/" not in readable_error(text), readable_error(text)


def test_the_name_of_every_error_is_left_out() -> None:
    kinds = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, Exception)]
    with every_row() as row:
        for name in [each.__name__ for each in kinds] + ["ValueError", "httpx.ReadTimeout", "SkillFolderError"]:
            with row(name):
                assert readable_error(f"{name}: it is full") == "it is full"


def test_every_pattern_of_a_field_is_told_in_words() -> None:
    patterns = set(_patterns(openapi_document()))
    assert len(patterns) > 10
    with every_row() as row:
        for pattern in patterns:
            with row(pattern):
                kind = msgspec.defstruct("Thing", [("name", _of(pattern))])
                told = readable_error(_refusal(kind, {"name": "\n\0 "}))
                assert told.startswith("name ")
                assert not re.search(r"[`^$\\]|regex", told), told


def test_what_is_wrong_with_a_value_is_told_in_words() -> None:
    kind = msgspec.defstruct(
        "Thing",
        [
            ("count", _of(ge=2, kind=int)),
            ("share", _of(gt=0, le=1, kind=float)),
            ("name", _of(min_length=2, max_length=3)),
            ("on", bool),
        ],
        forbid_unknown_fields=True,
    )
    right: dict[str, Any] = {"count": 2, "share": 1.0, "name": "abc", "on": True}
    with every_row() as row:
        for wrong, told in (
            ({"count": 1}, "count must be at least 2"),
            ({"count": "many"}, "count must be a whole number"),
            ({"share": 0}, "share must be more than 0.0"),
            ({"share": 2}, "share must be at most 1.0"),
            ({"name": "a"}, "name needs at least 2 characters"),
            ({"name": "abcd"}, "name may have at most 3 characters"),
            ({"name": 7}, "name must be text"),
            ({"on": 7}, "on must be true or false"),
            ({"of": 7}, "has no field of"),
        ):
            with row(told):
                assert readable_error(_refusal(kind, right | wrong)) == told
        with row("missing"):
            assert readable_error(_refusal(kind, {})) == "lacks the field count"


def _patterns(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("pattern"), str):
            yield node["pattern"]
        for each in node.values():
            yield from _patterns(each)
    elif isinstance(node, list):
        for each in node:
            yield from _patterns(each)


def _of(pattern: str | None = None, *, kind: type = str, **limits: Any) -> Any:
    return Annotated[kind, msgspec.Meta(pattern=pattern, **limits)]


def _refusal(kind: type, value: dict[str, Any]) -> str:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        return str(error)
    raise AssertionError(f"{value} fits")
