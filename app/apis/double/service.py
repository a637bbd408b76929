"""The double: an API's answers without the API, from the model of its document and records of its own.

It holds no connection and no time of its own: the same requests in the same order give the same answers for the
same seed. What it answers fits the document, and what it refuses is refused in the document's form: 401 without
the credential, 422 or 400 for what violates a schema, 404 for an unknown key, 409 for a unique field given
twice if the document names 409. A call of an operation that is left out of the model is answered with 501; the
document that is shown of a double is that of the API without these, in any order.
"""

import copy
import re
from collections.abc import Iterable, Iterator, Mapping
from random import Random
from typing import Final
from urllib.parse import unquote, urlsplit

import httpx
import msgspec

from app.apis.catalog import Operation
from app.apis.credentials.schemes import Authentication
from app.apis.documents.references import to_json_text
from app.apis.double import texts
from app.apis.double.answers import Composer, noun_in_words
from app.apis.double.documents import METHODS, Reply
from app.apis.double.meanings import Record, chosen, page_of, same
from app.apis.double.model import Collection, Model, Modelled
from app.apis.double.receiver import Receiver, RefusedError, Request, status_of
from app.apis.double.shapes import KEYS, Schema, fields_of, flat, is_nullable, kind_of, value_at
from app.apis.double.state import (
    TOP,
    Part,
    Sampled,
    free_values,
    initial_state,
    linked,
    new_key,
    set_key,
    target_of,
    typed_key,
)
from app.apis.double.values import Drawer, NoValueError, texts_time
from app.apis.media_types import is_declared_json
from app.apis.naming import plain
from app.base.values import Json

_HOPS: Final = 4  # from a reference to another
_ORDERLESS: Final = ("paths", "properties", "schemas", "definitions", "parameters")
_OPERATIONS: Final = (*METHODS, "additionalOperations")  # what a path has of them
_THIN_KEYS: Final = 0.5  # of thin lists that are maps have no keys within their records
_EMPTY: Final = (204, 205, 304)  # statuses without content, whatever a document says
_NOW: Final = re.compile(
    r"(created|updated|modified|changed|last.?(updated|modified|changed))(at|on|date|time|timestamp)?|timestamp"
)
_CREATED: Final = re.compile(r"created|timestamp")


def served_document(
    model: Model, seed: str | None = None, shown: Iterable[Operation] | None = None
) -> dict[str, Json]:
    """What the double answers to, or the `shown` operations, some of which it may refuse. With a seed, operations,
    parameters and fields stand in another order: none of them means anything.
    """
    if shown is None:
        shown = (each.operation for each in model.operations.values())
    kept = {(each.path, each.method) for each in shown}
    paths: dict[str, Json] = {}
    for path, item in model.document["paths"].items():
        if not isinstance(item, Mapping):
            continue
        left = {
            name: each for name, each in item.items() if name not in _OPERATIONS or (path, name.upper()) in kept
        }
        if any((path, name.upper()) in kept for name in left):
            paths[path] = left
    document: dict[str, Json] = _inlined({**model.document, "paths": paths}, model.document, 0)
    return document if seed is None else _shuffled(document, Random(f"{seed} order"), "")


def _inlined(value: Json, document: Mapping[str, Json], hops: int) -> Json:
    """With what stands at paths in place of references to it: the path, or its place in a list, may be another."""
    if isinstance(value, list):
        return [_inlined(each, document, hops) for each in value]
    if not isinstance(value, Mapping):
        return value
    reference = value.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/paths/") and hops < _HOPS:
        return _inlined(_target(reference, document), document, hops + 1)
    return {name: _inlined(each, document, hops) for name, each in value.items()}


def _target(reference: str, document: Mapping[str, Json]) -> Json:
    """Any value, if there is nothing at the place."""
    found: Json = document
    for part in unquote(reference).removeprefix("#/").split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        elif isinstance(found, Mapping) and name in found:
            found = found[name]
        else:
            return {}
    return found


def _shuffled(value: Json, rng: Random, name: str) -> Json:
    """The members of some objects, and of a list of parameters, in any order."""
    if isinstance(value, Mapping):
        names = list(value)
        if name in _ORDERLESS:
            rng.shuffle(names)
        return {each: _shuffled(value[each], rng, each if name != "properties" else "") for each in names}
    if isinstance(value, list):
        found = [_shuffled(each, rng, "") for each in value]
        if name == "parameters":
            rng.shuffle(found)
        return found
    return value


class Answer(msgspec.Struct, frozen=True):
    """An HTTP answer."""

    status: int
    headers: dict[str, str] = {}
    body: bytes = b""

    @property
    def value(self) -> Json:
        """Its JSON; None without one."""
        has_json = bool(self.body) and is_declared_json(self.headers.get("content-type", ""))
        return msgspec.json.decode(self.body) if has_json else None


class Options(msgspec.Struct, frozen=True):
    """How one double differs from another of the same API: lists may show fewer fields than items do, and
    collections that are in no other may begin with more records.
    """

    thin_lists: bool = False
    records: tuple[int, int] = TOP  # of such a collection, at least and at most


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
        self._receiver = Receiver(model, self._drawer)
        self.state = initial_state(model, self._drawer, seen, options.records)

    def authentication(self, operation: str = "") -> Authentication:
        """The credential that an operation takes, or most of them; empty if it takes any call."""
        return self._receiver.authentication(operation)

    def respond(
        self, method: str, path: str, query: str = "", headers: Mapping[str, str] = {}, body: bytes = b""
    ) -> Answer:
        """The answer to a request. `path` is under the server's, percent-encoded."""
        lower = {name.lower(): value for name, value in headers.items()}
        made: Modelled | None = None
        try:
            operation, values = self._receiver.route(method, path)
            made = self.model.meant(operation.name, values)
            self._receiver.authorize(operation, lower, query)
            if made is None and operation.name in self.model.operations:
                raise RefusedError(404, "there is nothing at this address")
            if made is None:
                raise RefusedError(501, "this operation is not modelled")
            if self.limit_next > 0 and "429" in made.errors:
                self.limit_next -= 1
                message = "too many requests, try again after 1 second"
                raise RefusedError(429, message, headers={"Retry-After": "1"})
            answer = self._answer(made, self._receiver.request(made, values, path, query, lower, body))
        except RefusedError as refusal:
            answer = self._refused(made, refusal)
        except NoValueError as error:
            answer = self._refused(made, RefusedError(501, str(error)))
        return Answer(answer.status, answer.headers, b"") if method == "HEAD" else answer

    def transport(self) -> "Transport":
        """For a client of httpx whose addresses begin with the server of the API."""
        return Transport(self)

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
            raise RefusedError(404, f"there is no {noun_in_words(collection)} {key[:60]!r}", made.key)
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
        """The keys of the records above. Raises RefusedError if one of them is unknown."""
        for name, place in collection.homes:
            if place not in self.state.records[name]:
                what = noun_in_words(self.model.collections[name])
                raise RefusedError(404, f"there is no {what} {place[-1][:60]!r}")
        keys: list[str] = []
        for parameter, scope in zip(made.scopes, collection.scopes, strict=False):
            key = str(request.given.get(parameter, ""))
            if scope.parent:
                known = (*keys, key) in self.state.records[scope.parent]
            else:
                known = key in free_values(scope.parameter, scope.schema, self._drawer)
            if not known:
                what = noun_in_words(self.model.collections[scope.parent]) if scope.parent else parameter
                raise RefusedError(404, f"there is no {what} {key[:60]!r}", parameter)
            keys.append(key)
        for link in collection.links:
            wanted = request.given.get(made.fixed.get(link.field, ""))
            if wanted is not None and target_of(link, wanted, self.model, self.state) is None:
                what = noun_in_words(self.model.collections[link.collection])
                raise RefusedError(404, f"there is no {what} {str(wanted)[:60]!r}", made.fixed[link.field])
        return tuple(keys)

    def _listed(self, made: Modelled, collection: Collection, scope: tuple[str, ...], request: Request) -> Answer:
        """The page asked for of the records that a list chooses. To clear deletes all of them."""
        every = self.state.records[collection.name].values()
        found = [each for each in every if each.scope[: len(scope)] == scope]
        for field, parameter in made.fixed.items():
            wanted = request.given.get(parameter)
            found = [each for each in found if _names(each.fields.get(field), wanted)]
        given = request.given | request.body
        found = chosen(made.query, found, given)
        page = page_of(made.query, found, given)
        value = self._composer.many(made, page, collection, self.state, request)
        if made.role == "clear":
            for each in found:
                self._delete(collection, each)
        return self._replied(made.reply, value, self._composer.headers(made, page, request))

    def _created(
        self, made: Modelled, collection: Collection, scope: tuple[str, ...], request: Request, key: str = ""
    ) -> Answer:
        fields = self._accepted(made, collection, request)
        own = fields.get(collection.key) if collection.key in collection.given else None
        named = key or (str(own) if isinstance(own, str | int) and not isinstance(own, bool) and own != "" else "")
        taken = status_of(made, ("409", "422", "400"), 409)
        if named and (*scope, named) in self.state.records[collection.name]:
            raise RefusedError(taken, f"{collection.key} {named[:60]!r} exists already", collection.key)
        fields = self._with_links(made, collection, fields)
        self._check_unique(made, collection, scope, fields, None)
        rng = self._drawer.random(f"new {collection.name} {self.state.writes}")
        made_key = named or new_key(collection, self.state, self._drawer, rng)
        if made_key is None:
            raise RefusedError(taken, "there is no key left for another one")
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
        links = {
            each.field: above[each.collection]
            for each in collection.links
            if each.collection in above and not each.many and not each.embedded
        }
        fields: dict[str, Json] = {}
        for name, schema in fields_of(collection.item).items():
            if name in given:
                fields[name] = given[name]
            elif name in links:
                fields[name] = typed_key(schema, links[name])
            elif (value := self._server_set(collection, name, schema, record)) is not None or (
                is_nullable(schema) and not collection.free
            ):
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
        if is_nullable(schema) or (collection.free and name in collection.given):
            return None
        if inner.get("enum"):
            begins = name not in collection.given or "state" in name or "status" in name
            return inner["enum"][0] if begins else None
        empty: Json = {"boolean": False, "integer": 0, "number": 0, "array": []}.get(kind)
        if name in collection.given:
            return empty if kind == "boolean" or kind == "array" else None
        if empty is not None and self.model.fits(schema, empty):
            return empty
        salt = f"new {collection.name} {record.scope} {record.key}"
        value = self._drawer.fields({"properties": {name: schema}}, salt, collection.examples).get(name)
        return None if texts_time(value) else value

    def _now(self, schema: Schema) -> Json:
        at = self.state.now()
        day, seconds = at.date().isoformat(), int(at.timestamp())
        if flat(schema).get("format") == "date":
            return day
        forms: list[Json] = [texts.time_text(at), day]
        forms += [] if kind_of(flat(schema)) == "string" else [seconds, seconds * 1000]
        return next((each for each in forms if self.model.fits(schema, each)), None)

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
        place, inner = (*record.scope, record.key), len(record.scope)
        self.state.records[collection.name].pop(place, None)
        for other in self.model.collections.values():
            keyed = self.state.records[other.name]
            if (collection.name, place) in other.homes:
                keyed.clear()
            if len(other.scopes) > inner and other.scopes[inner].parent == collection.name:
                for each in [each for each in keyed if each[: len(place)] == place]:
                    del keyed[each]
        self.state.writes += 1

    def _accepted(self, made: Modelled, collection: Collection, request: Request) -> dict[str, Json]:
        """What of a body is kept: all but what the server alone sets, and what neither side describes."""
        schema = made.body.shape.item if made.body is not None and made.body.shape is not None else {}
        item, sent = fields_of(collection.item), fields_of(schema)
        kept: dict[str, Json] = {}
        for name, value in request.body.items():
            own = sent.get(name)
            foreign = own is None and bool(sent) and not schema.get("additionalProperties")
            shown = item.get(name, {})
            if foreign or _is_read_only(own or shown) or (own is None and self._receiver.problem(shown, value)[1]):
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
            unknown = next((each for each, to in found if to is None), None)
            if unknown is not None and status is not None:
                what = noun_in_words(self.model.collections[link.collection])
                raise RefusedError(status, f"{link.field}: there is no {what} {str(unknown)[:60]!r}", link.field)
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
            raise RefusedError(409, f"{collection.unique} {str(value)[:60]!r} is taken already", collection.unique)

    def _of_part(self, made: Modelled, request: Request) -> Answer:
        """A read or a write of a part: it has one value for each address."""
        keys = tuple(str(request.given.get(each, "")) for each in made.scopes)
        self._check_above(made, keys)
        name = "/".join([*(each for each in made.path if each != "{}"), *keys])
        part = self.state.parts.get(name)
        if part is None:
            drawn = self._drawer.value(made.part, made.path[-1] if made.path else "", f"part {name}")
            part = Part(drawn, drawn)
        if made.role == "write" and made.shape is not None:
            fields = fields_of(made.shape.item)
            new = copy.deepcopy(part.value)
            inner = value_at(new, made.shape.keys)
            if isinstance(inner, dict):
                sent = request.body.items()
                inner.update({name: each for name, each in sent if not _is_read_only(fields.get(name, {}))})
            if self.model.fits(made.part, new):
                self.state.parts[name] = part = Part(part.was, new)
                self.state.writes += 1
        value, schema = part.value, made.reply.schema
        if made.role == "write" and schema is not None and not self.model.fits(schema, value):
            value = self._drawer.value(schema, "", "part")
        return self._replied(made.reply, value, self._composer.headers(made, None, request))

    def _check_above(self, made: Modelled, keys: tuple[str, ...]) -> None:
        """A part of a record is there if the record is."""
        ends = [at for at, each in enumerate(made.path) if each == "{}"]
        for place, parameter in enumerate(made.scopes):
            above = made.path[: ends[place]]
            collection = next((each for each in self.model.collections.values() if each.path == above), None)
            if collection is not None and keys[: place + 1] not in self.state.records[collection.name]:
                said = f"there is no {noun_in_words(collection)} {keys[place][:60]!r}"
                raise RefusedError(404, said, parameter)

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

    def _refused(self, made: Modelled | None, refusal: RefusedError) -> Answer:
        errors = {} if made is None else made.errors
        names = (str(refusal.status), f"{refusal.status // 100}XX", "default")
        named = next((errors[each] for each in names if each in errors), None)
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


def _is_read_only(schema: Schema) -> bool:
    return schema.get("readOnly") is True


def _names(value: Json, wanted: Json) -> bool:
    """Whether a field is, or holds, what a path parameter says."""
    if isinstance(value, Mapping):
        return any(same(value.get(name), wanted) for name in KEYS if name in value)
    return same(value, wanted)


def _thin(model: Model, drawer: Drawer) -> Iterator[tuple[str, frozenset[str]]]:
    """Up to a half of the fields of each collection, but for its name; a map may leave out the key, too."""
    for each in model.collections.values():
        if each.free:
            continue
        rng = drawer.random(f"thin {each.name}")
        free = [name for name in fields_of(each.item) if name != each.key and plain(name) not in ("name", "title")]
        found = rng.sample(free, rng.randint(0, len(free) // 2))
        yield each.name, frozenset([*found, *([each.key] if rng.random() < _THIN_KEYS else [])])
