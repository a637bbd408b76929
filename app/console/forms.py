"""Forms: what was entered, read into a value, or told field by field what is wrong with it."""

import re
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec
from litestar import Request

from app.console.form_messages import readable
from app.errors import AppError, InvalidError

T = TypeVar("T")

_PLACE = re.compile(r"^(?P<what>.*?)(?: - at `\$\.(?P<field>\w+)[^`]*`)?$", re.DOTALL)
_LEADING = re.compile(r"^`?(?P<field>\w+)`?(?:: |=)(?P<what>.+)$", re.DOTALL)


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
    """
    >>> class Cup(msgspec.Struct):
    ...     size: int
    ...     tea: str = "green"
    >>> parse_form({"size": "3", "tea": " "}, Cup).value
    Cup(size=3, tea='green')
    >>> parse_form({"size": "big"}, Cup).errors, parse_form({"tea": "black"}, Cup).errors
    ({'size': 'enter a whole number'}, {'size': 'must be filled in'})
    """
    known = {field.encode_name for field in msgspec.structs.fields(kind)}  # type: ignore[arg-type]
    values = {name: value.replace("\r\n", "\n") for name, value in values.items() if name in known}
    given = {name: value for name, value in values.items() if value.strip()}
    try:
        return Form(values=values, value=msgspec.convert(given, kind, strict=False))
    except msgspec.ValidationError as error:
        field, what = _read(str(error))
        if field is None:
            return Form(values=values, error=what, status=400)
        return Form(values={field: "", **values}, errors={field: readable(what, kind, field)}, status=400)


def _read(message: str) -> tuple[str | None, str]:
    missing = re.match(r"Object missing required field `(\w+)`", message)
    if missing:
        return missing[1], "must be filled in"
    found = _PLACE.match(message)
    assert found is not None
    return found["field"], found["what"]
