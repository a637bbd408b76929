"""An OpenAPI document in responses: its operations as the agent sees them, and never its token."""

from datetime import datetime
from typing import Self
from uuid import UUID

import msgspec

from app.api.columns import columns
from app.apis.catalog import App, Operation
from app.apis.signature import signature
from app.db import models
from app.records import Json


class ApiSummary(msgspec.Struct, frozen=True, kw_only=True):
    """An API in a list. `server` overrides the server named in the document."""

    id: UUID
    project: str
    name: str
    source: str
    server: str | None
    digest: str
    has_token: bool
    bind: dict[str, Json]
    token_origins: list[str]
    created_at: datetime

    @classmethod
    def of(cls, row: models.Api, project: str) -> "ApiSummary":
        return ApiSummary(
            project=project, has_token=_has_token(row), **columns(row, ApiSummary, "project", "has_token")
        )


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


class ApiView(ApiSummary, frozen=True, kw_only=True):
    """An API with its operations. `variables` are those of the server URL, with their defaults."""

    description: str
    base_url: str
    variables: dict[str, str]
    operations: list[OperationView]

    @classmethod
    def full(cls, row: models.Api, project: str, app: App) -> "ApiView":
        return ApiView(
            project=project,
            has_token=_has_token(row),
            description=app.description,
            base_url=app.server,
            variables=app.variables,
            operations=[OperationView.of(each) for each in app.operations.values()],
            **columns(row, ApiSummary, "project", "has_token"),
        )


def _has_token(row: models.Api) -> bool:
    return row.token is not None or row.secret is not None
