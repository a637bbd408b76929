"""Options of plug-ins, from text to the loader's arguments."""

from typing import Annotated, Literal

import msgspec
import pytest

from app.base.errors import InvalidError
from app.base.plugins import PluginSpec, load_options, options_schema, options_type


def load(
    *,
    place: str,
    count: Annotated[int, msgspec.Meta(ge=1)] | None = None,
    share: float = 0.0,
    kind: Literal["a", "b"] = "a",
    strict: bool = False,
) -> None:
    del place, count, share, kind, strict


def test_text_becomes_the_type_that_the_parameter_has() -> None:
    spec = PluginSpec.parse("x?place=http://host:1/v1?a=b&count=3&share=0.5&kind=b&strict=true")
    assert load_options(load, spec) == {
        "place": "http://host:1/v1?a=b",
        "count": 3,
        "share": 0.5,
        "kind": "b",
        "strict": True,
    }


def test_an_option_that_is_not_given_has_its_default_and_text_stays_text_where_text_is_wanted() -> None:
    options = load_options(load, PluginSpec.parse("x?place=7&count=null"))
    assert options == {"place": "7", "count": None, "share": 0.0, "kind": "a", "strict": False}


def test_the_schema_names_every_option_with_its_limits() -> None:
    schema = options_schema(load)
    assert list(schema["properties"]) == ["place", "count", "share", "kind", "strict"]
    assert schema["required"] == ["place"]
    assert schema["properties"]["count"]["anyOf"][0] == {"type": "integer", "minimum": 1}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("x", r"x needs the option place: x\?place=\.\.\."),
        ("x?place=a&size=1&colour=red", "x has no option colour, size; it has count, kind, place, share, strict"),
        ("x?place=a&count=0", "x: count=0: 0 is not valid"),
        ("x?place=a&share=most", "x: share=most: 'most' is not of type 'number'"),
        ("x?place=a&kind=c", r"x: kind=c: 'c' is not one of \['a', 'b'\]"),
        ("x?place=a&count=" + "[" * 100_000, "x: count="),
        ("x?place", r"write options as x\?option=value&option=value"),
    ],
)
def test_options_that_do_not_fit_are_named(text: str, error: str) -> None:
    with pytest.raises(InvalidError, match=error):
        load_options(load, PluginSpec.parse(text))


def test_an_option_without_a_type_is_a_defect_of_the_plug_in() -> None:
    def untyped(*, size=1) -> None:  # type: ignore[no-untyped-def]
        del size

    with pytest.raises(TypeError, match="untyped: the option size needs a type"):
        options_type(untyped)
