"""Values drawn for schemas: they fit, differ from each other, and are the same for the same seed. Pure.

A value follows what the schema says of it (constants, choices, formats, patterns, bounds), then an example of its
form, then the name of its field. What the schema requires is there; other fields are, up to a depth.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from random import Random
from typing import Final

from app.apis.double import texts
from app.apis.double.shapes import Fits, Schema, fields_of, flat, inferred, is_nullable, kind_of
from app.apis.naming import plain, singular, split_words, word_set
from app.base.errors import ApiDocumentError
from app.base.secrets import is_telling
from app.base.values import Json

Examples = Mapping[str, Sequence[Json]]
"""By the dotted name of a field."""

_NONE: Final[Examples] = {}
_FULL_DEPTH: Final = 3  # down to which objects get the fields that they need not have
_DEPTH: Final = 12
_BRANCHES: Final = 12  # of alternatives that are tried
_FIELDS: Final = 80  # of one value
_ITEMS: Final = 3
_CHARS: Final = 10_000  # of a text
_TRIES: Final = 6
_COUNTS: Final = word_set("count total size number quantity amount stock views likes comments")
_CREATED: Final = word_set("created inserted added opened started start begin from")
_LATER: Final = word_set("updated modified changed closed ended finished end due expires until to")


class NoValueError(ApiDocumentError):
    """No value was found that fits a schema."""


class Drawer:
    """Draws values. `seed` and the `salt` of a call decide each of them."""

    def __init__(self, seed: str, fits: Fits) -> None:
        self._seed = seed
        self.fits = fits

    def random(self, salt: str) -> Random:
        return Random(f"{self._seed} {salt}")

    def value(self, schema: Schema, name: str, salt: str, examples: Examples = _NONE) -> Json:
        """Raises NoValueError."""
        draw = _Draw(self.random(f"{salt} {name}"), examples)
        for attempt in range(_TRIES):
            draw.begin(spare=attempt > 1)
            found = draw.value(schema, name, 0, attempt)
            if self.fits(schema, found):
                return found
        for found in (*examples.get(name, ()), schema.get("default"), None, {}, [], "", 0):
            if self.fits(schema, found):
                return found
        place, problem = self.fits.problem(schema, found)
        raise NoValueError(f"no value was found that fits its schema{f', at {place}' if place else ''}: {problem}")

    def fields(self, schema: Schema, salt: str, examples: Examples = _NONE) -> dict[str, Json]:
        """The fields of one record, each drawn apart, so that one that cannot be drawn costs no other."""
        found: dict[str, Json] = {}
        draw = _Draw(self.random(salt), examples)
        for name, each in fields_of(flat(schema)).items():
            if each.get("writeOnly") is True:
                continue
            for attempt in range(_TRIES):
                draw.begin(spare=attempt > 1)
                value = draw.value(each, name, 1, attempt)
                if self.fits(each, value):
                    found[name] = value
                    break
        return in_order(found)


def in_order(record: dict[str, Json]) -> dict[str, Json]:
    """The record with its times in their order: nothing is changed before it is created."""
    first = next((each for each in record if texts_time(record[each]) and _begins(each, _CREATED)), None)
    if first is None:
        return record
    for name, value in record.items():
        if name != first and texts_time(value) and _begins(name, _LATER) and len(value) == len(record[first]):
            record[name] = max(value, _later(record[first], len(name)))
    return record


def texts_time(value: Json) -> bool:
    """Whether a value is a time as they are drawn here."""
    return isinstance(value, str) and len(value) in (10, 20) and value[:4].isdigit() and value[4:5] == "-"


def key_like(schema: Schema, name: str, number: int, rng: Random, example: Json = None) -> str:
    """The key of the record of this number, as a text: of its type, format and pattern."""
    schema = flat(schema)
    choices = [str(each) for each in schema.get("enum", ()) if each not in (None, "")]
    if choices:
        return choices[min(number, len(choices)) - 1]
    if kind_of(schema) in ("integer", "number"):
        least = schema.get("minimum", 1)
        return str(max(number, int(least) + number - 1))
    if kind_of(schema) == "string" or not schema:
        is_code = isinstance(example, str) and any(map(str.isdigit, example)) and "/" not in example
        if is_code and "pattern" not in schema:
            return texts.alike(example, rng)
        found = _Draw(rng, {}).text(schema, name if split_words(name)[-1:] != ["id"] else "id")
        return found if "pattern" in schema else found.lower().replace(" ", "-").strip("/.") or texts.slug(rng)
    return texts.hexadecimal(rng)


class _Draw:
    """One value. `spare` leaves out what is not required."""

    def __init__(self, rng: Random, examples: Examples) -> None:
        self._rng, self._examples = rng, examples
        self._left, self._spare = _FIELDS, False

    def begin(self, *, spare: bool) -> None:
        self._left, self._spare = _FIELDS, spare

    def value(self, schema: Schema, name: str, depth: int, attempt: int = 0) -> Json:
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return self._rng.choice([each for each in schema["enum"] if each is not None] or [None])
        branches = schema.get("anyOf") or schema.get("oneOf")
        if branches and attempt:
            schema = {**schema, "anyOf": [branches[(attempt - 1) % min(len(branches), _BRANCHES)]]}
        schema = flat(schema)
        if "enum" in schema or "const" in schema:
            return self.value({word: schema[word] for word in ("enum", "const") if word in schema}, name, depth)
        if depth > _DEPTH:
            return None if is_nullable(schema) else {"object": {}, "array": [], "string": ""}.get(kind_of(schema))
        match kind_of(schema):
            case "object":
                return self._object(schema, name, depth)
            case "array":
                return self._array(schema, name, depth)
            case "integer" | "number" as kind:
                return self._number(schema, name, whole=kind == "integer")
            case "boolean":
                return self._rng.random() < 0.5
            case "null":
                return None
            case "string":
                return self.text(schema, name)
        example = next(iter(self._examples.get(name, ())), None)
        return self.text(schema, name) if example is None else self.value(inferred(example), name, depth)

    def text(self, schema: Schema, name: str) -> str:
        most = int(min(schema.get("maxLength", _CHARS), _CHARS))
        least = int(min(schema.get("minLength", 0), most))
        if "pattern" in schema:
            for _ in range(_TRIES):
                found = texts.matching(schema["pattern"], self._rng, least)
                if found is not None and len(found) <= most:
                    return found
        own = texts.text_of_format(schema.get("format", ""), self._rng) or self._example(name)
        if own is None:
            own = "********" if is_telling(name) else texts.text_of_name(name, self._rng)
        while len(own) < least:
            own += texts.word(self._rng) if " " not in own else f" {texts.word(self._rng)}"
            own = own[:most] if len(own) > most else own
        return own if len(own) <= most else own[:most].rstrip()

    def _example(self, name: str) -> str | None:
        """A text of the form of an example that is a code, or a time of its own form."""
        first = next((each for each in self._examples.get(name, ()) if isinstance(each, str)), None)
        if first is None or is_telling(name):
            return None
        code = any(map(str.isdigit, first)) and " " not in first and "://" not in first and len(first) < 80
        return texts.alike(first, self._rng) if code and not texts_time(first[:10]) else None

    def _object(self, schema: Schema, name: str, depth: int) -> Json:
        fields, needed = fields_of(schema), schema.get("required", ())
        full = depth < _FULL_DEPTH and not self._spare
        found: dict[str, Json] = {}
        for field, each in fields.items() if self._left > -_FIELDS else ():
            if field not in needed and (not full or self._left <= 0 or each.get("writeOnly") is True):
                continue
            self._left -= 1
            found[field] = self.value(each, field, depth + 1)
        more = schema.get("additionalProperties")
        of_others = more if isinstance(more, dict) else {}
        for field in (each for each in needed[:_FIELDS] if each not in fields):
            found[field] = self.value(of_others, field, depth + 1)
        if not fields and isinstance(more, dict) and full:
            for _ in range(2):
                found[texts.slug(self._rng)] = self.value(more, singular(name), depth + 1)
        for number in range(int(min(schema.get("minProperties", 0), _FIELDS)) - len(found)):
            found[f"{texts.slug(self._rng)}-{number}"] = self.value(of_others, singular(name), depth + 1)
        return in_order(found)

    def _array(self, schema: Schema, name: str, depth: int) -> Json:
        least, most = int(schema.get("minItems", 0)), int(schema.get("maxItems", _ITEMS))
        items, prefix = schema.get("items"), schema.get("prefixItems", ())
        one = "tag" if plain(name) == "labels" else singular(name) if len(split_words(name)) == 1 else name
        wanted = least
        if depth < _FULL_DEPTH and not self._spare:
            wanted = self._rng.randint(max(1, least), max(1, least, min(most, _ITEMS)))
        found: list[Json] = []
        for place in range(min(wanted, most, 100) * 3):
            if len(found) >= min(wanted, most):
                break
            each = prefix[place] if place < len(prefix) else items if isinstance(items, dict) else {}
            value = self.value(each, one, depth + 1)
            if value not in found or not schema.get("uniqueItems"):
                found.append(value)
        return found

    def _number(self, schema: Schema, name: str, *, whole: bool) -> Json:
        low, high = self._bounds(schema, name, whole=whole)
        step = schema.get("multipleOf")
        if step:
            first = -(-low // step)
            found = (first + self._rng.randint(0, max(0, min(100, int(high // step - first))))) * step
            return int(found) if float(found).is_integer() else found
        if whole:
            return self._rng.randint(int(low), max(int(low), int(high)))
        return round(self._rng.uniform(low, high), 2) if high - low > 0.1 else (low + high) / 2

    def _bounds(self, schema: Schema, name: str, *, whole: bool) -> tuple[float, float]:
        usual = _usual(name)
        least = schema.get("minimum", schema.get("exclusiveMinimum"))
        most = schema.get("maximum", schema.get("exclusiveMaximum"))
        edge = 1 if whole else 0.01
        low = usual[0] if least is None else least + (edge if "exclusiveMinimum" in schema else 0)
        high = usual[1] if most is None else most - (edge if "exclusiveMaximum" in schema else 0)
        if low > high:
            low, high = (high - 10 if least is None else low), (low + 10 if most is None else high)
        elif least is None and most is not None:
            low = min(low, high)
        return low, min(high, low + (usual[1] - usual[0]))


def _usual(name: str) -> tuple[int, int]:
    """Between which a number of this name may be."""
    words = set(split_words(name))
    if "year" in words:
        return 1990, 2026
    if words & {"percent", "percentage", "rate", "score", "progress", "rating"}:
        return 0, 100
    if words & {"latitude", "lat", "longitude", "lon", "lng"}:
        return -80, 80
    if words & {"timestamp", "created", "updated", "at"}:
        return 1_767_600_000, 1_793_000_000
    if "port" in words:
        return 1_024, 49_000
    return (0, 40) if words & _COUNTS else (1, 900)


def _begins(name: str, starts: frozenset[str]) -> bool:
    return plain(name).startswith(tuple(starts)) or not starts.isdisjoint(split_words(name))


def _later(text: str, minutes: int) -> str:
    if len(text) == 10:
        return text
    try:
        at = texts.read_time(text)
    except ValueError:
        return text
    return texts.time_text(at + timedelta(minutes=minutes))
