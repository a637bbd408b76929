"""A request as a double understands it: which operation it calls, with which credential, parameters and body.

What violates the document is refused with the status that the document names for it.
"""

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from urllib.parse import parse_qs, parse_qsl, unquote

import msgspec

from app.apis.catalog import Operation, Parameter
from app.apis.credentials.schemes import Authentication, SecurityScheme, combined
from app.apis.double import texts
from app.apis.double.model import Model, Modelled
from app.apis.double.shapes import Schema, fields_of, flat, kind_of, value_at
from app.apis.double.values import Drawer
from app.apis.media_types import FORM, PARTS, bare, is_declared_json
from app.base.untrusted import JsonError, decode_json
from app.base.values import Json

_MAX_VALUES: Final = 100_000
_MAX_DEPTH: Final = 60
_MAX_ROWS: Final = 1_000  # of a list in a form
_NOT_READ: Final = {"accept", "content-type", "authorization", "user-agent", "host", "content-length"}
_FORMATS: Final = {
    "date-time": re.compile(
        r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?", re.I
    ),
    "date": re.compile(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"),
    "uuid": re.compile(r"[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}", re.I),
}
_NUMBER: Final = re.compile(r"-?\d{1,100}(\.\d{1,100})?([eE][-+]?\d{1,3})?")


class Request(msgspec.Struct, frozen=True):
    """A request that was understood: its parameters by wire name, typed, and the record in its body."""

    path: str
    query: str
    given: dict[str, Json]
    body: dict[str, Json] = {}


class RefusedError(Exception):
    """Why a request is refused, and the field that it is about."""

    def __init__(self, status: int, message: str, field: str = "", headers: Mapping[str, str] = {}) -> None:
        super().__init__(message)
        self.status, self.message, self.field, self.headers = status, message, field, dict(headers)


class Receiver:
    """Understands the requests to one double, whose credentials its drawer decides."""

    def __init__(self, model: Model, drawer: Drawer) -> None:
        self._model, self._drawer = model, drawer
        self._routes = _routes(model)

    def authentication(self, operation: str = "") -> Authentication:
        """The credential that an operation takes, or most of them; empty if it takes any call."""
        app = self._model.app
        own = app.operations[operation].security if operation else None
        wanted = app.security if own is None else own
        if wanted is None and not operation:
            wanted = next((each.security for each in app.operations.values() if each.security), None)
        return combined(self._credentials(next(iter(wanted or ()), ())))

    def route(self, method: str, path: str) -> tuple[Operation, dict[str, str]]:
        known: dict[str, tuple[Operation, dict[str, str]]] = {}
        for pattern, operation, names in self._routes:
            found = pattern.fullmatch(path)
            if found is not None:
                values = dict(zip(names, map(unquote, found.groups()), strict=True))
                known.setdefault(operation.method, (operation, values))
        wanted = "GET" if method == "HEAD" and "HEAD" not in known else method
        if wanted in known:
            return known[wanted]
        if known:
            raise RefusedError(405, f"{method} is not allowed here", headers={"Allow": ", ".join(known)})
        raise RefusedError(404, "there is nothing at this address")

    def authorize(self, operation: Operation, headers: Mapping[str, str], query: str) -> None:
        wanted = self._model.app.security if operation.security is None else operation.security
        if not wanted:
            return
        asked = dict(parse_qsl(query))
        cookies = dict(each.strip().partition("=")[::2] for each in headers.get("cookie", "").split(";"))
        if any(
            all(_has(each, headers, asked, cookies) for each in self._credentials(alternative))
            for alternative in wanted
        ):
            return
        made = self._model.operations.get(operation.name)
        status = 403 if made is not None and "403" in made.errors and "401" not in made.errors else 401
        raise RefusedError(status, "the credential is missing or wrong")

    def request(
        self,
        made: Modelled,
        values: Mapping[str, str],
        path: str,
        query: str,
        headers: Mapping[str, str],
        body: bytes,
    ) -> Request:
        """The request in typed values. Raises RefusedError for what violates a schema."""
        invalid = status_of(made, ("422", "400"), 400)
        lists = parse_qs(query, keep_blank_values=True)
        given: dict[str, Json] = {}
        for each in made.operation.parameters:
            name = each.wire_name
            found = _texts(each, values, lists, headers)
            if found is None:
                if each.required and each.place in ("query", "header") and name.lower() not in _NOT_READ:
                    raise RefusedError(invalid, f"{name} is required", name)
                continue
            given[name] = self._typed(each, found)
            if problem := self.problem(each.schema, given[name])[1]:
                unnamed = invalid == 400 and "400" not in made.errors
                wrong = 404 if each.place == "path" and unnamed else invalid
                raise RefusedError(wrong, f"{name}: {problem}", name)
        return Request(path, query, given, self._body(made, headers, body, invalid))

    def problem(self, schema: Schema, value: Json) -> tuple[str, str]:
        """Place and kind of a violation, also of the formats that servers check; two empty texts without one."""
        if not self._model.fits(schema, value):
            return self._model.fits.problem(schema, value)
        form = flat(schema).get("format")
        if isinstance(value, str) and form in _FORMATS and not _FORMATS[form].fullmatch(value):
            return "", f"{value[:60]!r} is no {form}"
        fields = fields_of(flat(schema)) if isinstance(value, dict) else {}
        inner = ((name, self.problem(each, value[name])) for name, each in fields.items() if name in value)
        return next(((f"{name}.{at}".rstrip("."), said) for name, (at, said) in inner if said), ("", ""))

    def _typed(self, parameter: Parameter, found: Sequence[str]) -> Json:
        """The texts of a parameter as its schema has them."""
        schema = flat(parameter.schema)
        if kind_of(schema) == "array":
            mark = {"pipeDelimited": "|", "spaceDelimited": " ", "tabDelimited": "\t"}.get(parameter.style, ",")
            parts = found if parameter.explode and parameter.style == "form" and parameter.place == "query" else [
                one for each in found for one in each.split(mark)
            ]  # fmt: skip
            inner = schema.get("items") or {}
            return [self._scalar(inner, each) for each in parts]
        if kind_of(schema) == "object":
            try:
                return decode_json(found[-1].encode(), max_values=1_000, max_depth=10)
            except JsonError:
                return found[-1]
        return self._scalar(parameter.schema, found[-1])

    def _scalar(self, schema: Schema, text: str) -> Json:
        forms: list[Json] = []
        if _NUMBER.fullmatch(text):
            forms.append(float(text) if re.search(r"[.eE]", text) else int(text))
        forms += [text.lower() == "true"] if text.lower() in ("true", "false") else []
        forms += [text == "1"] if text in ("0", "1") and kind_of(flat(schema)) == "boolean" else []
        first = [text, *forms] if kind_of(flat(schema)) in ("string", "") else [*forms, text]
        return next((each for each in first if self._model.fits(schema, each)), text)

    def _body(self, made: Modelled, headers: Mapping[str, str], content: bytes, invalid: int) -> dict[str, Json]:
        expected = made.body
        if expected is None:
            return {}
        if not content:
            if expected.required:
                raise RefusedError(invalid, "the body is missing")
            return {}
        kind = bare(headers.get("content-type", ""))
        if not any(
            bare(each) == kind or "*" in each or (is_declared_json(kind) and is_declared_json(bare(each)))
            for each in expected.media_types
        ):
            raise RefusedError(status_of(made, ("415",), invalid), f"the body is {kind or 'of no type'}")
        if kind in (FORM, PARTS):
            value = self._form(expected.schema, headers["content-type"], content)
        else:
            try:
                value = decode_json(content, max_values=_MAX_VALUES, max_depth=_MAX_DEPTH)
            except JsonError as error:
                status = status_of(made, ("400", "422"), invalid)
                raise RefusedError(status, f"the body is not JSON: {error}") from error
        place, problem = self.problem(expected.schema, value)
        if problem:
            raise RefusedError(invalid, f"{place}: {problem}" if place else problem, place)
        inner = value_at(value, expected.shape.keys) if expected.shape is not None else value
        return dict(inner) if isinstance(inner, dict) else {}

    def _form(self, schema: Schema, content_type: str, content: bytes) -> Json:
        if bare(content_type) == FORM:
            pairs = parse_qs(content.decode("utf-8", "replace"), keep_blank_values=True)
        else:
            pairs = _parts(content_type, content)
        value: dict[str, Json] = {}
        for name, found in pairs.items():
            self._set(value, schema, [each.rstrip("]") for each in name.split("[")], found)
        return value

    def _set(self, value: dict[str, Json], schema: Schema, keys: Sequence[str], found: Sequence[str]) -> None:
        """A field of a form, whose name may lead into others: `card[number]`, `tags[]`, `lines[0][id]`."""
        name, *inner = keys
        own = fields_of(flat(schema)).get(name, {})
        if not inner or inner == [""]:
            is_list = kind_of(flat(own)) == "array"
            each = flat(own).get("items") or {} if is_list else own
            texts_of = [self._scalar(each, one) for one in found]
            value[name] = texts_of if is_list or inner else texts_of[-1]
        elif kind_of(flat(own)) == "array" or inner[0].isdecimal():
            rows = value.setdefault(name, [])
            if not isinstance(rows, list) or len(rows) > _MAX_ROWS:
                return
            held = {"properties": {"": flat(own).get("items") or {}}}
            if len(inner) == 1:
                rows += [self._scalar(flat(own).get("items") or {}, one) for one in found]
                return
            if not rows or inner[0] not in ("", str(len(rows) - 1)):
                rows.append({})
            inside = {"": rows[-1]}
            self._set(inside, held, ["", *inner[1:]], found)
        else:
            held = value.setdefault(name, {})
            if isinstance(held, dict) and len(inner) < _MAX_DEPTH:
                self._set(held, own, inner, found)

    def _credentials(self, names: Iterable[str]) -> list[Authentication]:
        """Those of the schemes that are declared."""
        schemes = self._model.app.schemes
        return [self._credential(schemes[name]) for name in names if name in schemes]

    def _credential(self, scheme: SecurityScheme) -> Authentication:
        secret = texts.hexadecimal(self._drawer.random(f"credential {scheme.place} {scheme.parameter}"), 24)
        match scheme.kind:
            case "api_key":
                own = {scheme.parameter: secret}
                places = {"header": Authentication(headers=own), "query": Authentication(query=own)}
                return places.get(scheme.place, Authentication(cookies=own))
            case "basic":
                pair = base64.b64encode(f"double:{secret}".encode()).decode()
                return Authentication(headers={"Authorization": f"Basic {pair}"})
            case "mutual_tls":
                return Authentication()
        return Authentication(headers={"Authorization": f"{scheme.prefix or 'Bearer'} {secret}"})


def status_of(made: Modelled, wanted: Sequence[str], otherwise: int) -> int:
    """The first of the statuses that the document names for the operation."""
    return next((int(each) for each in wanted if each in made.errors), otherwise)


def _routes(model: Model) -> list[tuple[re.Pattern[str], Operation, tuple[str, ...]]]:
    """Of all operations, those of the most fixed paths first."""
    found = []
    for operation in model.app.operations.values():
        path = operation.path.split("?")[0]
        pieces = re.split(r"\{([^{}/]+)\}", path)
        pattern = "".join(re.escape(each) if at % 2 == 0 else "([^/]+?)" for at, each in enumerate(pieces))
        order = [each.count("{") for each in path.split("/")]
        found.append((order, re.compile(pattern.removesuffix("/") + "/?"), operation, tuple(pieces[1::2])))
    found.sort(key=lambda each: each[0])
    return [(pattern, operation, names) for _, pattern, operation, names in found]


def _has(
    wanted: Authentication, headers: Mapping[str, str], query: Mapping[str, str], cookies: Mapping[str, str]
) -> bool:
    return (
        all(headers.get(name.lower()) == value for name, value in wanted.headers.items())
        and all(query.get(name) == value for name, value in wanted.query.items())
        and all(cookies.get(name) == value for name, value in wanted.cookies.items())
    )


def _texts(
    parameter: Parameter, values: Mapping[str, str], query: Mapping[str, list[str]], headers: Mapping[str, str]
) -> list[str] | None:
    """The texts of a parameter; None if it is not given."""
    name = parameter.wire_name
    if parameter.place == "path":
        return [values[name]] if name in values else None
    if parameter.place == "query":
        return query.get(name, query.get(f"{name}[]"))
    if parameter.place == "header" and name.lower() not in _NOT_READ:
        return [headers[name.lower()]] if name.lower() in headers else None
    return None


def _parts(content_type: str, content: bytes) -> dict[str, list[str]]:
    """The fields of a multipart form."""
    found = re.search(r'boundary="?([^";]+)', content_type)
    fields: dict[str, list[str]] = {}
    for part in content.split(b"--" + found[1].encode()) if found else ():
        head, _, value = part.partition(b"\r\n\r\n")
        if name := re.search(rb'name="([^"]*)"', head):
            text = value.removesuffix(b"\r\n").decode("utf-8", "replace")
            fields.setdefault(name[1].decode("utf-8", "replace"), []).append(text)
    return fields
