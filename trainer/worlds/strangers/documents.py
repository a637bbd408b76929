"""OpenAPI documents as strangers write them, drawn at random, and the habits of those who write them. Pure.

What a document is about, how its paths, names, lists, pages, bodies and keys look, how much it says and how
many operations it has are drawn apart from each other.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Final, Literal, TypeAlias, TypeVar

import msgspec

from app.apis.double.meanings import effect_of
from app.base.values import Json
from trainer.environment import Split
from trainer.worlds.generated.words import Style, coined_name, plural, spell
from trainer.worlds.strangers.domains import Domain, Field, Resource, administration, domains, linked, read_field

Size: TypeAlias = Literal["tiny", "small", "medium", "large"]
Identifiers: TypeAlias = Literal[
    "camel", "snake", "pascal", "absent", "controller", "service", "dotted", "framework", "path"
]
Paging: TypeAlias = Literal["none", "page", "offset", "cursor", "token", "header", "address"]
Says: TypeAlias = Literal["full", "terse", "nothing"]
Schemas: TypeAlias = Literal["one", "split", "inline", "joined"]
Update: TypeAlias = Literal["patch", "put", "put part", "both", "post"]
T = TypeVar("T")
KeyType: TypeAlias = Literal["integer", "string", "uuid"]
Node: TypeAlias = dict[str, Json]

_SIZES: Final[dict[Size, int]] = {"tiny": 20, "small": 38, "medium": 30, "large": 12}
_PREFIXES: Final = ("/api/v1", "/api", "/v1", "/v2", "/rest", "/rest/v1", "/api/rest", "", "", "/api/v3")
_STATUSES: Final = ("400", "401", "403", "404", "409", "422", "429", "500")
_VERBS: Final[dict[str, tuple[str, ...]]] = {
    "list": ("list", "get", "find", "search", "fetch", "index", "browse", "get all"),
    "get": ("get", "show", "read", "retrieve", "fetch", "find", "view"),
    "create": ("create", "add", "new", "post", "store", "register", "insert"),
    "update": ("update", "edit", "patch", "modify", "change", "save"),
    "replace": ("replace", "put", "update", "overwrite", "set"),
    "delete": ("delete", "remove", "destroy", "drop", "erase"),
}
_ENVELOPES: Final = (
    "items", "results", "data", "records", "entries", "rows", "list", "values", "content", "objects", "{nouns}",
    "{nouns}", "{nouns}",
)  # fmt: skip
_OUTER: Final = ("data", "result", "response", "payload")
_PAGINGS: Final[dict[Paging, int]] = {
    "none": 32, "page": 18, "offset": 17, "cursor": 11, "token": 7, "header": 7, "address": 8,
}  # fmt: skip
_PAGES: Final[dict[Paging, tuple[tuple[str, str], ...]]] = {
    "none": (("", ""),),
    "page": (
        ("page", "per page"), ("page", "page size"), ("page", "limit"), ("page number", "page size"),
        ("p", "size"),
    ),
    "offset": (("offset", "limit"), ("skip", "take"), ("start", "count"), ("start index", "max results")),
    "cursor": (("cursor", "limit"), ("after", "first"), ("marker", "limit")),
    "token": (("page token", "page size"), ("continuation token", "max results"), ("next token", "limit")),
    "header": (("page", "per page"), ("page", "limit"), ("cursor", "limit")),
    "address": (("page", "page size"), ("offset", "limit"), ("cursor", "limit")),
}  # fmt: skip
_KEYS: Final[dict[tuple[str, KeyType], int]] = {
    ("id", "integer"): 26, ("id", "string"): 12, ("id", "uuid"): 14, ("uuid", "uuid"): 12,
    ("{noun} id", "integer"): 8, ("{noun} id", "string"): 6, ("slug", "string"): 8, ("number", "integer"): 5,
    ("key", "string"): 5, ("name", "string"): 4,
}  # fmt: skip
_IDENTIFIERS: Final[dict[Identifiers, int]] = {
    "camel": 24, "snake": 18, "pascal": 4, "absent": 22, "controller": 8, "service": 4, "dotted": 6,
    "framework": 7, "path": 7,
}  # fmt: skip
_FIELDS: Final[dict[Style, int]] = {"snake": 50, "camel": 42, "kebab": 4, "pascal": 4}
_UPDATES: Final[dict[Update, int]] = {"patch": 40, "put": 22, "put part": 18, "both": 13, "post": 7}
_SCHEMAS: Final[dict[Schemas, int]] = {"one": 35, "split": 30, "inline": 20, "joined": 15}
_SAYS: Final[dict[Says, int]] = {"full": 50, "terse": 25, "nothing": 25}


_SAID: Final[dict[str, tuple[str, ...]]] = {
    "list": ("List {nouns}", "Returns all {nouns}", "Get a list of {nouns}", "Lists the {nouns} you may see"),
    "get": ("Get a {noun}", "Returns one {noun}", "Retrieve a {noun} by its {key}", "Show details of a {noun}"),
    "create": ("Create a {noun}", "Add a new {noun}", "Creates a {noun} and returns it"),
    "update": ("Update a {noun}", "Change some fields of a {noun}", "Edit a {noun}"),
    "replace": ("Replace a {noun}", "Update a {noun}; send all of its fields", "Overwrite a {noun}"),
    "delete": ("Delete a {noun}", "Remove a {noun}", "Deletes the {noun} with this {key}"),
}
_ACTED: Final = ("{act} a {noun}", "{act} the {noun} with this {key}")
_ACTIONS: Final = (
    "close", "open", "reopen", "start", "stop", "pause", "resume", "complete", "finish", "cancel", "enable",
    "disable", "activate", "deactivate", "approve", "reject", "pay", "hide", "archive", "publish", "lock",
    "unlock", "pin", "verify", "confirm", "reserve", "freeze", "ship", "suspend", "restore", "revoke", "feature",
    "block", "unblock", "resolve", "submit", "deliver", "print", "clear", "release", "accept", "schedule",
    "postpone", "retire",
)  # fmt: skip
_MORE_FIELDS: Final = (
    "description", "notes", "color", "external reference", "position#", "comment", "summary", "origin",
    "currency", "language", "time zone", "quantity limit#", "display order#", "hidden from search?",
    "review count#", "visibility=public/internal/private", "last check date@", "archive date@", "aliases*",
)  # fmt: skip
_OPTIONS: Final = (
    "fields", "expand", "include", "locale", "verbose", "pretty", "with deleted", "format", "timezone", "dry run",
    "request id", "include totals", "envelope", "flatten", "depth", "trace", "tenant", "preview", "callback",
)  # fmt: skip
_READS: Final = (
    ("health", "status, checks#"), ("version", "version, commit"), ("system info", "hostname, uptime#, edition"),
    ("me", "username, email, role name"), ("settings", "locale, theme, page length#"),
    ("metrics", "requests#, errors#"), ("limits", "remaining#, resets in#"), ("license", "edition, seats#"),
    ("storage", "used bytes#, free bytes#"), ("queue", "waiting#, running#"), ("ping", "message"),
    ("about", "product, vendor, build number#"), ("cache info", "entries#, hits#"),
    ("maintenance", "message, planned?"), ("region info", "region, latency#"),
    ("notifications", "addresses*"), ("access rules", "allowed hosts*, strict?"), ("branding", "title, colors*"),
)  # fmt: skip
_SET: Final = {"settings", "maintenance", "notifications", "access rules", "branding", "limits"}
_NAMES: Final = (
    "lighthouse", "paperboat", "campfire", "compass", "anthill", "snowglobe", "windmill", "tinderbox",
    "sandcastle", "kettlebell", "driftwood", "moonbase", "clockwork", "bluebird", "foxglove", "hourglass",
    "inkpot", "junction", "keyhole", "lodestar", "millstone", "nightjar", "outpost", "pinwheel", "quicksilver",
    "rainmaker", "stargazer", "turnstile", "undertow", "vantage", "weathervane", "yardstick", "zeppelin",
    "gatehouse", "crossbow", "daybreak",
)  # fmt: skip
_FILLERS: Final[dict[Size, tuple[int, int]]] = {
    "tiny": (0, 2), "small": (0, 6), "medium": (3, 14), "large": (20, 70),
}  # fmt: skip
_SCHEMES: Final[tuple[Node | None, ...]] = (
    None,
    None,
    {"type": "http", "scheme": "bearer"},
    {"type": "http", "scheme": "basic"},
    {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
    {"type": "apiKey", "in": "query", "name": "api_key"},
)
_FORMATS: Final = {"email": "email", "contact email": "email", "website": "uri", "target url": "uri"}
_TEXT: Final[Node] = {"type": "string"}
_NUMBER: Final[Node] = {"type": "integer"}


class Document(msgspec.Struct, frozen=True):
    """An API as it is published, and what a project calls it."""

    name: str
    content: Node


def draw_document(split: Split, rng: Random) -> Document:
    """In the words of a split. What it is like belongs to none: each habit can be met in each."""
    domain, size = rng.choice(domains(split)), _drawn(_SIZES, rng)
    resources = _resources(domain, split, size, rng)
    writer = _Writer(draw_habits(rng), resources, rng)
    name = _name(domain, rng)
    return Document(name, writer.document(name, domain, rng.randint(*_FILLERS[size])))


def _resources(domain: Domain, split: Split, size: Size, rng: Random) -> list[Resource]:
    own, others = list(domain.resources), list(administration())
    rng.shuffle(others)
    match size:
        case "tiny":
            found = [own[0]] if rng.random() < 0.6 else [own[0], *rng.sample(own[1:], 1)]
        case "small":
            found = [own[0], *rng.sample(own[1:], rng.randint(1, 2))]
        case "medium":
            found = [*own, *others[: rng.randint(1, 4)]]
        case "large":
            more = rng.choice([each for each in domains(split) if each is not domain])
            found = [*own, *more.resources, *others[: rng.randint(8, len(others))]]
    return [linked(each, found) for each in found]


def _name(domain: Domain, rng: Random) -> str:
    own = spell(domain.name, "snake")
    shape = rng.random()
    if shape < 0.35:
        return coined_name(rng)
    if shape < 0.7:
        return rng.choice(_NAMES)
    if shape < 0.85:
        return f"{own}_{rng.choice(('api', 'service', 'app', 'hub', 'desk'))}"
    return own if shape < 0.95 else "api"


class Habits(msgspec.Struct, frozen=True, kw_only=True):
    """How one document is written throughout. Names may have `{noun}` or `{nouns}` in them."""

    version: str
    prefix: str
    paths: Style
    is_plural: bool
    slash: str
    fields: Style
    parameters: Style
    identifiers: Identifiers
    verbs: dict[str, str]  # by role
    says: Says
    schemas: Schemas
    envelope: tuple[str, ...]  # empty: lists are bare
    is_map: bool
    paging: Paging
    page: tuple[str, str]  # parameters for the place and the size
    around: str  # one record: "" if it is bare
    body: str  # what is sent: "" if it is bare
    key: str
    key_type: KeyType
    key_parameter: Literal["own", "id", "noun"]
    update: Update
    nested: float  # of resources with an owner
    times: Literal["date", "date-time"]
    choices: Callable[[str], str]
    errors: tuple[str, ...]
    extras: int  # more fields and parameters of each resource

    def field(self, words: str) -> str:
        return spell(words, self.fields)

    def parameter(self, words: str) -> str:
        return spell(words, "snake" if self.parameters == "kebab" else self.parameters)


def draw_habits(rng: Random) -> Habits:
    def sometimes(share: float) -> bool:
        return rng.random() < share

    is_map = sometimes(0.17)
    paging: Paging = "none" if is_map else _drawn(_PAGINGS, rng)
    needs_place = paging in ("cursor", "token", "address")  # for what tells of the next page
    envelope: tuple[str, ...] = () if not needs_place and sometimes(0.4) else (rng.choice(_ENVELOPES),)
    if envelope and sometimes(0.1):
        envelope = (rng.choice([each for each in _OUTER if each != envelope[0]]), *envelope)
    fields = _drawn(_FIELDS, rng)
    key, key_type = _drawn(_KEYS, rng)
    return Habits(
        version=rng.choice(("3.0.0", "3.0.3", "3.1.0")),
        prefix=rng.choice(_PREFIXES),
        paths=rng.choices(("kebab", "snake", "camel"), (60, 25, 15))[0],
        is_plural=sometimes(0.85),
        slash="/" if sometimes(0.07) else "",
        fields=fields,
        parameters=fields if sometimes(0.85) else rng.choice(("snake", "camel")),
        identifiers=_drawn(_IDENTIFIERS, rng),
        verbs={role: each[0] if sometimes(0.5) else rng.choice(each) for role, each in _VERBS.items()},
        says=_drawn(_SAYS, rng),
        schemas=_drawn(_SCHEMAS, rng),
        envelope=envelope,
        is_map=is_map,
        paging=paging,
        page=rng.choice(_PAGES[paging]),
        around=rng.choice(("data", "{noun}")) if sometimes(0.2) else "",
        body=rng.choice(("data", "{noun}", "{noun}")) if sometimes(0.15) else "",
        key=key,
        key_type=key_type,
        key_parameter=rng.choice(("own", "own", "id", "noun")),
        update=_drawn(_UPDATES, rng),
        nested=rng.choice((0.0, 0.0, 0.5, 1.0)),
        times=rng.choice(("date", "date-time")),
        choices=rng.choices((str, str.upper, str.capitalize), (80, 12, 8))[0],
        errors=tuple(sorted(rng.sample(_STATUSES, rng.choice((0, 2, 4))))),
        extras=rng.choices((0, rng.randint(2, 6), rng.randint(8, 18)), (60, 28, 12))[0],
    )


class _Writer:
    """Writes one document."""

    def __init__(self, habits: Habits, resources: Sequence[Resource], rng: Random) -> None:
        self._habits, self._rng = habits, rng
        self._resources = [self._widened(each) for each in resources]
        self._by_noun = {each.noun: each for each in self._resources}
        self._schemas: Node = {}
        self._inline: Node = {}  # those that are written out wherever they are used
        self._paths: dict[str, Node] = {}
        self._owners = {each.noun: self._drawn_owner(each) for each in self._resources}
        self._above = {each.noun for each in self._owners.values() if each is not None}
        fields = [each for resource in self._resources for each in resource.fields]
        self._odd = {each.words for each in fields if rng.random() < 0.15}  # dates of the other kind than most
        self._locked = {each.words for each in fields if each.kind in ("flag", "choice") and rng.random() < 0.1}

    def document(self, name: str, domain: Domain, fillers: int) -> Node:
        rng, habits = self._rng, self._habits
        if habits.errors:
            self._schemas["Error"] = _object({"message": _TEXT, "code": _NUMBER}, ["message"])
        for each in self._resources:
            self._write(each)
        for _ in range(fillers):
            self._fill()
        title = name.replace("_", " ").title() + ("" if rng.random() < 0.7 else " API")
        info: Node = {"title": title, "version": rng.choice(("1", "1.0.0", "2.3", "v1", "0.9.4"))}
        if about := self._about(domain, title):
            info["description"] = about
        paths = list(self._paths)
        rng.shuffle(paths)
        content: Node = {
            "openapi": habits.version,
            "info": info,
            "servers": [{"url": f"https://{spell(name, 'kebab')}.example.com"}],
            "paths": {each: self._paths[each] for each in paths},
        }
        components: Node = {"schemas": self._schemas} if self._schemas else {}
        if scheme := rng.choice(_SCHEMES):
            components["securitySchemes"] = {"main": scheme}
            content["security"] = [{"main": []}]
        return {**content, "components": components} if components else content

    def _about(self, domain: Domain, title: str) -> str:
        many = [plural(each.noun) for each in self._resources[:3]]
        listed = f"{', '.join(many[:-1])} and {many[-1]}" if len(many) > 1 else many[0]
        return self._rng.choice(
            (
                f"Keeps {listed}",
                f"Manage {listed}.",
                f"{title} takes care of {listed}.",
                f"The {domain.name} API.",
                f"All about {domain.name}",
                f"# {title}\n\nFor {listed}.",
                f"REST interface of {title}.",
                "",
            )
        )

    def _widened(self, resource: Resource) -> Resource:
        """With fields that nobody needs, and without some, in any order."""
        rng, known = self._rng, {each.words for each in resource.fields}
        more = map(read_field, rng.sample(_MORE_FIELDS, min(self._habits.extras, len(_MORE_FIELDS))))
        fields = [*resource.fields, *(each for each in more if each.words not in known)]
        if rng.random() < 0.3:
            fields = [each for each in fields if each in resource.fields[:2] or rng.random() < 0.8]
        first, *rest = fields
        rng.shuffle(rest)
        return Resource(resource.noun, (first, *rest) if rng.random() < 0.7 else (*rest, first))

    def _drawn_owner(self, resource: Resource) -> Resource | None:
        """The resource in whose path it is."""
        links = [each for each in resource.links if not self._by_noun[each.words].links]
        return self._by_noun[links[0].words] if links and self._rng.random() < self._habits.nested else None

    def _write(self, resource: Resource) -> None:
        """The operations of a resource."""
        rng, habits = self._rng, self._habits
        is_flat = rng.random() < 0.3  # single ones of a nested resource are at the top
        many, above = self._place(resource)
        top = f"{habits.prefix}/{self._segment(resource.noun)}"
        one = f"{top if is_flat else many}/{{{self._parameter(resource)}}}"
        own = [*([] if is_flat else above), self._key_parameter(resource)]
        writes = rng.random() < 0.9
        reads, creates, updates, deletes = (rng.random() < share for share in (0.9, 0.95, 0.95, 0.9))
        self._add(many, "get", "list", resource, [*above, *self._queries(resource)], None, self._list(resource))
        if writes and creates:
            self._add(
                many, "post", "create", resource, above, self._sent(resource, "create"), self._made(resource)
            )
        if reads:
            self._add(one, "get", "get", resource, [*own, *self._options(0.15)], None, self._one(resource))
        reply = self._one(resource) if rng.random() < 0.85 else None
        for method, role in self._updates() if writes and updates else ():
            self._add(one, method, role, resource, own, self._sent(resource, role), reply)
        if writes and deletes:
            gone = None if rng.random() < 0.75 else _object({"message": _TEXT})
            self._add(one, "delete", "delete", resource, own, None, gone)
        method = rng.choices(("post", "put"), (75, 25))[0]
        mark = ":" if rng.random() < 0.1 and not habits.slash else "/"
        for verb in self._verbs(resource) if writes and rng.random() < 0.45 else ():
            self._add(f"{one}{mark}{verb}", method, verb, resource, own, None, reply)

    def _place(self, resource: Resource) -> tuple[str, list[Node]]:
        """The path of all of them, and its parameters."""
        owner, prefix = self._owners[resource.noun], self._habits.prefix
        own = self._segment(resource.noun)
        if owner is None:
            return f"{prefix}/{own}", []
        path = f"{prefix}/{self._segment(owner.noun)}/{{{self._parameter(owner)}}}/{own}"
        return path, [self._key_parameter(owner)]

    def _updates(self) -> list[tuple[str, str]]:
        patch, put = ("patch", "update"), ("put", "replace")
        return {
            "patch": [patch],
            "put": [put],
            "put part": [("put", "update")],
            "post": [("post", "update")],
            "both": [patch, put],
        }[self._habits.update]

    def _verbs(self, resource: Resource) -> list[str]:
        """Actions whose effect its fields tell."""
        free = [each for each in resource.fields if each.kind in ("flag", "choice")]
        fields = {self._field(each): self._schema(each) for each in free}
        effects = {each: effect_of([each], fields, {}) for each in _ACTIONS}
        found = [each for each, effect in effects.items() if effect is not None and effect.sets]
        return self._rng.sample(found, min(len(found), self._rng.randint(1, 3)))

    def _add(
        self,
        path: str,
        method: str,
        role: str,
        resource: Resource,
        parameters: list[Node],
        body: Node | None,
        reply: Node | None,
    ) -> None:
        habits, rng = self._habits, self._rng
        node: Node = self._told(method, role, resource)
        if habits.identifiers != "absent":
            node["operationId"] = self._identifier(method, path, role, resource)
        if rng.random() < 0.7:
            node["tags"] = [plural(resource.noun).capitalize()]
        if parameters:
            node["parameters"] = parameters
        if body is not None:
            node["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
        status = "201" if role == "create" and rng.random() < 0.8 else "200" if reply is not None else "204"
        node["responses"] = {status: _answer(reply, "OK")}
        if role == "list" and habits.paging == "header":
            headers = {"Link": {"schema": _TEXT}, "X-Total-Count": {"schema": _NUMBER}}
            node["responses"][status]["headers"] = headers
        unfit = {*([] if "{" in path else ["404"]), *([] if role == "create" else ["409"])}
        for each in habits.errors:
            if each not in unfit:
                node["responses"][each] = _answer({"$ref": "#/components/schemas/Error"}, "an error")
        self._paths.setdefault(path + habits.slash, {})[method] = node

    def _told(self, method: str, role: str, resource: Resource) -> Node:
        """The summary and the description."""
        rng, noun, nouns = self._rng, resource.noun, plural(resource.noun)
        if self._habits.says == "nothing":
            return {}
        if self._habits.says == "terse":
            return {"summary": rng.choice((nouns, f"{role} {noun}", f"{method.upper()} {noun}"))}
        said = rng.choice(_SAID.get(role, _ACTED))
        words = {"noun": noun, "nouns": nouns, "key": self._key_field(resource), "act": role.capitalize()}
        node: Node = {"summary": said.format(**words)}
        if rng.random() < 0.3:
            right = "read" if method == "get" else "write"
            node["description"] = f"{node['summary']}. Needs the right to {right} {nouns}."
        return node

    def _identifier(self, method: str, path: str, role: str, resource: Resource) -> str:
        verb, many = self._habits.verbs.get(role, role), plural(resource.noun)
        noun = many if role == "list" else resource.noun
        match self._habits.identifiers:
            case "snake":
                return spell(f"{verb} {noun}", "snake")
            case "pascal":
                return spell(f"{verb} {noun}", "pascal")
            case "controller":
                found = spell("find all" if role == "list" else verb, "camel")
                return f"{spell(many, 'pascal')}Controller_{found}"
            case "service":
                return f"{spell(resource.noun, 'pascal')}Service_{spell(f'{verb} {noun}', 'pascal')}"
            case "dotted":
                return f"{spell(many, 'camel')}.{spell(verb, 'camel')}"
            case "framework":
                return spell(f"{verb} {noun} {path} {method}", "snake")
            case "path":
                return spell(f"{path if role == 'get' else path.partition('{')[0]} {verb}", "snake")
        return spell(f"{verb} {noun}", "camel")

    def _segment(self, noun: str) -> str:
        return spell(plural(noun) if self._habits.is_plural else noun, self._habits.paths)

    def _key_words(self, resource: Resource) -> str:
        words = self._habits.key.format(noun=resource.noun)
        has_name = any(each.words == "name" for each in resource.fields)
        return "id" if words == "name" and not has_name else words

    def _key_field(self, resource: Resource) -> str:
        return self._habits.field(self._key_words(resource))

    @property
    def _key(self) -> Node:
        """The schema of a key."""
        uuid: Node = {"type": "string", "format": "uuid"}
        return {"integer": _NUMBER, "uuid": uuid, "string": _TEXT}[self._habits.key_type]

    def _parameter(self, resource: Resource) -> str:
        """The name of the path parameter with its key."""
        words, noun = self._key_words(resource), resource.noun
        is_nested = noun in self._above or self._owners[noun] is not None
        if self._habits.key_parameter == "id":
            words = f"{noun} id" if is_nested else "id"
        elif (self._habits.key_parameter == "noun" or noun in self._above) and not words.startswith(noun):
            words = f"{noun} {words}"
        return self._habits.parameter(words)

    def _key_parameter(self, resource: Resource) -> Node:
        node: Node = {"name": self._parameter(resource), "in": "path", "required": True, "schema": self._key}
        if self._habits.says == "full":
            node["description"] = f"The {self._key_words(resource)} of the {resource.noun}"
        return node

    def _field(self, field: Field) -> str:
        """Its name in the document."""
        if field.kind != "link":
            return self._habits.field(field.words)
        words = self._key_words(self._by_noun[field.words])
        return self._habits.field(f"{field.words} {words if words in ('id', 'uuid', 'key') else 'id'}")

    def _schema(self, field: Field) -> Node:
        match field.kind:
            case "text":
                form: Node = {"format": _FORMATS[field.words]} if field.words in _FORMATS else {}
                return _TEXT | form | ({"maxLength": 200} if field.words in ("title", "name", "subject") else {})
            case "whole":
                return {**_NUMBER}
            case "number":
                return {"type": "number"}
            case "date":
                is_day = (self._habits.times == "date") != (field.words in self._odd)
                return {"type": "string", "format": "date" if is_day else "date-time"}
            case "flag":
                return {"type": "boolean"}
            case "texts":
                return {"type": "array", "items": _TEXT}
            case "choice":
                return {"type": "string", "enum": [self._habits.choices(each) for each in field.choices]}
        return {**self._key}

    def _described(self, field: Field, resource: Resource) -> Node:
        schema, words = self._schema(field), field.words
        if self._habits.says == "full" and self._rng.random() < 0.4:
            said = (f"The {words} of the {resource.noun}", f"{words.capitalize()}.", f"{resource.noun} {words}")
            schema["description"] = self._rng.choice(said)
        return schema

    def _shown(self, resource: Resource, *, thin: bool) -> Node:
        """The schema of a record as it is read; a thin one, as lists have it, lacks fields."""
        rng, own = self._rng, self._key_field(resource)
        fields = {
            self._field(each): self._described(each, resource)
            for at, each in enumerate(resource.fields)
            if not thin or at == 0 or rng.random() < 0.6
        }
        if own not in fields:
            fields = {own: {**self._key, "readOnly": True}, **fields}
        made: Node = {
            self._habits.field(each): {"type": "string", "format": "date-time", "readOnly": True}
            for each in ("created at", "updated at")
            if not thin
        }
        made = {} if rng.random() < 0.4 else made
        if self._habits.schemas == "joined" and not thin:
            base = f"{spell(resource.noun, 'pascal')}Base"
            self._schemas[base] = _object({name: each for name, each in fields.items() if name != own})
            more = _object({own: fields[own], **made}, [own])
            return {"allOf": [{"$ref": f"#/components/schemas/{base}"}, more]}
        return _object(fields | made, [own] if rng.random() < 0.5 else [*fields])

    def _read(self, resource: Resource, *, thin: bool = False) -> Node:
        """The schema of a record as it is read, or a reference to it."""
        name = f"{spell(resource.noun, 'pascal')}{'Summary' if thin else ''}"
        known = self._inline if self._habits.schemas == "inline" else self._schemas
        if name not in known:
            known[name] = self._shown(resource, thin=thin)
        return known[name] if known is self._inline else {"$ref": f"#/components/schemas/{name}"}

    def _sent(self, resource: Resource, role: str) -> Node:
        """The schema of what a record is written with."""
        habits, rng, owner = self._habits, self._rng, self._owners[resource.noun]
        fields = [
            each
            for each in resource.fields
            if not (owner is not None and each.kind == "link" and each.words == owner.noun)
            and (role == "create" or each.words not in self._locked)
            and (role == "create" or self._field(each) != self._key_field(resource))
        ]
        written = {self._field(each): self._described(each, resource) for each in fields}
        main = next((each for each in fields if each.kind == "text"), None)
        needed = [
            self._field(each)
            for each in fields
            if each is main or (each.kind != "texts" and rng.random() < 0.12)
        ]  # fmt: skip
        schema = _object(written, needed if role in ("create", "replace") else [])
        if habits.schemas in ("one", "joined") and role != "update" and rng.random() < 0.5:
            schema = self._read(resource)
        elif habits.schemas != "inline":
            name = f"{spell(resource.noun, 'pascal')}{role.capitalize()}"
            self._schemas[name] = schema
            schema = {"$ref": f"#/components/schemas/{name}"}
        body = habits.body.format(noun=resource.noun)
        return _object({habits.field(body): schema}) if body else schema

    def _made(self, resource: Resource) -> Node | None:
        """What a creation answers: the record, its key, or nothing."""
        only_key = _object({self._key_field(resource): self._key})
        return self._rng.choices((self._one(resource), only_key, None), (82, 10, 8))[0]

    def _one(self, resource: Resource) -> Node:
        schema, around = self._read(resource), self._habits.around.format(noun=resource.noun)
        return _object({self._habits.field(around): schema}) if around else schema

    def _list(self, resource: Resource) -> Node:
        habits = self._habits
        row = self._read(resource, thin=self._rng.random() < 0.25)
        rows: Node = {"type": "array", "items": row}
        if habits.is_map:
            rows = {"type": "object", "additionalProperties": row}
        if not habits.envelope:
            return rows
        *outer, inner = (habits.field(each.format(nouns=plural(resource.noun))) for each in habits.envelope)
        content: Node = {inner: rows, **self._about_pages()}
        for each in reversed(outer):
            content = {each: _object(content)}
        return _object(content)

    def _about_pages(self) -> Node:
        habits, rng = self._habits, self._rng
        text: Node = {"type": "string", "nullable": True}
        if habits.version.startswith("3.1"):
            text = {"type": ["string", "null"]}
        match habits.paging:
            case "page" | "offset":
                found: Node = {"total": _NUMBER}
                found = found if rng.random() < 0.7 else {habits.field("has more"): {"type": "boolean"}}
                return found if rng.random() < 0.7 else {habits.field("pagination"): _object(found)}
            case "cursor":
                return {habits.field("next cursor"): text}
            case "token":
                return {habits.field("next page token"): text}
            case "address":
                return {"next": text} if rng.random() < 0.6 else {"links": _object({"next": text})}
        return {"count": _NUMBER} if rng.random() < 0.3 else {}

    def _queries(self, resource: Resource) -> list[Node]:
        """The parameters of a list."""
        habits, rng = self._habits, self._rng
        found = self._page_queries() if habits.paging != "none" else []
        owner = self._owners[resource.noun]
        fields = [
            each
            for each in resource.fields
            if each.kind not in ("texts", "number") and not (owner is not None and each.words == owner.noun)
        ]
        count = rng.choice((2, 6, 12) if habits.extras else (0, 1, 2, 4))
        form = "filter[{}]" if habits.extras and habits.key_parameter == "noun" else "{}"
        for each in rng.sample(fields, min(len(fields), count)):
            found.append(_query(form.format(self._field(each)), self._schema(each)))
        ordered = [each for each in resource.fields if each.kind in ("whole", "number", "date")]
        ends = rng.choice((("__gt", "__lt"), ("_min", "_max"), ("_after", "_before")))
        for each in rng.sample(ordered, min(len(ordered), 2)) if rng.random() < 0.3 else ():
            found += [_query(f"{self._field(each)}{end}", self._schema(each)) for end in ends]
        if rng.random() < 0.3:
            found.append(_query(rng.choice(("q", "search", "query")), _TEXT))
        if rng.random() < 0.3:
            found.append(_query(rng.choice(("sort", "sort_by", "order_by", "ordering")), _TEXT))
        return [*found, *self._options(0.2)]

    def _page_queries(self) -> list[Node]:
        habits, rng = self._habits, self._rng
        place, size = habits.page
        number: Node = {**_NUMBER}
        if place == "start index" or (rng.random() < 0.5 and place != "cursor"):
            number["default"] = 1 if place in ("page", "page number", "p", "start index") else 0
        is_number = place != "cursor" and habits.paging not in ("cursor", "token")
        most = rng.choice((10, 20, 25, 50))
        sizes = {**_NUMBER, "default": most, "maximum": max(most, 100)}
        named = (habits.parameter(each) for each in (place, size))
        return [_query(next(named), number if is_number else _TEXT), _query(next(named), sizes)]

    def _options(self, share: float) -> list[Node]:
        """Parameters that choose nothing."""
        rng = self._rng
        count = rng.randint(1, 3) if rng.random() < share else 0
        count += rng.randint(4, len(_OPTIONS)) if self._habits.extras > 10 and rng.random() < 0.5 else 0
        names = rng.sample(_OPTIONS, min(count, len(_OPTIONS)))
        return [_query(self._habits.parameter(each), _TEXT) for each in names]

    def _fill(self) -> None:
        """An operation that no record needs; of some nobody can tell from the document what they do."""
        for path, method, said, node in self._part() if self._rng.random() < 0.4 else [self._untold()]:
            if method in self._paths.get(path + self._habits.slash, {}):
                return
            if self._habits.says != "nothing":
                node["summary"] = said.capitalize()
            if self._habits.identifiers != "absent":
                is_snake = self._habits.identifiers in ("snake", "path", "framework")
                node["operationId"] = spell(said, "snake" if is_snake else "camel")
            self._paths.setdefault(path + self._habits.slash, {})[method] = node

    def _part(self) -> list[tuple[str, str, str, Node]]:
        """What there is one of, read and perhaps set: path, method, what it does, and the operation."""
        rng, habits, (about, listed) = self._rng, self._habits, self._rng.choice(_READS)
        fields = map(read_field, listed.split(", "))
        shown = _object({habits.field(each.words): self._schema(each) for each in fields})
        path = f"{habits.prefix}/{spell(about, habits.paths)}"
        found = [(path, "get", f"get {about}", _operation(None, shown))]
        if about in _SET and rng.random() < 0.7:
            method, verb = rng.choice((("put", "replace"), ("put", "update"), ("patch", "update")))
            found.append((path, method, f"{verb} {about}", _operation(shown, shown)))
        return found

    def _untold(self) -> tuple[str, str, str, Node]:
        """The same of what is done with records."""
        rng, resource = self._rng, self._rng.choice(self._resources)
        noun, nouns = resource.noun, plural(resource.noun)
        (many, above), key = self._place(resource), self._parameter(resource)
        source = _object({"source": _TEXT, "overwrite": {"type": "boolean"}})
        counted = _object({"count": _NUMBER, "average": {"type": "number"}})
        several: Node = {"type": "array", "items": self._read(resource)}
        of_many: dict[str, tuple[str, str, Node]] = {
            "import": ("post", f"import {nouns}", _operation(source, None)),
            "export": ("post", f"export {nouns}", _operation(_object({"format": _TEXT}), _object({"url": _TEXT}))),
            "statistics": ("get", f"get {noun} statistics", _operation(None, counted)),
            "bulk": ("post", f"create many {nouns}", _operation(several, None)),
        }
        of_one: dict[str, tuple[str, str, Node]] = {
            "share": ("post", f"share {noun}", _operation(_object({"email": _TEXT}), None)),
            "duplicate": ("post", f"duplicate {noun}", _operation(None, None)),
            "permissions": ("get", f"get {noun} permissions", _operation(None, {"type": "array", "items": _TEXT})),
            "sync": ("post", f"sync {noun}", _operation(None, _object({"job": _TEXT}))),
        }
        last = rng.choice([*of_many, *of_one])
        method, said, node = of_many.get(last) or of_one[last]
        parameters = above if last in of_many else [*above, self._key_parameter(resource)]
        path = f"{many}/{last}" if last in of_many else f"{many}/{{{key}}}/{last}"
        return path, method, said, node | ({"parameters": parameters} if parameters else {})


def _operation(body: Node | None, reply: Node | None) -> Node:
    node: Node = {"responses": {"204" if reply is None else "200": _answer(reply, "OK")}}
    return node if body is None else node | {"requestBody": {"content": {"application/json": {"schema": body}}}}


def _object(fields: Node, required: Sequence[str] = ()) -> Node:
    found: Node = {"type": "object", "properties": fields}
    return {**found, "required": [*required]} if required else found


def _query(name: str, schema: Node) -> Node:
    return {"name": name, "in": "query", "required": False, "schema": schema}


def _answer(schema: Node | None, described: str) -> Node:
    content = {} if schema is None else {"content": {"application/json": {"schema": schema}}}
    return {"description": described, **content}


def _drawn(weights: dict[T, int], rng: Random) -> T:
    return rng.choices(list(weights), list(weights.values()))[0]
