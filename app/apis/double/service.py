"""The double: an API's answers without the API, from the model of its document and records of its own.

It holds no connection and no time of its own: the same requests in the same order give the same answers for the
same seed. What it answers fits the document, and what it refuses is refused in the document's form: 401 without
the credential, 422 or 400 for what violates a schema, 404 for an unknown key, 409 for a unique field given
twice if the document names 409. A call of an operation that is left out of the model is answered with 501.
"""

import base64
import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final
from urllib.parse import parse_qs, parse_qsl, unquote, urlsplit

import httpx
import msgspec

from app.apis.authentication import Authentication, combined
from app.apis.catalog import Operation, Parameter
from app.apis.double import texts
from app.apis.double.answers import Composer, Request, noun_in_words
from app.apis.double.documents import Reply
from app.apis.double.model import Collection, Model, Modelled
from app.apis.double.queries import Row, chosen, page_of, same
from app.apis.double.records import Drawer, NoValueError, texts_time
from app.apis.double.samples import Sampled
from app.apis.double.shapes import KEYS, Schema, fields_of, flat, is_nullable, kind_of, plain, value_at
from app.apis.double.state import (
    Part,
    Record,
    free_values,
    initial_state,
    linked,
    new_key,
    set_key,
    target_of,
    typed_key,
)
from app.apis.media_types import FORM, PARTS, bare, is_declared_json
from app.apis.security_schemes import SecurityScheme
from app.apis.yaml_json import to_json_text
from app.records import Json
from app.untrusted.json_text import JsonError, decode_json

_EMPTY: Final = (204, 205, 304)  # statuses without content, whatever a document says
_MAX_VALUES: Final = 100_000
_MAX_DEPTH: Final = 60
_MAX_ROWS: Final = 1_000  # of a list in a form
_NOW: Final = re.compile(
    r"(created|updated|modified|changed|last.?(updated|modified|changed))(at|on|date|time|timestamp)?|timestamp"
)
_CREATED: Final = re.compile(r"created|timestamp")
_NOT_READ: Final = {"accept", "content-type", "authorization", "user-agent", "host", "content-length"}
_FORMATS: Final = {
    "date-time": re.compile(
        r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?", re.I
    ),
    "date": re.compile(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"),
    "uuid": re.compile(r"[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}", re.I),
}
_NUMBER: Final = re.compile(r"-?\d{1,100}(\.\d{1,100}([eE][-+]?\d{1,3})?)?")


class Answer(msgspec.Struct, frozen=True):
    """An HTTP answer."""

    status: int
    headers: dict[str, str] = {}
    body: bytes = b""

    @property
    def value(self) -> Json:
        """Its JSON; None without one."""
        return (
            msgspec.json.decode(self.body)
            if self.body and is_declared_json(self.headers.get("content-type", ""))
            else None
        )


class Options(msgspec.Struct, frozen=True):
    """How one double differs from another of the same API: lists may show fewer fields than items do."""

    thin_lists: bool = False


class _RefusedError(Exception):
    def __init__(self, status: int, message: str, field: str = "", headers: Mapping[str, str] = {}) -> None:
        super().__init__(message)
        self.status, self.message, self.field, self.headers = status, message, field, dict(headers)


class Double:
    """One API with its state, whose records are like those that were `seen` of the real one.

    `limit_next` of the next calls are refused with 429, where the document names it.
    """

    def __init__(
        self,
        model: Model,
        seed: str,
        options: Options = Options(),  # noqa: B008 - frozen
        seen: Sampled = Sampled(),  # noqa: B008 - frozen
    ) -> None:
        self.model, self.seed = model, seed
        self.limit_next = 0
        self._drawer = Drawer(seed, model.fits)
        thin = dict(_thin(model, self._drawer)) if options.thin_lists else {}
        self._composer = Composer(model, self._drawer, thin, seen)
        self._routes = _routes(model)
        self.state = initial_state(model, self._drawer, seen)

    def authentication(self, operation: str = "") -> Authentication:
        """The credential that an operation takes, or most of them; empty if it takes any call."""
        own = self.model.app.operations[operation].security if operation else None
        wanted = self.model.app.security if own is None else own
        if wanted is None and not operation:
            wanted = next((each.security for each in self.model.app.operations.values() if each.security), None)
        schemes = self.model.app.schemes
        names = [each for each in next(iter(wanted or ()), ()) if each in schemes]
        return combined([_credential(schemes[each], self._secret(schemes[each])) for each in names])

    def respond(
        self, method: str, path: str, query: str = "", headers: Mapping[str, str] = {}, body: bytes = b""
    ) -> Answer:
        """The answer to a request. `path` is under the server's, percent-encoded."""
        lower = {name.lower(): value for name, value in headers.items()}
        made: Modelled | None = None
        try:
            operation, values = self._route(method, path)
            made = self.model.operations.get(operation.name)
            self._authorize(operation, lower, query)
            if made is None:
                raise _RefusedError(501, "this operation is not modelled")
            if self.limit_next > 0 and "429" in made.errors:
                self.limit_next -= 1
                raise _RefusedError(
                    429, "too many requests, try again after 1 second", headers={"Retry-After": "1"}
                )
            answer = self._answer(made, self._request(made, values, path, query, lower, body))
        except _RefusedError as refusal:
            answer = self._refused(made, refusal)
        except NoValueError as error:
            answer = self._refused(made, _RefusedError(501, str(error)))
        return Answer(answer.status, answer.headers, b"") if method == "HEAD" else answer

    def transport(self) -> "Transport":
        """For a client of httpx whose addresses begin with the server of the API."""
        return Transport(self)

    def _route(self, method: str, path: str) -> tuple[Operation, dict[str, str]]:
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
            raise _RefusedError(405, f"{method} is not allowed here", headers={"Allow": ", ".join(known)})
        raise _RefusedError(404, "there is nothing at this address")

    def _authorize(self, operation: Operation, headers: Mapping[str, str], query: str) -> None:
        wanted = self.model.app.security if operation.security is None else operation.security
        if not wanted:
            return
        asked = dict(parse_qsl(query))
        cookies = dict(each.strip().partition("=")[::2] for each in headers.get("cookie", "").split(";"))
        schemes = self.model.app.schemes
        for alternative in wanted:
            known = [
                _credential(schemes[name], self._secret(schemes[name])) for name in alternative if name in schemes
            ]
            if all(_has(each, headers, asked, cookies) for each in known):
                return
        made = self.model.operations.get(operation.name)
        status = 403 if made is not None and "403" in made.errors and "401" not in made.errors else 401
        raise _RefusedError(status, "the credential is missing or wrong")

    def _secret(self, scheme: SecurityScheme) -> str:
        return texts.hexadecimal(self._drawer.random(f"credential {scheme.place} {scheme.parameter}"), 24)

    def _request(
        self,
        made: Modelled,
        values: Mapping[str, str],
        path: str,
        query: str,
        headers: Mapping[str, str],
        body: bytes,
    ) -> Request:
        """The request in typed values. Raises _RefusedError for what violates a schema."""
        invalid = _status(made, ("422", "400"), 400)
        lists = parse_qs(query, keep_blank_values=True)
        given: dict[str, Json] = {}
        for each in made.operation.parameters:
            name = each.wire_name
            found = _texts(each, values, lists, headers)
            if found is None:
                if each.required and each.place in ("query", "header") and name.lower() not in _NOT_READ:
                    raise _RefusedError(invalid, f"{name} is required", name)
                continue
            given[name] = self._typed(each, found)
            problem = self._problem(each.schema, given[name])[1]
            if problem:
                wrong = (
                    _status(made, ("404", "422", "400"), 404)
                    if each.place == "path" and invalid == 400 and "400" not in made.errors
                    else invalid
                )
                raise _RefusedError(wrong, f"{name}: {problem}", name)
        return Request(path, query, given, self._body(made, headers, body, invalid))

    def _problem(self, schema: Schema, value: Json) -> tuple[str, str]:
        """Place and kind of a violation, also of the formats that servers check; two empty texts without one."""
        if not self.model.fits(schema, value):
            return self.model.fits.problem(schema, value)
        form = flat(schema).get("format")
        if isinstance(value, str) and form in _FORMATS and not _FORMATS[form].fullmatch(value):
            return "", f"{value[:60]!r} is no {form}"
        fields = fields_of(flat(schema)) if isinstance(value, dict) else {}
        inner = ((name, self._problem(each, value[name])) for name, each in fields.items() if name in value)
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
        return next((each for each in first if self.model.fits(schema, each)), text)

    def _body(self, made: Modelled, headers: Mapping[str, str], content: bytes, invalid: int) -> dict[str, Json]:
        expected = made.body
        if expected is None:
            return {}
        if not content:
            if expected.required:
                raise _RefusedError(invalid, "the body is missing")
            return {}
        kind = bare(headers.get("content-type", ""))
        if not any(
            bare(each) == kind or "*" in each or (is_declared_json(kind) and is_declared_json(bare(each)))
            for each in expected.media_types
        ):
            raise _RefusedError(
                _status(made, ("415", str(invalid)), invalid), f"the body is {kind or 'of no type'}"
            )
        if kind in (FORM, PARTS):
            value = self._form(expected.schema, headers, content)
        else:
            try:
                value = decode_json(content, max_values=_MAX_VALUES, max_depth=_MAX_DEPTH)
            except JsonError as error:
                raise _RefusedError(
                    _status(made, ("400", "422"), invalid), f"the body is not JSON: {error}"
                ) from error
        place, problem = self._problem(expected.schema, value)
        if problem:
            raise _RefusedError(invalid, f"{place}: {problem}" if place else problem, place)
        inner = value_at(value, expected.shape.keys) if expected.shape is not None else value
        return dict(inner) if isinstance(inner, dict) else {}

    def _form(self, schema: Schema, headers: Mapping[str, str], content: bytes) -> Json:
        if bare(headers.get("content-type", "")) == FORM:
            pairs = parse_qs(content.decode("utf-8", "replace"), keep_blank_values=True)
        else:
            pairs = _parts(headers["content-type"], content)
        value: dict[str, Json] = {}
        for name, found in pairs.items():
            first, *inner = [each.rstrip("]") for each in name.split("[")]
            self._set(value, schema, [first, *inner], found)
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

    def _answer(self, made: Modelled, request: Request) -> Answer:
        if not made.collection:
            return self._of_part(made, request)
        collection = self.model.collections[made.collection]
        scope = self._scope(made, collection, request)
        match made.role:
            case "list" | "clear":
                return self._listed(made, collection, scope, request)
            case "create":
                return self._created(made, collection, scope, request)
        key = str(request.given.get(made.key, request.body.get(made.key, "")))
        record = self.state.records[collection.name].get((*scope, key))
        if record is None and made.upserts:
            return self._created(made, collection, scope, request, key)
        if record is None:
            raise _RefusedError(404, f"there is no {noun_in_words(collection)} {key[:60]!r}", made.key)
        match made.role:
            case "delete":
                answer = self._shown(made, record, collection)
                self._delete(collection, record)
                return answer
            case "replace" | "update":
                self._change(made, collection, record, request)
            case "act":
                self._act(made, record, request)
        return self._shown(made, record, collection)

    def _scope(self, made: Modelled, collection: Collection, request: Request) -> tuple[str, ...]:
        """The keys of the records above. Raises _RefusedError if one of them is unknown."""
        keys: list[str] = []
        for parameter, scope in zip(made.scopes, collection.scopes, strict=False):
            key = str(request.given.get(parameter, ""))
            if scope.parent:
                known = (*keys, key) in self.state.records[scope.parent]
            else:
                known = key in free_values(scope.parameter, scope.schema, self._drawer)
            if not known:
                what = noun_in_words(self.model.collections[scope.parent]) if scope.parent else parameter
                raise _RefusedError(404, f"there is no {what} {key[:60]!r}", parameter)
            keys.append(key)
        for link in collection.links:
            wanted = request.given.get(made.fixed.get(link.field, ""))
            if wanted is not None and target_of(link, wanted, self.model, self.state) is None:
                what = noun_in_words(self.model.collections[link.collection])
                raise _RefusedError(404, f"there is no {what} {str(wanted)[:60]!r}", made.fixed[link.field])
        return tuple(keys)

    def _rows(
        self, made: Modelled, collection: Collection, scope: tuple[str, ...], request: Request
    ) -> list[Record]:
        """The records that a list chooses, in its order."""
        found = self.state.of(collection.name, scope) if len(scope) == len(collection.scopes) else [
            each for each in self.state.records[collection.name].values() if each.scope[: len(scope)] == scope
        ]  # fmt: skip
        for field, parameter in made.fixed.items():
            wanted = request.given.get(parameter)
            found = [each for each in found if _names(each.fields.get(field), wanted)]
        by_row = {id(row): (row, each) for each in found for row in [Row(each.key, each.fields)]}
        kept = chosen(made.query, [row for row, _ in by_row.values()], request.given | request.body)
        return [by_row[id(row)][1] for row in kept]

    def _listed(self, made: Modelled, collection: Collection, scope: tuple[str, ...], request: Request) -> Answer:
        records = self._rows(made, collection, scope, request)
        given = request.given | request.body
        page = page_of(made.query, [Row(each.key, each.fields) for each in records], given)
        shown = records[page.first : page.first + len(page.rows)]
        value = self._composer.many(made, page, shown, collection, self.state, request)
        if made.role == "clear":
            for each in records:
                self._delete(collection, each)
        return self._replied(made.reply, value, self._composer.headers(made, page, request))

    def _created(
        self, made: Modelled, collection: Collection, scope: tuple[str, ...], request: Request, key: str = ""
    ) -> Answer:
        fields = self._accepted(made, collection, request)
        own = fields.get(collection.key) if collection.key in collection.given else None
        named = key or (str(own) if isinstance(own, str | int) and not isinstance(own, bool) and own != "" else "")
        if named and (*scope, named) in self.state.records[collection.name]:
            raise _RefusedError(
                _status(made, ("409", "422", "400"), 409),
                f"{collection.key} {named[:60]!r} exists already",
                collection.key,
            )
        fields = self._with_links(made, collection, fields)
        self._check_unique(made, collection, scope, fields, None)
        rng = self._drawer.random(f"new {collection.name} {self.state.writes}")
        made_key = named or new_key(collection, self.state, self._drawer, rng)
        if made_key is None:
            raise _RefusedError(_status(made, ("409", "422", "400"), 409), "there is no key left for another one")
        record = Record(made_key, scope, {})
        record.fields = self._blank(collection, record, fields)
        within = {field: request.given.get(parameter) for field, parameter in made.fixed.items()}
        record.fields |= self._with_links(made, collection, within)
        set_key(collection, record)
        self.state.records[collection.name][*scope, record.key] = record
        self.state.writes += 1
        answer = self._shown(made, record, collection)
        return Answer(201, answer.headers, answer.body) if key and made.upserts else answer

    def _blank(self, collection: Collection, record: Record, given: Mapping[str, Json]) -> dict[str, Json]:
        """The fields of a new record: those given, and what the server sets of the others."""
        above = {
            scope.parent: key for scope, key in zip(collection.scopes, record.scope, strict=True) if scope.parent
        }
        links = {each.field: each for each in collection.links}
        fields: dict[str, Json] = {}
        for name, schema in fields_of(collection.item).items():
            if name in given:
                fields[name] = given[name]
            elif (
                name in links
                and links[name].collection in above
                and not links[name].many
                and not links[name].embedded
            ):
                fields[name] = typed_key(schema, above[links[name].collection])
            elif (value := self._server_set(collection, name, schema, record)) is not None or is_nullable(schema):
                fields[name] = value
        return fields | {name: value for name, value in given.items() if name not in fields}

    def _server_set(self, collection: Collection, name: str, schema: Schema, record: Record) -> Json:
        """The value of a field that nobody gave; None for one that stays away."""
        inner = flat(schema)
        kind = kind_of(inner)
        if "default" in schema and self.model.fits(schema, schema["default"]):
            return schema["default"]
        if "const" in inner:
            return inner["const"]
        if _NOW.fullmatch(plain(name)):
            return self._now(schema)
        if is_nullable(schema):
            return None
        if inner.get("enum"):
            return (
                inner["enum"][0] if name not in collection.given or "state" in name or "status" in name else None
            )
        empty: Json = {"boolean": False, "integer": 0, "number": 0, "array": []}.get(kind)
        if name in collection.given:
            return empty if kind == "boolean" or kind == "array" else None
        if empty is not None and self.model.fits(schema, empty):
            return empty
        drawn = self._drawer.fields(
            {"properties": {name: schema}},
            f"new {collection.name} {record.scope} {record.key}",
            collection.examples,
        )
        value = drawn.get(name)
        return None if texts_time(value) else value

    def _now(self, schema: Schema) -> Json:
        at = self.state.now()
        kind = kind_of(flat(schema))
        forms: list[Json] = [
            texts.time_text(at),
            at.date().isoformat(),
            int(at.timestamp()),
            int(at.timestamp()) * 1000,
        ]
        fit = [each for each in forms if self.model.fits(schema, each)]
        if flat(schema).get("format") == "date":
            return forms[1]
        return next((each for each in fit if kind != "string" or isinstance(each, str)), None)

    def _change(self, made: Modelled, collection: Collection, record: Record, request: Request) -> None:
        fields = self._accepted(made, collection, request)
        fields.pop(collection.key, None)
        fields = self._with_links(made, collection, fields)
        self._check_unique(made, collection, record.scope, fields, record)
        if made.role == "replace" and not made.partial:
            kept = {
                name: value
                for name, value in record.fields.items()
                if name not in collection.given or name == collection.key
            }
            record.fields = self._blank(collection, record, fields) | kept
            set_key(collection, record)
        else:
            record.fields |= fields
        self._touch(collection, record)

    def _act(self, made: Modelled, record: Record, request: Request) -> None:
        effect, collection = made.effect, self.model.collections[made.collection]
        if effect is None:
            return
        fields = fields_of(collection.item)
        record.fields |= effect.sets
        record.fields |= {name: value for name, value in request.body.items() if name in effect.given}
        record.fields |= {name: self._now(fields[name]) for name in effect.at}
        self._touch(collection, record)

    def _touch(self, collection: Collection, record: Record) -> None:
        for name, schema in fields_of(collection.item).items():
            if name in record.fields and _NOW.fullmatch(plain(name)) and not _CREATED.match(plain(name)):
                record.fields[name] = self._now(schema)
        self.state.writes += 1

    def _delete(self, collection: Collection, record: Record) -> None:
        """With all that is in it."""
        place = (*record.scope, record.key)
        self.state.records[collection.name].pop(place, None)
        for other in self.model.collections.values():
            inner = len(place) - 1
            if len(other.scopes) > inner and other.scopes[inner].parent == collection.name:
                keyed = self.state.records[other.name]
                for each in [each for each in keyed if each[: len(place)] == place]:
                    del keyed[each]
        self.state.writes += 1

    def _accepted(self, made: Modelled, collection: Collection, request: Request) -> dict[str, Json]:
        """What of a body is kept: all but what the server alone sets, and what neither side describes."""
        schema = made.body.shape.item if made.body is not None and made.body.shape is not None else {}
        item = fields_of(collection.item)
        kept: dict[str, Json] = {}
        for name, value in request.body.items():
            own = fields_of(schema).get(name)
            foreign = own is None and bool(fields_of(schema)) and not schema.get("additionalProperties")
            shown = item.get(name, {})
            if foreign or _is_read_only(own or shown) or (own is None and self._problem(shown, value)[1]):
                continue
            kept[name] = value
        return kept

    def _with_links(self, made: Modelled, collection: Collection, fields: dict[str, Json]) -> dict[str, Json]:
        """The fields with the records in place of their keys, where these are shown. A key that there is not is
        refused where the document names a refusal.
        """
        status = next((each for each in (422, 400, 404, 409) if str(each) in made.errors), None)
        shown = dict(fields)
        for link in collection.links:
            value = fields.get(link.field)
            if value in (None, "", 0):
                continue
            schema = flat(fields_of(collection.item).get(link.field, {}))
            schema = flat(schema.get("items") or {}) if link.many else schema
            given = value if isinstance(value, list) else [value]
            found = [(each, target_of(link, each, self.model, self.state)) for each in given]
            if (
                unknown := next((each for each, to in found if to is None), None)
            ) is not None and status is not None:
                what = noun_in_words(self.model.collections[link.collection])
                raise _RefusedError(status, f"{link.field}: there is no {what} {str(unknown)[:60]!r}", link.field)
            if link.embedded:
                whole = [each if to is None else linked(link, to, schema, self.model, each) for each, to in found]
                shown[link.field] = whole if isinstance(value, list) else whole[0]
        return shown

    def _check_unique(
        self,
        made: Modelled,
        collection: Collection,
        scope: tuple[str, ...],
        fields: Mapping[str, Json],
        own: Record | None,
    ) -> None:
        value = fields.get(collection.unique) if collection.unique else None
        others = self.state.of(collection.name, scope) if value is not None and "409" in made.errors else []
        if any(each is not own and each.fields.get(collection.unique) == value for each in others):
            raise _RefusedError(
                409, f"{collection.unique} {str(value)[:60]!r} is taken already", collection.unique
            )

    def _of_part(self, made: Modelled, request: Request) -> Answer:
        """A read or a write of a part: it has one value for each address."""
        for place, parameter in enumerate(made.scopes):
            self._check_above(made, place, parameter, request)
        keys = [str(request.given.get(each, "")) for each in made.scopes]
        name = "/".join([*(each for each in made.path if each != "{}"), *keys])
        schema = made.part
        known = self.state.parts.get(name)
        was = (
            self._drawer.value(schema, made.path[-1] if made.path else "", f"part {name}")
            if known is None
            else known.was
        )
        value = was if known is None else known.value
        if made.role == "write" and made.shape is not None:
            fields = fields_of(made.shape.item)
            sent = {name: each for name, each in request.body.items() if not _is_read_only(fields.get(name, {}))}
            new = copy.deepcopy(value)
            inner = value_at(new, made.shape.keys)
            if isinstance(inner, dict):
                inner.update(sent)
            if self.model.fits(schema, new):
                self.state.parts[name] = Part(was, new)
                self.state.writes += 1
                value = new
        headers = self._composer.headers(made, None, request)
        if made.role == "write" and made.reply.schema is not None:
            return self._replied(made.reply, self._composer.part(made.reply.schema, value), headers)
        return self._replied(made.reply, value, headers)

    def _check_above(self, made: Modelled, place: int, parameter: str, request: Request) -> None:
        """A part of a record is there if the record is."""
        ends = [at for at, each in enumerate(made.path) if each == "{}"]
        above = made.path[: ends[place]]
        collection = next((each for each in self.model.collections.values() if each.path == above), None)
        keys = tuple(str(request.given.get(each, "")) for each in made.scopes[: place + 1])
        if collection is not None and keys not in self.state.records[collection.name]:
            raise _RefusedError(404, f"there is no {noun_in_words(collection)} {keys[-1][:60]!r}", parameter)

    def _shown(self, made: Modelled, record: Record, collection: Collection) -> Answer:
        value = self._composer.one(made, record, collection, self.state)
        headers = self._composer.headers(made, None, Request("", "", {}))
        return self._replied(made.reply, value, headers)

    def _replied(self, reply: Reply, value: Json, headers: Mapping[str, str]) -> Answer:
        if reply.schema is None or reply.status in _EMPTY:
            return Answer(reply.status, dict(headers))
        as_text = not is_declared_json(reply.media_type)
        content = str(value).encode("utf-8", "replace") if as_text else to_json_text(value)
        return Answer(reply.status, {**headers, "content-type": reply.media_type}, content)

    def _refused(self, made: Modelled | None, refusal: _RefusedError) -> Answer:
        errors = {} if made is None else made.errors
        named = (
            errors.get(str(refusal.status)) or errors.get(f"{refusal.status // 100}XX") or errors.get("default")
        )
        reply = named or Reply(refusal.status)
        value = self._composer.error(reply, refusal.status, refusal.message, refusal.field)
        if named is not None and named.schema is None and not named.headers and str(refusal.status) in errors:
            value = {"message": refusal.message}
        headers = {"content-type": reply.media_type, **refusal.headers}
        return Answer(refusal.status, headers, to_json_text(value))


class Transport(httpx.AsyncBaseTransport, httpx.BaseTransport):
    """Carries the requests of a client to a double."""

    def __init__(self, double: Double) -> None:
        self._double = double
        self._prefix = urlsplit(double.model.app.server).path.rstrip("/")

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return self._handled(request, request.read())

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return self._handled(request, await request.aread())

    def _handled(self, request: httpx.Request, body: bytes) -> httpx.Response:
        path = request.url.raw_path.decode().partition("?")[0].removeprefix(self._prefix)
        answer = self._double.respond(request.method, path, request.url.query.decode(), request.headers, body)
        return httpx.Response(answer.status, headers=answer.headers, content=answer.body, request=request)


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


def _credential(scheme: SecurityScheme, secret: str) -> Authentication:
    if scheme.kind == "api_key":
        own = {scheme.parameter: secret}
        places = {"header": Authentication(headers=own), "query": Authentication(query=own)}
        return places.get(scheme.place, Authentication(cookies=own))
    if scheme.kind == "basic":
        return Authentication(
            headers={"Authorization": f"Basic {base64.b64encode(f'double:{secret}'.encode()).decode()}"}
        )
    if scheme.kind == "mutual_tls":
        return Authentication()
    return Authentication(headers={"Authorization": f"{scheme.prefix or 'Bearer'} {secret}"})


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
        name = re.search(rb'name="([^"]*)"', head)
        if name is not None:
            fields.setdefault(name[1].decode("utf-8", "replace"), []).append(
                value.removesuffix(b"\r\n").decode("utf-8", "replace")
            )
    return fields


def _is_read_only(schema: Schema) -> bool:
    return schema.get("readOnly") is True


def _status(made: Modelled, wanted: Sequence[str], otherwise: int) -> int:
    """The first of the statuses that the document names for the operation."""
    return next((int(each) for each in wanted if each in made.errors), otherwise)


def _names(value: Json, wanted: Json) -> bool:
    """Whether a field is, or holds, what a path parameter says."""
    if isinstance(value, Mapping):
        return any(same(value.get(name), wanted) for name in KEYS if name in value)
    return same(value, wanted)


def _thin(model: Model, drawer: Drawer) -> Iterator[tuple[str, frozenset[str]]]:
    """Up to a half of the fields of each collection, but for its key and its name."""
    for each in model.collections.values():
        rng = drawer.random(f"thin {each.name}")
        free = [name for name in fields_of(each.item) if name != each.key and plain(name) not in ("name", "title")]
        yield each.name, frozenset(rng.sample(free, rng.randint(0, len(free) // 2)))
