"""Answers in the form that the document gives them: a record by its schema, its envelope, the fields about pages,
and errors. Pure.

What a schema does not take of a record is drawn instead, so that an answer always fits its schema.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import ceil
from typing import Final
from urllib.parse import parse_qsl, urlencode

from app.apis.catalog import Parameter
from app.apis.double.documents import Reply
from app.apis.double.meanings import Page, Record
from app.apis.double.model import HIDDEN, Collection, Model, Modelled
from app.apis.double.receiver import Request
from app.apis.double.shapes import Schema, fields_of, flat, is_nullable, kind_of, type_name
from app.apis.double.state import Sampled, State, counted, linked, target_of, typed_key
from app.apis.double.values import Drawer, NoValueError
from app.apis.naming import plain, singular, split_words, word_set
from app.apis.pagination import page_field
from app.base.values import Json

_WELL: Final = word_set("success ok acknowledged succeeded result done deleted updated created valid")
_BADLY: Final = re.compile(
    r"errors?|error_?(code|message|description|details?)|warnings?|exception|failures?", re.IGNORECASE
)
_MESSAGES: Final = re.compile(
    r"message|detail|error|title|description|errors|reason|msg|error_?description|error_?message", re.I
)
_STATUSES: Final = word_set("status statuscode code errorcode httpstatus")
_PLACES: Final = word_set("field param parameter loc path pointer")
_INSIDE: Final = re.compile(r"meta|metadata|pagination|paging|pageinfo|page|links|cursors|responsemetadata")
_NOT_SET: Final = word_set("content-type content-length retry-after transfer-encoding connection")


class Composer:
    """Makes the values of answers. `thin` are fields that lists leave out if they may, by collection; what the
    real server was seen to leave out is left out, whatever the document promises.
    """

    def __init__(self, model: Model, drawer: Drawer, thin: Mapping[str, frozenset[str]], seen: Sampled) -> None:
        self._model, self._drawer, self._base, self._thin = model, drawer, model.app.server, thin
        self._fits = drawer.fits
        every = model.collections.values()
        self._unlisted = {each.name: seen.left_out(each, lists=True) for each in every}
        self._unshown = {each.name: seen.left_out(each, lists=False) - {each.key} for each in every}

    def one(self, made: Modelled, record: Record, collection: Collection, state: State) -> Json:
        """The answer of an operation on one record."""
        schema, shape = made.reply.schema, made.shape
        if schema is None:
            return None
        if shape is None:
            return self.told(schema, made, record.fields, key=record.key)
        shown = _without(self.record(shape.item, record, collection, state), self._unshown[collection.name])
        return self._wrapped(schema, shape.keys, shown, made, None, None)

    def many(
        self,
        made: Modelled,
        page: Page,
        collection: Collection,
        state: State,
        request: Request,
    ) -> Json:
        """The answer of a list."""
        schema, shape = made.reply.schema, made.shape
        if schema is None or shape is None:
            return None if schema is None else self.told(schema, made, {})
        is_map = shape.holds == "map"  # which says the keys of its records itself
        kept = frozenset() if is_map else {collection.key}
        thin = self._thin.get(collection.name, frozenset()) - kept
        rows = [self.record(shape.item, each, collection, state, thin) for each in page.rows]
        rows = [_without(each, self._unlisted[collection.name] - kept) for each in rows]
        content: Json = dict(zip((each.key for each in page.rows), rows, strict=True)) if is_map else rows
        return self._wrapped(schema, shape.keys, content, made, page, request)

    def record(
        self,
        schema: Schema,
        record: Record,
        collection: Collection,
        state: State,
        thin: frozenset[str] = frozenset(),
    ) -> Json:
        """A record as a schema shows it."""
        known = self._fresh(record, collection, state)
        fields = fields_of(flat(schema))
        if not fields:
            return known if self._fits(schema, known) else self._drawn(schema, f"{collection.name} {record.key}")
        needed = flat(schema).get("required", ())
        shown = [
            name
            for name, each in fields.items()
            if each.get("writeOnly") is not True and (name not in thin or name in needed)
        ]
        shown += [name for name in known if collection.free and name not in fields]
        whole: Json = {name: known[name] for name in shown if name in known}
        if self._fits(schema, whole):
            return whole
        found: dict[str, Json] = {}
        missing: list[str] = []
        for name in shown:
            each = fields.get(name, {})
            if name in known and (fit := self._as(each, known[name])):
                found[name] = fit[0]
            elif name in known or name in needed:
                missing.append(name)
        for name in missing:
            salt = f"{collection.name} {record.scope} {record.key} {name}"
            found[name] = self._field(fields[name], name, salt)
        if self._fits(schema, found):
            return found
        whole = self._drawn(schema, f"{collection.name} {record.scope} {record.key}")
        if isinstance(whole, dict):
            for name, value in found.items():
                kept = whole.get(name)
                whole[name] = value
                if not self._fits(schema, whole):
                    if name in fields and kept is not None:
                        whole[name] = kept
                    else:
                        del whole[name]
        return whole

    def told(self, schema: Schema, made: Modelled, known: Mapping[str, Json], key: str = "") -> Json:
        """An answer that is no record: that all went well, or the key of what was made."""
        plain_schema = flat(schema)
        if kind_of(plain_schema) in ("string", "integer") and key and "enum" not in plain_schema:
            value = typed_key(schema, key)
            if made.role == "create" and self._fits(schema, value):
                return value
            return self._drawn(schema, made.operation.name, "message")
        value = self._drawn(schema, made.operation.name)
        if not isinstance(value, dict):
            return value
        at = self._model.collections.get(made.collection)
        own = set() if at is None else set(map(plain, ("id", "uuid", "key", f"{at.noun}id", at.key or "id")))
        for name, each in fields_of(plain_schema).items():
            wanted: list[Json] = []
            if key and plain(name) in own:
                wanted = [typed_key(each, key)]
            elif name in known:
                wanted = [known[name]]
            elif plain(name) in _WELL and kind_of(flat(each)) == "boolean":
                wanted = [True]
            elif _BADLY.fullmatch(name):
                wanted = [None, [], ""]
                if name not in plain_schema.get("required", ()):
                    value.pop(name, None)
                    continue
            elif plain(name) in ("message", "msg", "detail", "status") and "enum" not in each:
                wanted = ["ok" if plain(name) == "status" else "The request was carried out.", 200]
            fit = next((one for one in wanted if self._fits(each, one)), None)
            if fit is not None or any(one is None and self._fits(each, None) for one in wanted):
                value[name] = fit
        return value

    def error(self, reply: Reply, status: int, message: str, field: str) -> Json:
        """An error in the form of the document, with a message where it has a place for one."""
        if reply.schema is not None:
            with suppress(NoValueError):
                value = self._drawer.value(reply.schema, "error", f"error {status}")
                return self._with_message(value, reply.schema, status, message, field)
        return {"message": message}

    def headers(self, made: Modelled, page: Page | None, request: Request) -> dict[str, str]:
        """Those that the document names, and a link to the next page where nothing else tells of one."""
        found: dict[str, str] = {}
        for name, schema in made.reply.headers.items():
            about = page_field(name)
            if name.lower() == "link" or (about == "next" and page is not None):
                address = "" if page is None or page.following is None else self._next_url(made, page, request)
                if address:
                    found[name] = f'<{address}>; rel="next"' if name.lower() == "link" else address
            elif about == "total" and page is not None:
                found[name] = str(page.total)
            elif name.lower() not in _NOT_SET:
                value = self._drawn(schema or {"type": "string"}, f"header {name}", name)
                found[name] = str(value).lower() if isinstance(value, bool) else str(value)
        bare = made.shape is not None and not made.shape.keys
        goes_on = page is not None and page.following is not None and _by_cursor(made)
        if page is not None and goes_on and bare and not any(page_field(each) == "next" for each in found):
            found["Link"] = f'<{self._next_url(made, page, request)}>; rel="next"'
        return {name: re.sub(r"[^\x20-\x7e]", "-", value) for name, value in found.items()}

    def _fresh(self, record: Record, collection: Collection, state: State) -> dict[str, Json]:
        """The fields, with embedded records and numbers of others as they are now."""
        known = {name: value for name, value in record.fields.items() if not name.startswith(HIDDEN)}
        for counter in collection.counters:
            known[counter.field] = counted(counter, record, self._model, state)
        for link in collection.links:
            if not link.embedded or known.get(link.field) is None:
                continue
            schema = flat(fields_of(collection.item)[link.field])
            if link.many:
                schema = flat(schema.get("items") or {})
            given = known[link.field]
            values = given if isinstance(given, list) else [given]
            found = [(each, target_of(link, each, self._model, state)) for each in values]
            fresh = [each if to is None else linked(link, to, schema, self._model, each) for each, to in found]
            known[link.field] = fresh if isinstance(given, list) else fresh[0]
        return known

    def _as(self, schema: Schema, value: Json) -> list[Json]:
        """The value in a list, in a form that the schema takes; empty if it takes none."""
        forms: list[Json] = [value]
        if isinstance(value, dict):
            forms += [value[name] for name in ("id", "uuid", "key", "name") if name in value]
        kind = kind_of(flat(schema))
        if kind == "object" and isinstance(value, str | int):
            inner = fields_of(flat(schema))
            forms += [{name: value} for name in ("id", "uuid", "key", "name") if name in inner]
        if kind == "string" and isinstance(value, int | float) and not isinstance(value, bool):
            forms.append(str(value))
        if kind in ("integer", "number") and isinstance(value, str) and re.fullmatch(r"-?\d{1,15}", value):
            forms.append(int(value))
        return next(([each] for each in forms if self._fits(schema, each)), [])

    def _field(self, schema: Schema, name: str, salt: str) -> Json:
        try:
            return self._drawer.value(schema, name, salt)
        except NoValueError:
            return None

    def _drawn(self, schema: Schema, salt: str, name: str = "") -> Json:
        return self._drawer.value(schema, name, salt)

    def _wrapped(
        self,
        schema: Schema,
        keys: Sequence[str],
        content: Json,
        made: Modelled,
        page: Page | None,
        request: Request | None,
    ) -> Json:
        """The content under the keys, amid what else the envelope has."""
        if not keys:
            return content
        outer, (key, *inner) = flat(schema), keys
        fields, needed = fields_of(outer), outer.get("required", ())
        found: dict[str, Json] = {}
        for name, each in fields.items():
            if name == key:
                found[name] = self._wrapped(each, inner, content, made, page, request)
            elif page and request and (value := self._about_page(name, each, made, page, request)):
                found[name] = value[0]
            elif name in needed or (kind_of(flat(each)) in ("string", "boolean", "integer") and _is_quiet(name)):
                found[name] = self._around(name, each, made)
        if self._fits(schema, found):
            return found
        whole = self._drawn(schema, made.operation.name)
        return {**whole, **found} if isinstance(whole, dict) and self._fits(schema, {**whole, **found}) else found

    def _around(self, name: str, schema: Schema, made: Modelled) -> Json:
        if plain(name) in _WELL and kind_of(flat(schema)) == "boolean":
            return True
        nothing: tuple[Json, ...] = (None, [], "", {}, 0, False)
        for each in nothing if _BADLY.fullmatch(name) else ():
            if self._fits(schema, each):
                return each
        return self._field(schema, name, f"envelope {made.operation.name}")

    def _about_page(self, name: str, schema: Schema, made: Modelled, page: Page, request: Request) -> list[Json]:
        """What a field says about the page, in a list; empty if it is about something else, or stays away."""
        inner, own = flat(schema), plain(name)
        if kind_of(inner) == "object" and _INSIDE.fullmatch(own):
            value: dict[str, Json] = {}
            for field, each in fields_of(inner).items():
                about = self._about_page(field, each, made, page, request)
                if about:
                    value[field] = about[0]
                elif field in inner.get("required", ()):
                    value[field] = self._around(field, each, made)
            return [value] if self._fits(schema, value) else []
        paging, size = made.query.paging, made.query.size
        told: list[tuple[Parameter, Json]] = [] if size is None else [(size, page.size)]
        told += [] if paging is None else [(paging.parameter, paging.first)]
        for parameter, usual in told:
            if plain(parameter.wire_name) == own and kind_of(inner) in ("integer", "number"):
                value_now = request.given.get(parameter.wire_name, usual)
                return [value_now] if self._fits(schema, value_now) else []
        options = self._page_values(name, made, page, request, inner)
        return next(([each] for each in options if self._fits(schema, each)), [])

    def _page_values(self, name: str, made: Modelled, page: Page, request: Request, schema: Schema) -> list[Json]:
        match page_field(name):
            case "total":
                return [page.total]
            case "pages":
                return [ceil(page.total / page.size) if page.size else 0]
            case "more":
                return [page.following is not None]
            case "next":
                return self._next_forms(made, page, request, schema)
        if plain(name).startswith(("previous", "prev")):
            return [None]
        return [len(page.rows)] if plain(name) in ("size", "returned") else []

    def _next_forms(self, made: Modelled, page: Page, request: Request, schema: Schema) -> list[Json]:
        if page.following is None:
            return [None] if is_nullable(schema) or kind_of(schema) == "" else []
        if kind_of(schema) in ("integer", "number"):
            return [page.following]
        address = self._next_url(made, page, request)
        if kind_of(schema) == "object":
            return [{name: address} for name in fields_of(schema) if plain(name) in ("href", "url")]
        is_address = schema.get("format") in ("uri", "url", "uri-reference")
        return [page.following, str(page.following)] if _by_cursor(made) and not is_address else [address]

    def _next_url(self, made: Modelled, page: Page, request: Request) -> str:
        name = made.query.paging.parameter.wire_name if made.query.paging is not None else "page"
        pairs = [(key, value) for key, value in parse_qsl(request.query) if key != name]
        return f"{self._base}{request.path}?{urlencode([*pairs, (name, str(page.following))])}"

    def _with_message(self, value: Json, schema: Schema, status: int, message: str, field: str) -> Json:
        """The message in each place of the drawn error that may have one."""
        if isinstance(value, str):
            return message if self._fits(schema, message) else value
        if isinstance(value, list):
            inner = flat(schema).get("items") or {}
            rows = [self._with_message(each, inner, status, message, field) for each in value[:1]]
            return rows if self._fits(schema, rows) else value
        if not isinstance(value, dict):
            return value
        for name, each in fields_of(flat(schema)).items():
            if name not in value:
                continue
            kept, own = value[name], plain(name)
            if isinstance(kept, dict | list):
                value[name] = self._with_message(kept, each, status, message, field)
            elif own in _STATUSES and type_name(kept) in ("integer", "number"):
                value[name] = status
            elif isinstance(kept, str) and _MESSAGES.fullmatch(name):
                value[name] = message
            elif isinstance(kept, str) and own in ("status", "statuscode"):
                value[name] = str(status)
            elif isinstance(kept, str) and own in _PLACES:
                value[name] = field or "body"
            if not self._fits(schema, value):
                value[name] = kept
        return value


def _without(record: Json, names: frozenset[str]) -> Json:
    if not isinstance(record, dict):
        return record
    return {name: value for name, value in record.items() if name not in names}


def _by_cursor(made: Modelled) -> bool:
    return made.query.paging is not None and made.query.paging.by == "cursor"


def _is_quiet(name: str) -> bool:
    """Whether an optional field of an envelope is there: not if it tells of errors or of other pages."""
    about_pages = page_field(name) is not None or plain(name).startswith(("prev", "first", "last", "next"))
    return not about_pages and _BADLY.fullmatch(name) is None


def noun_in_words(collection: Collection) -> str:
    """What one of its records is called in messages."""
    *words, last = split_words(collection.name.split("/")[-1]) or [collection.noun]
    return " ".join([*words, singular(last)])
