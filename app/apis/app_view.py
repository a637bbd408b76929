"""An app as the REST API shows it."""

from typing import Self

import msgspec

from app.apis.catalog import App, LeftOut, Operation
from app.apis.fingerprint import fingerprints
from app.apis.security_schemes import SecurityScheme
from app.apis.signature import signature
from app.project.approval import Risk


class OperationView(msgspec.Struct, frozen=True):
    """`signature` is what the agent is shown: parameters and result."""

    name: str
    method: str
    path: str
    signature: str
    summary: str

    @classmethod
    def of(cls, operation: Operation) -> Self:
        return cls(operation.name, operation.method, operation.path, signature(operation), operation.summary)


class OperationTraits(msgspec.Struct, frozen=True):
    """What is decided or compared by, without the schemas."""

    method: str
    safe: bool
    risk: Risk | None
    fingerprint: str
    arguments: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    repeatable: bool = False

    @classmethod
    def of(cls, operation: Operation, fingerprint: str) -> Self:
        return cls(
            operation.method,
            operation.safe,
            operation.risk,
            fingerprint,
            operation.arguments,
            operation.required,
            operation.repeatable,
        )


class AppView(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an app without its schemas."""

    digest: str
    description: str
    base_url: str
    variables: dict[str, str]
    operations: list[OperationView]
    left_out: list[LeftOut] = []
    schemes: dict[str, SecurityScheme] = {}
    traits: dict[str, OperationTraits]  # of each operation

    @property
    def default_url(self) -> str:
        """The base URL with the defaults of its variables. Those without one stay in braces."""
        url = self.base_url
        for name, default in self.variables.items():
            url = url.replace(f"{{{name}}}", default)
        return url

    @classmethod
    def of(cls, app: App) -> Self:
        known = fingerprints(app)
        return cls(
            digest=app.digest,
            description=app.description,
            base_url=app.server,
            variables=app.variables,
            operations=[OperationView.of(each) for each in app.operations.values()],
            left_out=list(app.left_out),
            schemes=app.schemes,
            traits={name: OperationTraits.of(each, known[name]) for name, each in app.operations.items()},
        )
