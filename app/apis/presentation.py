"""How a project presents the operations of a document to its agent, and an app as the REST API shows it. Pure.

Fingerprints are equal if an agent, or if code, cannot tell two versions of an operation apart; an outline is an
app without its schemas, from what is known of one whose document was read in another process.
"""

import hashlib
from collections.abc import Mapping
from typing import Final, Self

import msgspec

from app.apis.catalog import App, LeftOut, Operation, Parameter
from app.apis.credentials.schemes import Security, SecurityScheme
from app.apis.listing import ListedApp, signature
from app.apis.naming import Naming, keys_of, known_names, name_operations, place_of
from app.apis.servers import CalledServers, server_of
from app.base.values import Json
from app.projects.settings import ApprovalMode, Risk

_UNSEEN: Final[dict[str, Json]] = {
    "security": None,
    "operation_id": "",
    "former_names": (),
    "tags": (),
    "approval": None,
    "explore": None,
}
_WORDS: Final = frozenset({"title", "summary", "description"})
_OF_APP: Final = ("digest", "description", "variables", "other_servers", "schemes", "security")


class OperationOverride(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a person set for one operation, in place of what its document says. The defaults change nothing."""

    place: str  # by which it is known if its operationId is another one now
    was: str  # its name when it was overridden, to call it by once it is gone
    name: str = ""
    description: str = ""
    hidden: bool = False
    safe: bool | None = None
    approval: ApprovalMode | None = None
    explore: bool | None = None

    @property
    def fields_set(self) -> list[str]:
        """The names of those that differ from their defaults."""
        return [name for name in msgspec.to_builtins(self) if name not in ("place", "was")]


class Presentation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Kept with an API, and part of a release as its document is. Operations by key, see `apis.naming`.

    APIs of earlier versions have none, and so keep the names of the document.
    """

    naming: Naming = "operation_id"
    names: dict[str, str] = {}  # of operations that would have other ones in this version of the document
    overrides: dict[str, OperationOverride] = {}


AS_WRITTEN: Final = Presentation()


def present(app: App, presentation: Presentation) -> App:
    """The app under the names that its agent knows, with what people have set for its operations."""
    if presentation == AS_WRITTEN:
        return app
    overrides = _overrides_of(app, presentation)
    own = {key: each.name for key, each in overrides.items() if each.name}
    given = name_operations(app, presentation.naming, presentation.names)
    names = name_operations(app, presentation.naming, presentation.names | own) if own else given
    taken, shown, hidden = set(names), dict[str, Operation](), list[Operation]()
    keyed = zip(keys_of(list(app.operations.values())), app.operations.values(), given, names, strict=True)
    for key, operation, before, name in keyed:
        former = tuple(each for each in dict.fromkeys((operation.name, before)) if each not in taken)
        named = msgspec.structs.replace(operation, name=name, former_names=former)
        override = overrides.get(key)
        made = named if override is None else _overridden(named, override)
        if override is not None and override.hidden:
            hidden.append(made)
        else:
            shown[name] = made
    typed = presentation.naming == "readable"
    return msgspec.structs.replace(app, operations=shown, hidden=tuple(hidden), typed=typed)


def keep_names(app: App, presentation: Presentation, names: Mapping[str, str]) -> Presentation:
    """The presentation for a new version of a document, of which an earlier one had `names`, by key or by place. A
    name that a person has given comes before those: it is neither replaced by one nor given twice.

    `app` is as parsed.
    """
    operations = list(app.operations.values())
    keys, known = keys_of(operations), known_names(names, operations)
    own = {key: each.name for key, each in _overrides_of(app, presentation).items() if each.name}
    free = {key: name for key, name in known.items() if key not in own and name not in own.values()}
    kept: dict[str, str] = {}
    while True:  # a name that is kept may set another one free
        given = zip(keys, name_operations(app, presentation.naming, kept | own), strict=True)
        differing = {key: free[key] for key, name in given if key not in kept and free.get(key, name) != name}
        if not differing:
            return msgspec.structs.replace(presentation, names=kept)
        kept |= differing


def _overrides_of(app: App, presentation: Presentation) -> dict[str, OperationOverride]:
    """Those of the app's operations, by their keys now."""
    operations = [*app.operations.values(), *app.hidden]
    keys = keys_of(operations)
    moved = {each.place: each for key, each in presentation.overrides.items() if key not in keys}
    places = dict(zip(keys, map(place_of, operations), strict=True))
    found = {key: presentation.overrides.get(key) or moved.get(place) for key, place in places.items()}
    return {key: each for key, each in found.items() if each is not None}


def _overridden(operation: Operation, override: OperationOverride) -> Operation:
    if text := override.description.strip():
        summary = " ".join(text.splitlines()[0].split())
        operation = msgspec.structs.replace(operation, summary=summary, description=text)
    if override.safe is not None:
        operation = msgspec.structs.replace(operation, declared_safe=override.safe)
    return msgspec.structs.replace(operation, approval=override.approval, explore=override.explore)


def shapes(app: App) -> dict[str, str]:
    """By operation: fingerprints without words for people, so that code which fits one version fits the other."""
    return _fingerprints(app, _WORDS)


def _fingerprints(app: App, without: frozenset[str] = frozenset()) -> dict[str, str]:
    """By operation. The URL of the app's server does not count, nor do credentials, which the gateway adds."""
    unseen = {**_UNSEEN, "summary": "", "description": ""} if without else _UNSEEN
    seen = {name: msgspec.structs.replace(each, **unseen) for name, each in app.operations.items()}
    known: dict[int, str] = {}
    return {name: _fingerprint(operation, known, without) for name, operation in seen.items()}


def _fingerprint(value: Json, known: dict[int, str], without: frozenset[str]) -> str:
    """Schemas share parts, so each is hashed once. `known` is keyed by identity, so all values must live on.

    `without` are names whose texts do not count.
    """
    if id(value) in known:
        return known[id(value)]
    if isinstance(value, msgspec.Struct):
        fields = msgspec.structs.asdict(value)
        parts = [f"{name}={_fingerprint(fields[name], known, without)}" for name in _counting(fields, without)]
    elif isinstance(value, dict):
        names = sorted(_counting(value, without), key=str)
        parts = [f"{key!r}:{_fingerprint(value[key], known, without)}" for key in names]
    elif isinstance(value, list | tuple):
        parts = [_fingerprint(each, known, without) for each in value]
    else:
        return repr(value)
    digest = hashlib.sha256(f"{type(value).__name__}({','.join(parts)})".encode()).hexdigest()
    known[id(value)] = digest
    return digest


def _counting(named: Mapping[str, Json], without: frozenset[str]) -> list[str]:
    """A property that is called `description` counts: its value is a schema."""
    return [name for name, value in named.items() if not (name in without and isinstance(value, str))]


class OperationView(msgspec.Struct, frozen=True):
    """`signature` is what the agent is shown: parameters and result."""

    name: str
    method: str
    path: str
    signature: str
    summary: str

    @classmethod
    def of(cls, operation: Operation, *, typed: bool) -> Self:
        line = signature(operation, typed=typed)
        return cls(operation.name, operation.method, operation.path, line, operation.summary)


class OperationTraits(msgspec.Struct, frozen=True):
    """What is decided or compared by, without the schemas."""

    method: str
    safe: bool
    risk: Risk | None
    fingerprint: str
    arguments: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    repeatable: bool = False
    key: str = ""  # see `apis.naming`
    place: str = ""
    former_names: tuple[str, ...] = ()
    shape: str = ""
    approval: ApprovalMode | None = None
    explore: bool | None = None

    @classmethod
    def of(cls, operation: Operation, fingerprint: str, key: str, shape: str) -> Self:
        same = {name: getattr(operation, name) for name in cls.__struct_fields__ if hasattr(operation, name)}
        return cls(**same, fingerprint=fingerprint, key=key, place=place_of(operation), shape=shape)


class AppView(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an app without its schemas."""

    digest: str
    description: str
    base_url: str
    variables: dict[str, str]
    other_servers: tuple[str, ...] = ()
    servers: CalledServers
    operations: list[OperationView]
    prompt_signatures: tuple[str, ...] | None = None
    left_out: list[LeftOut] = []
    schemes: dict[str, SecurityScheme] = {}
    security: Security | None = None
    traits: dict[str, OperationTraits]  # of each operation
    hidden: list[OperationView] = []
    hidden_traits: dict[str, OperationTraits] = {}
    overridden: dict[str, OperationOverride] = {}  # by the name that the operation has now
    gone: list[str] = []  # keys of overrides whose operations the document no longer has
    presentation: Presentation = AS_WRITTEN
    readable_names: dict[str, str] = {}  # see `naming`; of a new document that is presented as it is written

    @property
    def default_url(self) -> str:
        """The base URL with the defaults of its variables. Those without one stay in braces."""
        url = self.base_url
        for name, default in self.variables.items():
            url = url.replace(f"{{{name}}}", default)
        return url

    @property
    def server(self) -> str:
        """What its secrets are given for, see `server_of`."""
        return server_of(self.servers, self.base_url)

    @property
    def names(self) -> dict[str, str]:
        """Those of the operations, by key and by place."""
        every = (self.traits | self.hidden_traits).items()
        return {each.place: name for name, each in every} | {each.key: name for name, each in every}

    @classmethod
    def of(cls, app: App, presentation: Presentation = AS_WRITTEN) -> Self:
        known, bare = _fingerprints(app), shapes(app)
        every = [*app.operations.values(), *app.hidden]
        traits = {
            each.name: OperationTraits.of(each, known.get(each.name, ""), key, bare.get(each.name, ""))
            for key, each in zip(keys_of(every), every, strict=True)
        }
        names = {each.key: name for name, each in traits.items()}
        there = _overrides_of(app, presentation)
        return cls(
            **{name: getattr(app, name) for name in _OF_APP},
            base_url=app.server,
            servers=CalledServers.of(app),
            operations=[OperationView.of(each, typed=app.typed) for each in app.operations.values()],
            prompt_signatures=ListedApp.of(app).signatures,
            left_out=list(app.left_out),
            traits={name: traits[name] for name in app.operations},
            hidden=[OperationView.of(each, typed=app.typed) for each in app.hidden],
            hidden_traits={each.name: traits[each.name] for each in app.hidden},
            overridden={names[key]: each for key, each in there.items()},
            gone=[key for key, each in presentation.overrides.items() if each not in there.values()],
            presentation=presentation,
        )


def outline(name: str, traits: Mapping[str, OperationTraits]) -> App:
    """Enough to check names, methods and arguments by; no call can be made with it."""
    operations = {each: _operation(name, each, known) for each, known in traits.items()}
    return App(name=name, description="", server="", variables={}, operations=operations, digest="")


def _operation(app: str, name: str, traits: OperationTraits) -> Operation:
    return Operation(
        app=app,
        name=name,
        method=traits.method,
        path="",
        summary="",
        declared_safe=traits.safe,
        parameters=tuple(
            Parameter(name=each, wire_name=each, place="body", required=each in traits.required, schema={})
            for each in traits.arguments
        ),
    )
