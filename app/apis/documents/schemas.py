"""JSON Schema at limited cost: the schemas are foreign, and sandboxed code chooses the values. Pure.

Patterns are matched in time linear in the text by RE2. Resolved schemas share parts and unfold without bound,
so only the beginning of a text about them is written.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final

import re2
from jsonschema import Draft202012Validator, validators
from jsonschema.exceptions import ValidationError, best_match
from referencing import Registry

from app.base.values import Json

_MEMORY = 1 << 20  # of one compiled pattern
_INSTRUCTIONS = 4_000
_LENGTH = 2_000
_LITERAL = re.compile(r"/\^.*|/.+/[gimsuy]+", re.DOTALL)  # with the slashes of ECMAScript, which are no part of it
_ESCAPE = re.compile(r"(\\\\)|\\u(?:\{([0-9A-Fa-f]{1,6})\}|([0-9A-Fa-f]{4}))")  # of ECMAScript: \x{e9} in RE2

_STEPS = 60_000  # for one call of an API; a step takes up to 5 us
_CHARS_PER_STEP = 256  # of a text that is compared or shown
_PATTERN_STEP = 1024  # instructions times characters
_FRACTION_STEPS = 3  # of a float, which has up to 330 digits
_SCHEMA_CHARS = 400  # of a schema in a message
_NO_DOCUMENTS: Final[Registry[Any]] = Registry()  # the default one fetches what a schema refers to

_Keyword = Callable[[Any, Any, Any, Any], Iterator[ValidationError] | None]


class Pattern:
    """A compiled pattern. `size` is its number of instructions: a search costs at most length times size."""

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled
        self.size: int = compiled.programsize

    def found_in(self, text: str) -> bool:
        try:
            return self._compiled.search(text) is not None
        except UnicodeEncodeError:  # half a surrogate pair
            return self._compiled.search(text.encode("utf-8", "replace").decode()) is not None


@lru_cache(maxsize=4096)
def compiled(pattern: str) -> Pattern | None:
    r"""None for a pattern that RE2 lacks or that is too large: look-around, back-references, {2000}.

    And for one between slashes, which nothing would fit that it is meant for.

    >>> [compiled(text) is not None for text in (r"^\d+$", r"\u00e9", "(?=a)", r"(a)\1", "[", "/^a$/", "/a/")]
    [True, True, False, False, False, False, True]
    """
    if len(pattern) > _LENGTH or _LITERAL.fullmatch(pattern):
        return None
    options = re2.Options()
    options.log_errors, options.max_mem = False, _MEMORY
    try:
        in_re2 = _ESCAPE.sub(lambda found: found[1] or f"\\x{{{found[2] or found[3]}}}", pattern)
        result = Pattern(re2.compile(in_re2, options))
    except (re2.error, UnicodeEncodeError):
        return None
    return result if result.size <= _INSTRUCTIONS else None


def short_repr(value: Json, limit: int) -> str:
    """`repr(value)`, or its first `limit` characters and dots. Takes no longer than what it returns.

    >>> short_repr({"a": [1, None], "b": "xyz"}, 99), short_repr([[], {}, "long"], 9)
    ("{'a': [1, None], 'b': 'xyz'}", '[[], {}, ...')
    """
    text = ""
    for piece in _pieces(value):
        text += piece
        if len(text) > limit:
            return f"{text[:limit]}..."
    return text


def _pieces(value: Json) -> Iterator[str]:
    if isinstance(value, dict):
        yield "{"
        for number, (name, each) in enumerate(value.items()):
            yield f"{', ' if number else ''}{name!r}: "
            yield from _pieces(each)
        yield "}"
    elif isinstance(value, list):
        yield "["
        for number, each in enumerate(value):
            if number:
                yield ", "
            yield from _pieces(each)
        yield "]"
    else:
        yield repr(value)


class TooComplexError(Exception):
    """The arguments cannot be checked within the steps of one call."""


class _Steps:
    def __init__(self) -> None:
        self.left = _STEPS

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise TooComplexError


_steps: ContextVar[_Steps] = ContextVar("_steps")


class Check:
    """Checks one argument against its schema, at the expense of the call: see `start_counting`."""

    def __init__(self, schema: Mapping[str, Json]) -> None:
        self._validator = _LimitedValidator(schema, registry=_NO_DOCUMENTS)

    def accepts(self, value: Json) -> bool:
        """Raises TooComplexError."""
        try:
            return bool(self._validator.is_valid(value))
        except RecursionError as error:
            raise TooComplexError from error

    def error(self, value: Json) -> ValidationError | None:
        """The most relevant error. Raises TooComplexError."""
        try:
            found = best_match(self._validator.iter_errors(value))
        except RecursionError as error:
            raise TooComplexError from error
        return found if isinstance(found, ValidationError) else None


def start_counting() -> None:
    """Give the checks that follow, in this context, the steps of one call."""
    _steps.set(_Steps())


def _limited(keyword: _Keyword) -> _Keyword:
    """The keyword at its cost: the schema's alternatives, the value's parts, and the messages."""

    def run(validator: Any, given: Json, instance: Json, schema: Json) -> Iterator[ValidationError]:
        steps = _steps.get()
        steps.spend(1 + _parts(given) // (1 if given.__class__ is list else 8) + _parts(instance))
        for error in keyword(validator, given, instance, schema) or ():
            steps.spend(2 + len(error.message) // _CHARS_PER_STEP)
            yield error

    return run


def _parts(value: Json) -> int:
    return len(value) if isinstance(value, dict | list) else 0


def _search(pattern: str, text: str) -> bool:
    """Whether the pattern is in the text; True for a pattern that is left to the server."""
    machine = compiled(pattern)
    if machine is None:
        return True
    _steps.get().spend(1 + len(text) * machine.size // _PATTERN_STEP)
    return machine.found_in(text)


def _pattern(validator: Any, pattern: str, instance: Json, _: Json) -> Iterator[ValidationError]:
    if validator.is_type(instance, "string") and not _search(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, given: Json, instance: Json, _: Json) -> Iterator[ValidationError]:
    if validator.is_type(instance, "object"):
        for pattern, subschema in given.items():
            for name, value in instance.items():
                if _search(pattern, name):
                    yield from validator.descend(value, subschema, path=name, schema_path=pattern)


def _additional_properties(validator: Any, given: Json, instance: Json, schema: Json) -> Iterator[ValidationError]:
    if not validator.is_type(instance, "object"):
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    extras = [name for name in instance if name not in known and not any(_search(each, name) for each in patterns)]
    if isinstance(given, dict):
        for name in extras:
            yield from validator.descend(instance[name], given, path=name)
    elif not given and extras:
        shown = ", ".join(map(repr, sorted(extras)))
        if patterns:
            verb, listed = "does" if len(extras) == 1 else "do", ", ".join(map(repr, sorted(patterns)))
            yield ValidationError(f"{shown} {verb} not match any of the regexes: {listed}")
        else:
            verb = "was" if len(extras) == 1 else "were"
            yield ValidationError(f"Additional properties are not allowed ({shown} {verb} unexpected)")


def _unique_items(validator: Any, given: Json, instance: Json, _: Json) -> Iterator[ValidationError]:
    if not given or not validator.is_type(instance, "array"):
        return
    if len({_canonical(each) for each in instance}) < len(instance):
        yield ValidationError(f"{instance!r} has non-unique elements")


def _enum(_: Any, given: Json, instance: Json, __: Json) -> Iterator[ValidationError]:
    if isinstance(instance, str):
        among = instance in given
    else:
        own = _canonical(instance)
        among = any(own == _canonical(each) for each in given)
    if not among:
        yield ValidationError(f"{instance!r} is not one of {given!r}")


def _const(_: Any, given: Json, instance: Json, __: Json) -> Iterator[ValidationError]:
    if _canonical(instance) != _canonical(given):
        yield ValidationError(f"{given!r} was expected")


def _canonical(value: Json) -> str:
    """A text that two values share if they are equal in JSON Schema: 1 is 1.0, and neither is true.

    A text, because numbers with equal hashes are easily found, and would make a set of them slow.
    """
    if isinstance(value, dict):
        members = ",".join(f"{name!r}:{_canonical(value[name])}" for name in sorted(value))
        text = f"{{{members}}}"
    elif isinstance(value, list):
        text = f"[{','.join(map(_canonical, value))}]"
    else:
        whole = isinstance(value, float) and value.is_integer()
        text = repr(int(value) if whole else value)
    _steps.get().spend(1 + len(text) // _CHARS_PER_STEP)
    return text


def _multiple_of(validator: Any, given: Json, instance: Json, _: Json) -> Iterator[ValidationError]:
    if validator.is_type(instance, "number") and _as_written(instance) % _as_written(given):
        yield ValidationError(f"{instance!r} is not a multiple of {given}")


def _as_written(number: float) -> Fraction | int:
    """Exactly 0.07, which a float is only near to."""
    if isinstance(number, int):
        return number
    _steps.get().spend(_FRACTION_STEPS)
    return Fraction(repr(number))


def _not(validator: Any, given: Json, instance: Json, _: Json) -> Iterator[ValidationError]:
    if validator.evolve(schema=given).is_valid(instance):
        shown = short_repr(given, _SCHEMA_CHARS)
        yield ValidationError(f"{instance!r} should not be valid under {shown}")


_KEYWORDS: Final[Mapping[str, Any]] = {
    **Draft202012Validator.VALIDATORS,
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items,
    "enum": _enum,
    "const": _const,
    "multipleOf": _multiple_of,
    "not": _not,
}
_extend: Any = validators.extend  # it has no types
_LimitedValidator = _extend(Draft202012Validator, {name: _limited(each) for name, each in _KEYWORDS.items()})
