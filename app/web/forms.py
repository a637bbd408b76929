"""Forms: what was entered, read into a value, or told field by field what is wrong with it.

A form may be made out of the type of some settings. Fields of nested settings are named with a dot,
`limits.queued_tasks`. What has no simple field is written as JSON.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Generic, TypeVar

import msgspec
from litestar import Request
from msgspec import inspect as types

from app.base.errors import AppError, InvalidError
from app.base.untrusted import JsonError, decode_json
from app.base.values import Json
from app.web.openapi import field_docs, field_sections

T = TypeVar("T")

_PLACE = re.compile(r"^(?P<what>.*?)(?: - at `\$\.(?P<field>\w+)[^`]*`)?$", re.DOTALL)
_LEADING = re.compile(r"^`?(?P<field>\w+)`?(?:: |=)(?P<what>.+)$", re.DOTALL)
_WORDS = (
    (re.compile(r"expected `int`, got"), "enter a whole number"),
    (re.compile(r"expected `float`, got"), "enter a number"),
    (re.compile(r"expected `(?:int|float)` >= ([\d.e+-]+)"), r"must be at least \1"),
    (re.compile(r"expected `(?:int|float)` <= ([\d.e+-]+)"), r"must be at most \1"),
    (re.compile(r"expected `str` of length >= (\d+)"), r"needs at least \1 characters"),
    (re.compile(r"expected `str` of length <= (\d+)"), r"may have at most \1 characters"),
    (re.compile(r"expected `object` of length <= (\d+)"), r"may have at most \1 lines"),
    (re.compile(r"invalid enum value"), "choose one of the list"),
)
_PATTERN = "matching regex"
_LONG = 1_000  # characters from which a text gets a larger field


class Form(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """`value` is None if something is wrong: `errors` say what, by field, and `error` what belongs to none."""

    values: Mapping[str, str] = {}  # as they were entered
    value: T | None = None
    errors: Mapping[str, str] = {}
    error: str | None = None
    status: int = 200  # of the page that shows it

    def given(self) -> T:
        """The value, for forms of which no page shows what is wrong beside the fields. Raises InvalidError."""
        if self.value is None:
            raise InvalidError(self.error or "; ".join(f"{name}: {what}" for name, what in self.errors.items()))
        return self.value

    def refused(self, error: AppError) -> "Form[T]":
        """The same form, with what the server has against it, beside the field that its message begins with.

        >>> Form(values={"url": "x"}).refused(AppError("url: not a URL")).errors
        {'url': 'not a URL'}
        >>> Form(values={}).refused(AppError("it is full")).error
        'it is full'
        """
        found = _LEADING.match(str(error))
        if found and found["field"] in self.values:
            wrong = {found["field"]: found["what"]}
            return msgspec.structs.replace(self, value=None, errors=wrong, status=error.status)
        return msgspec.structs.replace(self, value=None, error=str(error), status=error.status)


async def read_form(request: Request[Any, Any, Any], kind: type[T]) -> Form[T]:
    """The form of a request as a struct. Fields that were left empty have their defaults."""
    entered = await request.form()
    return parse_form({name: value for name, value in entered.items() if isinstance(value, str)}, kind)


def parse_form(values: Mapping[str, str], kind: type[T]) -> Form[T]:
    """The text of a mapping has an entry on each line, as name = value.

    >>> class Cup(msgspec.Struct):
    ...     size: int
    ...     tea: str = "green"
    ...     labels: dict[str, str] = {}
    >>> parse_form({"size": "3", "tea": " ", "labels": "from = Uji\\n\\nsum=a=b"}, Cup).value
    Cup(size=3, tea='green', labels={'from': 'Uji', 'sum': 'a=b'})
    >>> parse_form({"size": "big"}, Cup).errors, parse_form({"tea": "black"}, Cup).errors
    ({'size': 'enter a whole number'}, {'size': 'must be filled in'})
    """
    known = {field.encode_name: field for field in _fields(kind)}  # type: ignore[arg-type]
    values = {name: value.replace("\r\n", "\n") for name, value in values.items() if name in known}
    try:
        given = {name: _entered(known[name], value) for name, value in values.items() if value.strip()}
        return Form(values=values, value=msgspec.convert(given, kind, strict=False))
    except InvalidError as error:
        return Form[T](values=values).refused(error)
    except msgspec.ValidationError as error:
        field, what = _read(str(error))
        if field is None:
            return Form(values=values, error=what, status=400)
        return Form(values={field: "", **values}, errors={field: readable(what, kind, field)}, status=400)


def _entered(field: types.Field, text: str) -> str | dict[str, str]:
    """Raises InvalidError."""
    if not isinstance(_plain_type(field.type)[0], types.DictType):
        return text
    lines = [line.partition("=") for line in text.splitlines() if line.strip()]
    if not all(equals and name.strip() for name, equals, _ in lines):
        raise InvalidError(f"{field.encode_name}: write one on each line, as name = value")
    return {name.strip(): value.strip() for name, _, value in lines}


def _read(message: str) -> tuple[str | None, str]:
    missing = re.match(r"Object missing required field `(\w+)`", message)
    if missing:
        return missing[1], "must be filled in"
    found = _PLACE.match(message)
    assert found is not None
    return found["field"], found["what"]


def readable(message: str, kind: type[Any], field: str) -> str:
    """
    >>> from app.base.fields import Name; import msgspec
    >>> class Cup(msgspec.Struct):
    ...     name: Name
    >>> readable("Expected `int`, got `str`", Cup, "name")
    'enter a whole number'
    >>> readable("Expected `str` matching regex '^a$'", Cup, "name")
    '1 to 64 letters, digits, `_`, `.` or `-`; starts with a letter or digit'
    >>> readable("Expected `int` >= 3", Cup, "name"), readable("`much` is wrong", Cup, "name")
    ('must be at least 3', '`much` is wrong')
    """
    message = message[:1].lower() + message[1:]
    if _PATTERN in message:
        return _description(kind, field) or "has characters that are not permitted here"
    for pattern, words in _WORDS:
        if found := pattern.match(message):
            return found.expand(words)
    return message


def _description(kind: type[Any], name: str) -> str:
    """Of the field's type, as the REST API documents it."""
    fields: Any = types.type_info(kind)
    of_field = next((each.type for each in fields.fields if each.encode_name == name), None)
    known = of_field.extra_json_schema or {} if isinstance(of_field, types.Metadata) else {}
    return str(known.get("description", ""))


class SettingField(msgspec.Struct, frozen=True, kw_only=True):
    """`kind` is that of the macro `field`, or `json`."""

    name: str
    label: str
    kind: str
    help: str
    choices: tuple[tuple[str, str], ...] = ()
    default: Json = None
    required: bool = False
    section: str = ""  # the comment above it in the source


class SettingGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Nested settings, and those that are not nested under the name "". `optional`: they may be missing."""

    name: str
    help: str
    fields: tuple[SettingField, ...]
    optional: bool = False


@cache
def setting_groups(kind: type[msgspec.Struct]) -> tuple[SettingGroup, ...]:
    """Those that are not nested come first."""
    helps, sections = field_docs(kind), field_sections(kind)
    plain: list[SettingField] = []
    nested: list[SettingGroup] = []
    for field in _fields(kind):
        inner, optional = _plain_type(field.type)
        text = helps.get(field.name, "")
        if isinstance(inner, types.StructType):
            inside = field_docs(inner.cls)
            fields = tuple(
                _field(f"{field.name}.{each.name}", each, inside.get(each.name, "")) for each in inner.fields
            )
            nested.append(SettingGroup(name=field.name, help=text, fields=fields, optional=optional))
        else:
            plain.append(_field(field.name, field, text, sections.get(field.name, "")))
    return SettingGroup(name="", help="", fields=tuple(plain)), *nested


def entered_values(settings: msgspec.Struct) -> dict[str, str]:
    """What the fields hold, as text; None is empty."""
    shown: dict[str, Any] = msgspec.to_builtins(settings)
    found = {}
    for group in setting_groups(type(settings)):
        inside = shown if not group.name else shown.get(group.name) or {}
        for field in group.fields:
            found[field.name] = _text(inside.get(field.name.rpartition(".")[2]), field)
    return found


def patch(kind: type[msgspec.Struct], entered: Mapping[str, str], before: Mapping[str, str]) -> dict[str, Json]:
    """What was entered and is not as before, as a JSON merge patch: empty restores a default.

    An optional group is there once its required fields are filled in. Raises InvalidError that names the field.
    """
    found: dict[str, Json] = {}
    for group in setting_groups(kind):
        values = {
            field.name.rpartition(".")[2]: _change(
                _value(field, before.get(field.name, "")), _value(field, entered.get(field.name, ""))
            )
            for field in group.fields
            if entered.get(field.name, "") != before.get(field.name, "")
        }
        if not group.name:
            found |= values
        elif group.optional and not all(entered.get(field.name) for field in group.fields if field.required):
            found |= {group.name: None} if any(before.get(field.name) for field in group.fields) else {}
        elif values:
            found[group.name] = values
    return found


def _field(name: str, field: types.Field, text: str, section: str = "") -> SettingField:
    inner, _ = _plain_type(field.type)
    kind, choices = _kind(inner)
    default = None if field.default is msgspec.NODEFAULT else msgspec.to_builtins(field.default)
    label = name.rpartition(".")[2].replace("_", " ").capitalize()
    return SettingField(
        name=name,
        label=label,
        kind=kind,
        help=text,
        choices=choices,
        default=default,
        required=field.required,
        section=section,
    )


def _kind(inner: types.Type) -> tuple[str, tuple[tuple[str, str], ...]]:
    match inner:
        case types.LiteralType() | types.EnumType():
            values = inner.values if isinstance(inner, types.LiteralType) else [each.value for each in inner.cls]
            return "select", tuple((f"{value}", f"{value}" or "none") for value in values)
        case types.BoolType():
            return "select", (("true", "yes"), ("false", "no"))
        case types.IntType() | types.FloatType() | types.DateTimeType() | types.CustomType():
            return "text", ()
        case types.StrType(max_length=most):
            return "textarea" if most and most > 2 * _LONG else "text", ()
    return "json", ()


def _plain_type(kind: types.Type) -> tuple[types.Type, bool]:
    """Without None and what documents it, and whether it may be None."""
    if isinstance(kind, types.Metadata):
        return _plain_type(kind.type)
    if isinstance(kind, types.UnionType):
        others = [each for each in kind.types if not isinstance(each, types.NoneType)]
        if len(others) == 1:
            return _plain_type(others[0])[0], len(others) < len(kind.types)
    return kind, False


def _value(field: SettingField, text: str) -> Json:
    text = text.strip() if field.kind != "textarea" else text
    if not text.strip():
        return None
    if (
        field.kind == "json"
        or (field.kind == "text" and _is_number(text))
        or field.choices[:1] == (("true", "yes"),)
    ):
        try:
            return decode_json(text.encode(), max_values=10_000, max_depth=20)
        except JsonError as error:
            raise InvalidError(f"{field.name}: {error}") from error
    return text


def _change(old: Json, new: Json) -> Json:
    """The merge patch that makes the new value out of the old one.

    >>> _change({"a": {"x": 1, "y": 2}, "b": 3}, {"a": {"x": 1}})
    {'a': {'x': 1, 'y': None}, 'b': None}
    """
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    gone = {name: None for name in old if name not in new}
    return {name: _change(old.get(name), value) for name, value in new.items()} | gone


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text[:1] in "-0123456789" and text[-1:].isdigit()


def _text(value: Json, field: SettingField) -> str:
    if value is None:
        return ""
    if field.kind == "json":
        return msgspec.json.format(msgspec.json.encode(value)).decode() if value else ""
    return (
        f"{value:g}" if isinstance(value, float) else f"{value}".lower() if isinstance(value, bool) else f"{value}"
    )


def _fields(kind: type[msgspec.Struct]) -> tuple[types.Field, ...]:
    shown: Any = types.type_info(kind)
    fields: tuple[types.Field, ...] = shown.fields
    return fields
