"""An OpenAPI document as the caller sees it: what the agent makes of it, and never its secret."""

from datetime import datetime
from typing import Self
from uuid import UUID

import msgspec

from app.apis.catalog import App, Operation
from app.apis.signature import signature
from app.db import models
from app.records import Json


class ApiSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A document in a list."""

    id: UUID
    project: str
    name: str
    source: str
    server: str | None  # overrides the document's
    digest: str
    has_token: bool
    created_at: datetime

    @classmethod
    def of(cls, row: models.Api, project: str) -> "ApiSummary":
        return ApiSummary(project=project, has_token=row.secret is not None, **_columns(row))


class OperationView(msgspec.Struct, frozen=True):
    """`signature` is what the agent is shown: what it takes and gives."""

    name: str
    method: str
    path: str
    signature: str
    summary: str

    @classmethod
    def of(cls, operation: Operation) -> Self:
        return cls(operation.name, operation.method, operation.path, signature(operation), operation.summary)


class ApiView(ApiSummary, frozen=True, kw_only=True):
    """With all that the agent may call. `variables` are those of the server's URL, with their defaults."""

    description: str
    base_url: str
    variables: dict[str, str]
    operations: list[OperationView]

    @classmethod
    def whole(cls, row: models.Api, project: str, app: App) -> "ApiView":
        return ApiView(
            project=project,
            has_token=row.secret is not None,
            description=app.description,
            base_url=app.server,
            variables=app.variables,
            operations=[OperationView.of(each) for each in app.operations.values()],
            **_columns(row),
        )


def _columns(row: models.Api) -> dict[str, Json]:
    return {
        name: getattr(row, name) for name in ApiSummary.__struct_fields__ if name not in ("project", "has_token")
    }
