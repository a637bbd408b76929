"""The program that solves the tasks of a form, as a careful reader of the document would write it, and programs
with a mistake that an error shows. Pure.
"""

import json
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from random import Random
from typing import Final

import msgspec

from app.apis.catalog import App, Operation
from app.apis.double.model import Collection, Modelled
from app.apis.double.shapes import fields_of, flat, kind_of, root_of
from app.apis.naming import argument_name, singular, split_words, word_set
from app.base.values import Json
from trainer.lessons.experts import Program, indent
from trainer.practice.forms import Condition, Form, Reach, filter_for
from trainer.practice.tasks import (
    UnfitError,
    Values,
    arguments,
    first_arguments,
    is_whole_body,
    kept_fields,
    parameters,
    pinned,
)
from trainer.practice.words import noun, nouns

_LOCALS: Final = word_set("row item page found chosen owner count best kept made each key apis total shown name")
_OTHER_VERBS: Final[Mapping[str, tuple[str, ...]]] = {
    "list": ("get_all", "fetch"), "get": ("read", "show"), "create": ("add", "new"), "add": ("create", "insert"),
    "update": ("edit", "modify"), "patch": ("update", "edit"), "delete": ("remove", "destroy"), "put": ("update",),
    "edit": ("update",), "show": ("get", "read"), "fetch": ("list", "get"), "replace": ("update",),
    "remove": ("delete",),
}  # fmt: skip
_OTHER_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "key": ("id", "uuid", "key"), "text": ("title", "name", "label", "display_name"),
    "flag": ("status", "is_active"), "choice": ("status", "state", "type"),
    "date": ("created_at", "date", "timestamp"),
    "number": ("value", "count", "amount"), "texts": ("items", "values"), "": ("id", "status", "label"),
}  # fmt: skip
"""What one expects that a field is called, by its kind."""


class Shown(msgspec.Struct, frozen=True):
    """What the worlds of a scenario show of the records of a collection: the fields that rows of lists have, those
    that every record has, and those that are shown otherwise than the records have them.
    """

    rows: frozenset[str]
    sure: frozenset[str]
    untrue: frozenset[str] = frozenset()


class Writing(msgspec.Struct, frozen=True, eq=False):
    """What a program is written from. `app` is that of the world: its names count."""

    form: Form
    every: Mapping[str, Reach]
    app: App
    shown: Mapping[str, Shown]
    values: Sequence[Values]
    filters: bool = True  # whether it lets the API choose the records, where it can

    @property
    def reach(self) -> Reach:
        return self.every[self.form.collection]

    def operation(self, made: Modelled) -> Operation:
        own = made.operation
        return next(
            each for each in self.app.operations.values() if (each.method, each.path) == (own.method, own.path)
        )

    @property
    def is_thin(self) -> bool:
        """Whether rows of the list lack what the tasks are about, so that each record is read by itself."""
        form = self.form
        return form.by not in ("id", "only") and bool(self.needs(form) - self.shown[form.collection].rows)

    def needs(self, form: Form) -> set[str]:
        """The fields of rows that a program reads."""
        where = {each.field for each in form.conditions.values()}
        read = form.field if form.goal in ("list", "sum", "most", "least", "read") else ""
        named = form.key if form.by == "text" or form.goal in ("most", "least") else ""
        linked = ""
        if form.is_of_owner and form.through is not None and form.through.link is not None:
            linked = "" if self.reach.view(form.through.link) else form.through.field
        return where | {each for each in (read, named, linked, form.but) if each}


def names_of(form: Form, reach: Reach, every: Mapping[str, Reach]) -> dict[str, str]:
    """The program's parameters by what they are for."""
    found: dict[str, str] = {}
    one = noun(reach.collection)
    for name in parameters(form, reach.collection):
        words = _words_of(name, form, reach, every, one)
        argument = argument_name("_".join(words)) or "value"
        while argument in _LOCALS or argument in found.values():
            argument = f"{argument}_value"
        found[name] = argument
    return found


def _words_of(name: str, form: Form, reach: Reach, every: Mapping[str, Reach], one: str) -> list[str]:
    if name.startswith("home") and name[4:].isdigit():
        return [*(split_words(reach.collection.home[int(name[4:])].what) or ["place"]), "id"]
    if name.startswith("above") and name[5:].isdigit():
        return split_words(reach.collection.scopes[int(name[5:])].parameter)
    match name:
        case "owner":
            through = form.through
            if through is None or not through.collection:
                return split_words(reach.collection.scopes[-1].parameter)
            return [*noun(every[through.collection].collection).split(), *split_words(through.name or "id")]
        case "key":
            return [*one.split(), "id"] if form.by == "id" else split_words(form.key)
        case "where" | "also" if name in form.conditions:
            where = form.conditions[name]
            told = {"more": "above", "less": "below", "before": "before", "after": "after", "has": "word"}
            return [*split_words(where.field), *filter(None, [told.get(where.test)])]
        case "but":
            return ["other", *split_words(form.but)]
        case "new":
            return ["new", *split_words(form.field)]
    return split_words(name)


def write_program(writing: Writing) -> Program:
    """Raises UnfitError where an operation does not take what the program would have to give."""
    return _Program(writing).program()


def places_program(writing: Writing) -> Program | None:
    """Shows the keys of what the records are in, and of all beside it; None where the API does not list them."""
    return _Program(writing).places()


class _Program:
    def __init__(self, writing: Writing) -> None:
        self._writing, self._form, self._reach = writing, writing.form, writing.reach
        self._names = names_of(self._form, self._reach, writing.every)
        self._shown = writing.shown[self._form.collection]

    def program(self) -> Program:
        body, result, returns = self._body()
        values = self._writing.values
        return Program(
            name=self._name(),
            parameters=tuple((name, _type([each[own] for each in values])) for own, name in self._names.items()),
            returns=returns,
            body=(*self._find_owner(), *body),
            result=result,
        )

    def places(self) -> Program | None:
        above = [self._writing.every.get(each.collection) for each in self._reach.collection.home]
        names = [self._names[f"home{number}"] for number in range(len(above))]
        body = [f"print({', '.join(names)})"]
        for number, reach in reversed(list(enumerate(above))):
            made = None if reach is None else reach.listing
            if reach is None or made is None or made.shape is None or made.shape.holds != "list":
                return None
            key = f"row[{quoted(reach.collection.key)}]"
            body = self._loop(reach, made, names[:number], {}, [f"{names[number]} = {key}", *body], set())
        return Program(name="places", parameters=(), returns="", body=tuple(body), result="") if above else None

    def _name(self) -> str:
        form, one, many = self._form, noun(self._reach.collection), nouns(self._reach.collection)
        verb = {True: "set", False: "unset", None: "change"}[form.value]
        act = " ".join(split_words(form.operation))
        several = many if form.by in ("all", "where") else one
        said = {
            "count": f"count {form.field if form.by == 'only' else many}", "list": f"list {form.field} of {many}",
            "sum": f"total {form.field} of {many}",
            "most": f"{many} with most {form.field}", "least": f"{many} with least {form.field}",
            "read": f"{form.field} of {one}", "create": f"create {one} with {' '.join(form.fields)}",
            "ensure": f"ensure {one} and count", "change": f"{verb} {form.field} of {several}",
            "act": f"{act} for {several}", "delete": f"delete {several}",
            "check": f"{verb} {form.field} of {one} and count",
            "link": f"put {one} in", "unlink": f"take {one} out",
            "add": f"add to {form.field} of {one}", "drop": f"drop from {form.field} of {one}",
        }[form.goal]  # fmt: skip
        if form.by == "where":
            for each in form.conditions.values():
                said += f" by {each.field} {'' if each.test == 'is' else each.test}"
                said += "" if each.flag is None else f" {each.flag}"
        elif form.by in ("id", "text") and form.goal != "create":
            said += f" by {form.key or 'id'}"
        if form.but:
            said += " but one"
        if form.through is not None:
            above = self._writing.every.get(form.through.collection)
            of = nouns(above.collection) if above and above.collection.home else form.through.collection
            said += f" of {of} {form.through.field} by {form.through.name or 'id'}"
        return argument_name("_".join(split_words(said))[:90].strip("_"))

    def _body(self) -> tuple[list[str], str, str]:
        """The lines, the result, and its type."""
        form = self._form
        match form.goal:
            case "count" if form.by == "only":
                value = self._value(self._get(""), form.field)
                return [], f"len({value if form.field in self._shown.sure else f'{value} or []'})", "int"
            case "count":
                return ["count = 0", *self._each(["count += 1"])], "count", "int"
            case "list":
                value = self._access(form.field)
                body = [f"found.append({value})"]
                if form.field not in self._shown.sure:
                    body = [f"if {value} is not None:", *indent(body)]
                return ["found = []", *self._each(body)], "found", "list"
            case "sum":
                value = self._access(form.field)
                value = value if form.field in self._shown.sure else f"{value} or 0"
                return ["total = 0", *self._each([f"total += {value}"])], "total", "float"
            case "most" | "least":
                return self._extreme()
            case "read" if form.by in ("id", "only"):
                value = self._value(self._get(self._names.get("key", "")), form.field)
                return [], value, self._kind(form.field)
            case "read":
                return self._find(self._access(form.field)), "found", self._kind(form.field)
            case "create":
                return self._create({each: self._names[each] for each in form.fields})
            case "ensure":
                made = self._call("create", self._scope(), {form.key: self._names["key"]}, owner=True)
                test = [f"if {self._access(form.key)} == {self._names['key']}:", "    found = True"]
                found = ["found = False", "count = 0", *self._each(["count += 1", *test], every=True)]
                return [*found, "if not found:", f"    {made}", "    count += 1"], "count", "int"
        if form.by in ("all", "where"):
            return self._write_many()
        return self._write_one()

    def _extreme(self) -> tuple[list[str], str, str]:
        form, more = self._form, ">" if self._form.goal == "most" else "<"
        value = self._access(form.field)
        known = "" if form.field in self._shown.sure else f"{value} is not None and "
        test = f"if {known}(best is None or {value} {more} best):"
        hit = [test, f"    best = {value}", f"    found = {self._access(form.key)}"]
        return ["best = None", "found = None", *self._each(hit)], "found", "str"

    def _write_many(self) -> tuple[list[str], str, str]:
        writing = self._reach.is_whole and self._form.goal == "change"
        if writing and self._reach.one("get") is None:
            lines = ["chosen = []", *self._each(["chosen.append(row)"]), "for row in chosen:"]
            return [*lines, *indent(self._write(self._key("row"), "row"))], "len(chosen)", "int"
        lines = ["chosen = []", *self._each([f"chosen.append({self._key('row')})"])]
        return [*lines, "for each in chosen:", *indent(self._write("each", ""))], "len(chosen)", "int"

    def _write_one(self) -> tuple[list[str], str, str]:
        form, reach = self._form, self._reach
        needs_row = reach.is_whole and form.goal in ("change", "check") and reach.one("get") is None
        if form.by == "only":
            key, lines = "", self._write("", "")
        elif form.by == "id":
            if needs_row:
                key = f"if str({self._key('row')}) == str({self._names['key']}):"
                lines = ["found = None", *self._each([key, "    found = row"], every=True)]
                lines += self._write(self._names["key"], "found")
            else:
                lines = self._write(self._names["key"], "")
            key = self._names["key"]
        else:
            lines = self._find("row" if needs_row else self._key("row"))
            key = self._key("found") if needs_row else "found"
            lines += self._write(key, "found" if needs_row else "")
        if form.goal == "check":
            counted = self._each([f"if {self._is_new()}:", "    count += 1"], every=True)
            return [*lines, "count = 0", *counted], "count", "int"
        return [*lines, *self._read_back(key)], "shown", "str"

    def _is_new(self) -> str:
        """Whether a row has the new value."""
        value = self._access(self._form.field)
        if self._form.value is None:
            return f"{value} == {self._names['new']}"
        return f"{value} is {self._form.value}"

    def _read_back(self, key: str) -> list[str]:
        """What the record is after the write."""
        form = self._form
        if form.goal == "delete":
            if self._reach.listing is None:
                return ["shown = True"]
            test = [f"if {self._key('row')} == {key}:", "    shown = False"]
            return ["shown = True", *self._each(test, every=True, plain=True)]
        field = form.field or next(iter(self._reach.model.operations[form.operation].effect.sets), "")  # type: ignore[union-attr]
        if self._reach.one("get") is None:
            return [f"shown = {key}"]
        return [f"shown = {self._value(self._get(key), field)}"]

    def _write(self, key: str, row: str) -> list[str]:
        """The lines that write to the record of this key. `row` is the record, if it was read."""
        form, reach = self._form, self._reach
        match form.goal:
            case "delete":
                return [self._call("delete", self._scope(), {}, key=key)]
            case "act":
                return [self._call(reach.model.operations[form.operation], self._scope(), {}, key=key)]
        made = reach.write
        assert made is not None  # a form of it
        lines, new = self._new(key)
        root, _, inner = form.field.partition("/")
        kept = [each for each in kept_fields(reach) if each != root]
        if kept or inner:
            lines = lines or [f"row = {row or self._get(key)}"]
        if inner:
            new = f"{{**{_object('row', root, self._shown.sure)}, {quoted(inner)}: {new}}}"
        if not kept:
            return [*lines, self._call(made, self._scope(), {root: new}, key=key)]
        listed = ", ".join(map(quoted, kept))
        lines.append(f"kept = {{name: row[name] for name in ({listed},) if row.get(name) is not None}}")
        return [*lines, self._whole(made, key, new, kept)]

    def _new(self, key: str) -> tuple[list[str], str]:
        """The new value, after lines that read what it depends on: a link to several records goes on or off."""
        form, link = self._form, self._form.through.link if self._form.through is not None else None
        if form.goal not in ("link", "unlink", "add", "drop"):
            return [], repr(form.value) if form.value is not None else self._names["new"]
        if form.goal in ("link", "unlink") and (link is None or not link.many):
            return [], self._owner
        one = self._names["new"] if form.has_new else self._owner
        value = self._access(form.field)
        known = value if form.field in self._shown.sure else f"({value} or [])"
        more, less = f"[*{known}, {one}]", f"[item for item in {known} if item != {one}]"
        return [f"row = {self._get(key)}"], more if form.goal in ("link", "add") else less

    def _whole(self, made: Modelled, key: str, new: str, kept: Sequence[str]) -> str:
        """A replacement by what was kept and one new value."""
        operation, field = self._writing.operation(made), root_of(self._form.field)
        nested = made.body is not None and made.body.shape is not None and made.body.shape.keys
        known = self._known(made, self._scope(), key)
        if nested or is_whole_body(operation):
            given = arguments(
                made, operation, known, {field: new}, lambda _: f"{{**kept, {quoted(field)}: {new}}}"
            )
            return self._said(operation, given)
        given = arguments(made, operation, known, {each: each for each in (field, *kept)}, str)
        body = {each.wire_name: each.name for each in operation.parameters if each.place == "body"}
        if any(body[each] != each for each in (field, *kept)):
            pairs = {body[each]: f"kept.get({quoted(each)})" for each in kept} | {body[field]: new}
            return self._said(operation, {name: pairs.get(name, value) for name, value in given.items()})
        kept_out = {name: value for name, value in given.items() if name not in {*kept, field}}
        return self._said(operation, kept_out, f"**{{**kept, {quoted(field)}: {new}}}")

    def _create(self, fields: Mapping[str, str]) -> tuple[list[str], str, str]:
        """And reads what it has created, as far as that is known."""
        lines = [f"made = {self._call('create', self._scope(), fields, owner=True)}"]
        made, get, key = self._reach.one("create"), self._reach.one("get"), self._reach.collection.key
        shape = made.shape if made is not None else None
        if shape is None or key not in fields_of(flat(shape.item)):
            return lines, "made", "str"
        own = f"made{_path(shape.keys)}[{quoted(key)}]"
        shown = [each for each in fields if get is not None and each in self._reach.shown_by(get)]
        if not shown:
            return lines, own, "str"
        lines.append(f"shown = {self._get(own)}")
        read = [f"shown.get({quoted(each)})" for each in dict.fromkeys(map(root_of, shown))]
        return lines, read[0] if len(read) == 1 else f"[{', '.join(read)}]", "str"

    def _find(self, value: str) -> list[str]:
        """The lines that bind `found` to a value of the record that the text names."""
        test = f"if {self._access(self._form.key)} == {self._names['key']}:"
        return ["found = None", *self._each([test, f"    found = {value}"])]

    def _find_owner(self) -> list[str]:
        """The lines that bind `owner` to the key of the record that is named."""
        through = self._form.through
        if through is None or not through.name:
            return []
        target = self._writing.every[through.collection]
        made = target.listing
        assert made is not None  # a form of it
        scope = [self._names[f"above{at}"] for at in range(len(target.collection.scopes))]
        named = _read("row", through.name, self._writing.shown[through.collection].sure)
        test = f"if {named} == {self._names['owner']}:"
        key = _key_of(target, self._writing.shown[through.collection], "row")
        return ["owner = None", *self._loop(target, made, scope, {}, [test, f"    owner = {key}"], {through.name})]

    @property
    def _owner(self) -> str:
        through = self._form.through
        return "owner" if through is not None and through.name else self._names["owner"]

    def _scope(self) -> list[str]:
        """The keys of what is above the records."""
        count = len(self._reach.collection.scopes)
        return [*(self._names[f"above{at}"] for at in range(count - 1)), *([self._owner] if count else [])]

    def _each(self, body: list[str], *, every: bool = False, plain: bool = False) -> list[str]:
        """The lines that run others for each row that is meant, or for `every` one of the place."""
        form, reach = self._form, self._reach
        made, given, tests = reach.listing, dict[str, str](), list[str]()
        link = form.through.link if form.through is not None and form.is_of_owner else None
        needs = set() if plain else self._writing.needs(form)
        if form.goal == "check":
            needs |= {form.field}
        if link is not None:
            view = reach.view(link)
            if view is not None:
                made, given = view, {view.fixed[link.field]: self._owner}
            else:
                tests.append(self._linked())
        assert made is not None  # a form of it
        if form.where is not None and not every:
            chosen = filter_for(made, form.where.field, form.where.test) if self._writing.filters else None
            if chosen is None:
                tests.append(self._meets(form.where, "where"))
            else:
                value = self._names.get("where", repr(form.where.flag))
                given = {**given, chosen.parameter.wire_name: value}
                needs -= {form.where.field} - {form.field, form.key}
        if form.also is not None and not every:
            tests.append(self._meets(form.also, "also"))
        if form.but and not every:
            tests.append(f"{self._access(form.but)} != {self._names['but']}")
        for test in reversed(tests):
            body = [f"if {test}:", *indent(body)]
        scope = self._scope() if made.scopes else []
        return self._loop(reach, made, scope, given, body, needs)

    def _loop(
        self,
        reach: Reach,
        made: Modelled,
        scope: Sequence[str],
        given: Mapping[str, str],
        body: list[str],
        needs: set[str],
    ) -> list[str]:
        """The lines that run others for each row of a list, on all its pages; each is read by itself if rows lack
        what the lines need.
        """
        operation = self._writing.operation(made)
        assert made.shape is not None  # a list has one
        shown = self._writing.shown.get(reach.collection.name, Shown(frozenset(needs), frozenset()))
        if needs - shown.rows and reach.one("get") is not None:
            read = self._get(_key_of(reach, shown, "row"), reach, scope)
            body = [f"row = {read}", *body]
        first = {name: repr(value) for name, value in first_arguments(operation).items()}
        known = {**self._known(made, scope, ""), **given}
        given = {**first, **arguments(made, operation, known, {}, str)}
        paged = made.query.paging is not None
        call = self._said(operation, given, ends=".pages" if paged else "")
        rows = f"{'page' if paged else call}{_path(made.shape.keys)}"
        head = f"for key, row in {rows}.items():" if made.shape.holds == "map" else f"for row in {rows}:"
        lines = [head, *indent(body)]
        return [f"for page in {call}:", *indent(lines)] if paged else lines

    def _linked(self) -> str:
        """Whether a row belongs to the owner."""
        through = self._form.through
        assert through is not None  # asked for a form with one
        assert through.link is not None
        link, target = through.link, self._writing.every[through.collection].collection
        value, sure = self._access(link.field), link.field in self._shown.sure
        if link.many:
            rows = value if sure else f"({value} or [])"
            inside = f"any(each[{quoted(target.key)}] == {self._owner} for each in {rows})"
            return inside if link.embedded else f"{self._owner} in {rows}"
        if link.embedded:
            inner = value if sure else f"({value} or {{}})"
            return f"{inner}.get({quoted(target.key)}) == {self._owner}"
        return f"{value} == {self._owner}"

    def _meets(self, where: Condition, name: str) -> str:
        value, sure = self._access(where.field), where.field in self._shown.sure
        if where.flag is not None:
            return f"{value} is {where.flag}"
        wanted = self._names[name]
        if where.test == "is":
            return f"{value} == {wanted}"
        known = "" if sure else f"{value} is not None and "
        if where.test == "has":
            return f"{known}{wanted}.lower() in {value}.lower()"
        return f"{known}{value} {'>' if where.test in ('more', 'after') else '<'} {wanted}"

    def _access(self, field: str) -> str:
        return self._value("row", field)

    def _value(self, record: str, field: str) -> str:
        return _read(record, field, self._shown.sure)

    def _key(self, row: str) -> str:
        return _key_of(self._reach, self._shown, row)

    def _get(self, key: str, reach: Reach | None = None, scope: Sequence[str] | None = None) -> str:
        """One record, read by itself."""
        made = (reach or self._reach).one("get")
        assert made is not None  # asked where there is one
        assert made.shape is not None
        operation = self._writing.operation(made)
        known = self._known(made, self._scope() if scope is None else scope, key)
        return f"{self._said(operation, arguments(made, operation, known, {}, str))}{_path(made.shape.keys)}"

    def _call(
        self,
        role: Modelled | str,
        scope: Sequence[str],
        fields: Mapping[str, str],
        *,
        key: str = "",
        owner: bool = False,
    ) -> str:
        made = self._reach.one(role) if isinstance(role, str) else role  # type: ignore[arg-type]
        assert made is not None  # a form of it
        through = self._form.through
        if owner and through is not None and through.link is not None and not self._reach.collection.scopes:
            fields = {**fields, through.field: f"[{self._owner}]" if through.link.many else self._owner}
        operation = self._writing.operation(made)
        return self._said(operation, arguments(made, operation, self._known(made, scope, key), fields, _nested))

    def _known(self, made: Modelled, scope: Sequence[str], key: str) -> dict[str, str]:
        """The keys in a call, in the types that the operation takes."""
        collection = self._writing.every[made.collection].collection
        above = [
            self._writing.every[each.parent].collection if each.parent else None for each in collection.scopes
        ]
        given = list(zip(made.scopes, scope, above, strict=True)) if scope else []
        given += [(made.key, key, collection)] if key else []
        return self._pinned(made) | {name: self._typed(made, name, value, of) for name, value, of in given}

    def _pinned(self, made: Modelled) -> dict[str, str]:
        """The keys that name the kind of the records: those of the task, or of records beside its own."""
        own = {each.key: self._names[f"home{number}"] for number, each in enumerate(self._reach.collection.home)}
        return {
            name: own.get(made.pinned[name], quoted(key) if isinstance(key, str) else str(key))
            for name, key in pinned(made).items()
        }

    def _typed(self, made: Modelled, name: str, value: str, of: Collection | None) -> str:
        taken = next(
            (kind_of(flat(each.schema)) for each in made.operation.parameters if each.wire_name == name), ""
        )
        has = kind_of(flat(fields_of(of.item).get(of.key, {}))) if of is not None else ""
        if taken == "string" and has in ("integer", "number"):
            return f"str({value})"
        return f"int({value})" if taken == "integer" and has == "string" else value

    def _said(self, operation: Operation, given: Mapping[str, str], more: str = "", ends: str = "") -> str:
        listed = [*(f"{name}={value}" for name, value in given.items()), *([more] if more else [])]
        return f"apis.{self._writing.app.name}.{operation.name}{ends}({', '.join(listed)})"

    def _kind(self, field: str) -> str:
        return {"number": "float", "flag": "bool", "texts": "list"}.get(
            self._reach.kinds.get(field, "text"), "str"
        )


def quoted(name: str) -> str:
    """A name of the document as Python writes it."""
    return json.dumps(name, ensure_ascii=False)


def _read(record: str, field: str, sure: Container[str]) -> str:
    """The field of a record, which may lack what is not sure.

    >>> _read("row", "address/city", {"address", "address/city"}), _read("row", "address/city", ())
    ('row["address"]["city"]', '(row.get("address") or {}).get("city")')
    """
    root, _, inner = field.partition("/")
    holder, name = (_object(record, root, sure), inner) if inner else (record, root)
    return f"{holder}[{quoted(name)}]" if field in sure else f"{holder}.get({quoted(name)})"


def _object(record: str, name: str, sure: Container[str]) -> str:
    """An object in a record; an empty one where the record lacks it."""
    read = _read(record, name, sure)
    return read if name in sure else f"({read} or {{}})"


def _nested(fields: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{quoted(name)}: {value}" for name, value in fields.items()) + "}"


def _path(keys: Sequence[str]) -> str:
    return "".join(f"[{quoted(each)}]" for each in keys)


def _key_of(reach: Reach, shown: Shown, row: str) -> str:
    """The key of a row."""
    made = reach.listing
    is_map = made is not None and made.shape is not None and made.shape.holds == "map"
    if is_map and reach.collection.key not in shown.rows and row == "row":
        field = fields_of(reach.collection.item).get(reach.collection.key, {})
        return "int(key)" if kind_of(flat(field)) == "integer" else "key"  # the names of a JSON object are texts
    if reach.collection.key not in shown.rows:
        raise UnfitError("lists do not show the keys of records")
    return f"{row}[{quoted(reach.collection.key)}]"


def _type(values: Sequence[Json]) -> str:
    kinds = {type(each).__name__ for each in values}
    return kinds.pop() if len(kinds) == 1 else "float" if kinds <= {"int", "float"} else "str"


def mistakes(writing: Writing, rng: Random) -> list[Program]:
    """Programs with one mistake each that an error shows before anything is written: a field, an envelope or an
    argument that is not there.
    """
    program, app = write_program(writing), writing.app
    calls = re.compile(rf"apis\.{app.name}\.(\w+)")
    lines = [line for line in program.body if not all(app.operations[each].safe for each in calls.findall(line))]
    last = program.body.index(lines[0]) if lines else len(program.body)
    return [each for each in _mistakes(program, writing, rng) if _differs(program, each) <= last]


def _differs(one: Program, other: Program) -> int:
    """The first line that is not the same; after the last one if there is none."""
    pairs = enumerate(zip(one.body, other.body, strict=True))
    return next((at for at, (first, second) in pairs if first != second), len(one.body) + 1)


def _mistakes(program: Program, writing: Writing, rng: Random) -> Iterator[Program]:
    code, app = "\n".join(program.body), writing.app
    known = {name for reach in writing.every.values() for name in fields_of(reach.collection.item)}
    for field in dict.fromkeys(re.findall(r'row\["(\w+)"\]', code)):
        if wrong := [each for each in _OTHER_FIELDS[_expected(field, writing)] if each not in known]:
            yield _changed(program, f'row["{field}"]', f'row["{rng.choice(wrong)}"]')
    for envelope in dict.fromkeys(re.findall(r'for row in page(\["\w+"\])', code)):
        yield _changed(program, f"in page{envelope}", 'in page["rows"]')
    if re.search(r"for row in page:", code):
        yield _changed(program, "in page:", 'in page["items"]:')
    for name in dict.fromkeys(re.findall(rf"apis\.{app.name}\.(\w+)\(", code)):
        operation = app.operations[name]
        last = next((each for each in reversed(split_words(name)) if each != "id"), "item")
        wrong_name = "id" if operation.required[:1] != ("id",) else f"{singular(last)}_id"
        if operation.required and wrong_name not in operation.arguments:
            yield _changed(program, f"{name}({operation.required[0]}=", f"{name}({wrong_name}=")


def _expected(field: str, writing: Writing) -> str:
    """The kind of a field, "" of one that nobody asks for."""
    every = writing.every.values()
    if field in {each.collection.key for each in every}:
        return "key"
    return next((each.kinds[field] for each in (writing.reach, *every) if field in each.kinds), "")


def _changed(program: Program, old: str, new: str) -> Program:
    return msgspec.structs.replace(program, body=tuple(each.replace(old, new) for each in program.body))


def misnamed(operation: Operation, app: App) -> str:
    """The name that others give an operation; "" if there is none that is not one of the app's."""
    first, *rest = operation.name.split("_")
    wrong = ("_".join((verb, *rest)) for verb in _OTHER_VERBS.get(first, ("fetch", "do")))
    return next((each for each in wrong if each not in app.operations), "")
