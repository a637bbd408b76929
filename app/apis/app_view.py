"""An app as the REST API shows it."""

from typing import Self

import msgspec

from app.apis.catalog import App, Operation
from app.apis.signature import signature


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


class AppView(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an app without its schemas."""

    digest: str
    description: str
    base_url: str
    variables: dict[str, str]
    operations: list[OperationView]

    @classmethod
    def of(cls, app: App) -> Self:
        return cls(
            digest=app.digest,
            description=app.description,
            base_url=app.server,
            variables=app.variables,
            operations=[OperationView.of(each) for each in app.operations.values()],
        )
