"""An app as the REST API shows it."""

from typing import Self

import msgspec

from app.apis.catalog import App, LeftOut, Operation
from app.apis.fingerprint import fingerprints, shapes
from app.apis.listed_app import ListedApp
from app.apis.naming import keys_of, place_of
from app.apis.presentation import AS_WRITTEN, OperationOverride, Presentation, gone, overrides_of
from app.apis.reachable import CalledServers, server_of
from app.apis.security_schemes import Security, SecurityScheme
from app.apis.signature import signature
from app.projects.settings import ApprovalMode, Risk


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
        return cls(
            operation.method,
            operation.safe,
            operation.risk,
            fingerprint,
            operation.arguments,
            operation.required,
            operation.repeatable,
            key,
            place_of(operation),
            operation.former_names,
            shape,
            operation.approval,
            operation.explore,
        )


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
        known, bare = fingerprints(app), shapes(app)
        every = [*app.operations.values(), *app.hidden]
        traits = {
            each.name: OperationTraits.of(each, known.get(each.name, ""), key, bare.get(each.name, ""))
            for key, each in zip(keys_of(every), every, strict=True)
        }
        names = {each.key: name for name, each in traits.items()}
        return cls(
            digest=app.digest,
            description=app.description,
            base_url=app.server,
            variables=app.variables,
            other_servers=app.other_servers,
            servers=CalledServers.of(app),
            operations=[OperationView.of(each, typed=app.typed) for each in app.operations.values()],
            prompt_signatures=ListedApp.of(app).signatures,
            left_out=list(app.left_out),
            schemes=app.schemes,
            security=app.security,
            traits={name: traits[name] for name in app.operations},
            hidden=[OperationView.of(each, typed=app.typed) for each in app.hidden],
            hidden_traits={each.name: traits[each.name] for each in app.hidden},
            overridden={names[key]: each for key, each in overrides_of(app, presentation).items()},
            gone=list(gone(presentation, app)),
            presentation=presentation,
        )
