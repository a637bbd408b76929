"""One app's API: a domain in a shape, under the names that its makers chose."""

from functools import cached_property
from random import Random
from typing import Literal, TypeAlias

import msgspec

from app.apis.names import argument_name, operation_name
from trainer.worlds.generated.api_shapes import ApiShape
from trainer.worlds.generated.domains import Domain, Verb
from trainer.worlds.generated.pools import Pool
from trainer.worlds.generated.spelling import spell

Role: TypeAlias = Literal["login", "list", "show", "update", "act", "settings", "export"]
ItemField: TypeAlias = Literal["id", "person", "label", "number", "date", "progress"]

PAGE_SIZE = 4
FILTERED: tuple[Literal["person", "label"], ...] = ("person", "label")  # by lists that filter
_WORDS: dict[str, tuple[str, ...]] = {
    "login": ("log in", "sign in", "create session", "authenticate", "open session"),
    "list": ("list", "search", "fetch", "browse", "find"),
    "show": ("get", "show", "read", "view"),
    "update": ("update", "edit", "change"),
    "token": ("token", "access token", "session", "session key"),
    "header": ("X-Api-Key", "X-Token", "X-Session", "access_token", "X-Auth-Token"),
    "page": ("page", "page number"),
    "offset": ("offset", "start", "skip"),
    "limit": ("limit", "size", "per page"),
    "cursor": ("cursor", "after", "page token"),
    "next": ("next cursor", "next", "next page"),
    "links": ("links", "paging"),
    "data": ("items", "results", "data", "entries"),
    "outer": ("response", "result", "payload"),
    "group": ("attributes", "details", "fields", "properties"),
    "inner": ("name", "full name"),
    "ok": ("ok", "success"),
    "error": ("error", "message"),
}

_MORE_WORDS: dict[str, tuple[str, ...]] = {
    "login": ("start session", "get token", "obtain token", "request access", "connect", "login"),
    "list": ("query", "retrieve", "get all", "read", "enumerate", "collect", "show all"),
    "show": ("fetch", "retrieve", "look up", "describe", "open"),
    "update": ("modify", "set", "amend", "revise", "save", "alter"),
    "token": ("auth token", "bearer", "session id", "api token", "credential", "secret", "jwt"),
    "header": ("X-Access-Token", "X-Session-Token", "Api-Key", "X-Key", "api_key", "auth_token"),
    "page": ("page index", "page no", "p", "current page"),
    "offset": ("from index", "begin", "start at", "position"),
    "limit": ("count", "page size", "max results", "top", "take", "rows"),
    "cursor": ("continuation", "marker", "starting after", "cursor token"),
    "next": ("next token", "continue from", "more", "next marker"),
    "links": ("navigation", "pages", "link"),
    "data": ("records", "rows", "content", "values", "objects", "hits", "elements", "list", "found"),
    "outer": ("body", "answer", "envelope", "reply", "output"),
    "group": ("values", "info", "data", "spec", "body", "record"),
    "inner": ("display", "text", "person name", "title", "label"),
    "ok": ("succeeded", "accepted", "done", "completed"),
    "error": ("reason", "detail", "problem", "fault", "msg"),
}
"""For training alone, so that names are read, not known by heart."""


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """An operation: its name in the document, and its address."""

    role: Role
    id: str
    method: Literal["GET", "POST", "PATCH"]
    path: str
    verb: Verb | None = None

    @property
    def python(self) -> str:
        """Its name in the agent's code."""
        return operation_name(self.id, self.method, self.path)


class GymApi(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Wire names are spelled in the style of the shape."""

    name: str
    domain: Domain
    shape: ApiShape
    words: dict[str, str]
    first_page: Literal[0, 1]
    hidden: ItemField  # that list rows lack, if they are partial

    def in_shape(self, axis: str, value: str) -> "GymApi":
        """The API, if its makers had chosen another value on one axis of its shape."""
        return msgspec.structs.replace(self, shape=msgspec.structs.replace(self.shape, **{axis: value}))

    def wire(self, word: str) -> str:
        """The chosen word of a kind, spelled."""
        return spell(self.words[word], self.shape.style)

    @property
    def header(self) -> str:
        return self.words["header"]

    @cached_property
    def fields(self) -> dict[ItemField, str]:
        """The wire names of an item's fields."""
        domain = self.domain
        prose: dict[ItemField, str] = {
            "id": "id",
            "person": domain.person,
            "label": domain.label,
            "number": domain.number,
            "date": domain.date,
            "progress": domain.progress,
        }
        return {field: spell(words, self.shape.style) for field, words in prose.items()}

    @property
    def resource(self) -> str:
        return spell(self.domain.nouns, self.shape.style)

    @cached_property
    def routes(self) -> tuple[Route, ...]:
        noun, nouns, at = self.domain.noun, self.domain.nouns, f"/{spell(self.domain.nouns, 'kebab')}"
        routes = [
            self._route("list", f"{self.words['list']} {nouns}", "GET", at),
            self._route("show", f"{self.words['show']} {noun}", "GET", f"{at}/{{id}}"),
            self._route("update", f"{self.words['update']} {noun}", "PATCH", f"{at}/{{id}}"),
            self._route("settings", f"get {self.words['list']} settings", "GET", "/settings"),
            self._route("export", f"export {nouns}", "POST", f"{at}/export"),
        ]
        if self.shape.auth in ("login", "query_token"):
            routes.insert(0, self._route("login", self.words["login"], "POST", "/sessions"))
        if self.shape.write != "patch":
            routes += [self._act(verb, at) for verb in self.domain.verbs]
        return tuple(routes)

    def route(self, role: Role, verb: Verb | None = None) -> Route:
        return next(each for each in self.routes if each.role == role and each.verb == verb)

    def argument(self, wire_name: str) -> str:
        """The name of a parameter in the agent's code."""
        return argument_name(wire_name)

    def _route(
        self, role: Role, words: str, method: Literal["GET", "POST", "PATCH"], path: str, verb: Verb | None = None
    ) -> Route:
        return Route(role=role, id=spell(words, self.shape.style), method=method, path=path, verb=verb)

    def _act(self, verb: Verb, at: str) -> Route:
        one, many = f"{verb.base} {self.domain.noun}", f"{verb.base} {self.domain.nouns}"
        slug = spell(verb.base, "kebab")
        if self.shape.write == "path":
            return self._route("act", one, "POST", f"{at}/{{id}}/{slug}", verb)
        if self.shape.write == "body":
            return self._route("act", one, "POST", f"{at}/{slug}", verb)
        return self._route("act", many, "POST", f"{at}/{slug}-many", verb)


def draw_api(name: str, domain: Domain, shape: ApiShape, rng: Random, pool: Pool) -> GymApi:
    """With `pool` "train", from more words."""
    more = _MORE_WORDS if pool == "train" else {}
    hidden: tuple[ItemField, ...] = ("label", "number", "date")
    return GymApi(
        name=name,
        domain=domain,
        shape=shape,
        words={kind: rng.choice(words + more.get(kind, ())) for kind, words in _WORDS.items()},
        first_page=rng.choice((0, 1)),
        hidden=rng.choice(hidden),
    )


def other_words(kind: str, chosen: str, rng: Random) -> str:
    """A name that the makers of the API could have chosen, and did not."""
    return rng.choice([words for words in _WORDS[kind] if words != chosen])
