"""An app that keeps records: its operations, the shape of its API, and the names that its makers chose."""

from functools import cached_property
from random import Random
from typing import Literal, TypeAlias

import msgspec

from app.apis.names import operation_name
from trainer.worlds.generated.crud_collections import Collection, can_have_flags, draw_collection, field_names
from trainer.worlds.generated.crud_shapes import CrudShape
from trainer.worlds.generated.crud_words import OPTIONS, OTHERS, STATUS, WORDS
from trainer.worlds.generated.domains import Domain, Verb
from trainer.worlds.generated.spelling import spell

Role: TypeAlias = Literal["list", "show", "create", "update", "delete", "act", "info", "search", "other"]
Method: TypeAlias = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]

PAGE_SIZE = 4


class CrudRoute(msgspec.Struct, frozen=True, kw_only=True):
    """An operation: its name in the document, and its address."""

    role: Role
    id: str
    method: Method
    path: str
    collection: int = 0
    verb: Verb | None = None

    @property
    def python(self) -> str:
        """Its name in the agent's code."""
        return operation_name(self.id, self.method, self.path)


class CrudApi(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Wire names are spelled in the style of the shape."""

    name: str
    shape: CrudShape
    words: dict[str, str]
    collections: tuple[Collection, ...]
    others: tuple[str, ...]  # operations that no task needs
    options: tuple[str, ...]  # of lists
    version: str  # of the server
    status: tuple[str, ...]  # what else it says of itself
    has_search: bool  # which no task needs
    order: (
        int  # of the operations in its document: 0, one kind of records after the other; 1, by address; else any
    )
    about: str

    def with_word(self, kind: str, words: str) -> "CrudApi":
        """The API, if its makers had chosen another name."""
        return msgspec.structs.replace(self, words={**self.words, kind: words})

    def wire(self, word: str) -> str:
        return spell(self.words[word], self.shape.style)

    @property
    def status_names(self) -> list[str]:
        return [spell(words, self.shape.style) for words in self.status]

    @property
    def id_name(self) -> str:
        return self.wire("id")

    @cached_property
    def routes(self) -> tuple[CrudRoute, ...]:
        info = CrudRoute(
            role="info", id=self._spelled("info"), method="GET", path=f"/{spell(self.words['info'], 'kebab')}"
        )
        routes = [*(route for at in range(len(self.collections)) for route in self._routes(at)), info]
        if self.order == 1:
            routes.sort(key=lambda each: (each.path, each.method))
        elif self.order:
            Random(self.order).shuffle(routes)
        return tuple(routes)

    def route(self, role: Role, collection: int = 0, verb: Verb | None = None) -> CrudRoute:
        return next(
            each
            for each in self.routes
            if each.role == role and each.verb == verb and (role == "info" or each.collection == collection)
        )

    def _spelled(self, word: str, *rest: str) -> str:
        return spell(" ".join([self.words[word], *rest]), self.shape.style)

    def _routes(self, at: int) -> list[CrudRoute]:
        collection = self.collections[at]
        (noun, nouns), verbs = collection.called, collection.verbs
        many = f"/{spell(nouns, 'kebab')}"
        one = f"{many}/{{{self.id_name}}}"
        places: list[tuple[Role, str, Method, str]] = [
            ("list", nouns, "GET", many),
            ("create", noun, "POST", many),
            ("show", noun, "GET", one),
            ("update", noun, self.shape.update, one),
            ("delete", noun, "DELETE", one),
        ]
        routes = [
            CrudRoute(role=role, id=self._spelled(role, words), method=method, path=path, collection=at)
            for role, words, method, path in places
        ]
        if self.shape.act == "path":
            routes += [
                CrudRoute(
                    role="act",
                    id=spell(f"{verb.base} {noun}", self.shape.style),
                    method="POST",
                    path=f"{one}/{spell(verb.base, 'kebab')}",
                    collection=at,
                    verb=verb,
                )
                for verb in verbs
            ]
        if self.has_search:
            name = spell(f"search {nouns}", self.shape.style)
            routes.append(CrudRoute(role="search", id=name, method="GET", path=f"{many}/search", collection=at))
        return [*routes, *(self._other(words, at) for words in self.others)]

    def _other(self, words: str, at: int) -> CrudRoute:
        noun, nouns = self.collections[at].called
        method, _, name = words.partition(" ")
        many = f"/{spell(nouns, 'kebab')}"
        place = f"{many}/{{{self.id_name}}}" if "{noun}" in name else many
        said = name.format(noun=noun, nouns=nouns)
        slug = spell(name.format(noun="", nouns=""), "kebab")
        return CrudRoute(
            role="other",
            id=spell(f"get {said}" if method == "GET" else said, self.shape.style),
            method=msgspec.convert(method, Method),
            path=f"{place}/{slug}",
            collection=at,
        )


def other_words(kind: str, chosen: str) -> list[str]:
    """The names that the makers of the API could have chosen, and did not."""
    return [words for words in WORDS[kind] if words != chosen]


def draw_api(name: str, domains: tuple[Domain, ...], shape: CrudShape, rng: Random) -> CrudApi:
    taken = {words for domain in domains for words in field_names(domain)}
    words = {kind: rng.choice([each for each in known if each not in taken]) for kind, known in WORDS.items()}
    has_flags = shape.states == "flags" and all(map(can_have_flags, domains))
    collections = tuple(
        draw_collection(domain, words, shape.style, rng, has_flags=has_flags) for domain in domains
    )
    nouns = " and ".join(each.described.many for each in collections)
    about = rng.choice(
        (
            f"{nouns}",
            f"keeps {nouns}",
            f"API for {nouns}",
            f"# {name.title()}\n\nManage {nouns} over REST.",
            f"## {name.title()} API\n\nKeeps {nouns}.\n\nAll endpoints speak JSON.",
        )
    )
    return CrudApi(
        name=name,
        shape=shape,
        words=words,
        collections=collections,
        others=tuple(rng.sample(OTHERS, rng.choice((0, 1, 2, 5)))),
        options=tuple(rng.sample(OPTIONS, rng.choice((0, 0, 1, 2)))),
        version=f"{rng.randint(0, 9)}.{rng.randint(0, 30)}.{rng.randint(0, 40)}",
        status=tuple(rng.sample(STATUS, rng.choice((0, 0, 3, 7)))),
        has_search=words["list"] != "search" and rng.random() < 0.3,
        order=rng.choice((0, 1, 1, rng.randrange(2, 1000))),
        about=about,
    )
