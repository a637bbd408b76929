"""An OpenAPI document in responses: its operations as the agent sees them, and never its token."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from app.api.api_trial import TrialSummary, TrialView
from app.api.credential_view import CredentialView, shared_credentials
from app.apis.app_view import AppView, OperationView
from app.apis.catalog import LeftOut
from app.apis.naming import Naming
from app.base.values import Json
from app.db import tables
from app.db.api_trials import ShownTrial
from app.db.tables import PracticeSource
from app.release.tool_documents import presentation_of
from app.web.fields import ConsoleLinks, columns

_COMPUTED = ("has_token", "links", "naming", "trial")


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
    naming: Naming
    practice: PracticeSource  #: what practice on it is made of
    created_at: datetime
    checked_at: datetime | None  #: its document was last fetched
    check_failure: str | None  #: why it could not be, the last time
    links: ConsoleLinks
    trial: TrialSummary

    @classmethod
    def of(cls, row: tables.Api, project: str, trial: ShownTrial | None) -> "ApiSummary":
        return ApiSummary(
            project=project,
            trial=TrialSummary.of(trial),
            **_computed(row, project),
            **columns(row, ApiSummary, "project", *_COMPUTED),
        )


class ApiView(ApiSummary, frozen=True, kw_only=True):
    """An API with its operations. `variables` are those of the server URL, with their defaults.

    Operations of the document that cannot be called are `left_out`; `remarks` are about a new document.
    `prompt_signatures` are the lines by which prompts list the operations; null where they are too many.
    `credentials` are those for all tasks: those of principals are listed at `/v1/apis/{name}/credentials`.
    """

    description: str
    base_url: str
    variables: dict[str, str]
    operations: list[OperationView]
    prompt_signatures: tuple[str, ...] | None
    left_out: list[LeftOut]
    credentials: list[CredentialView]  #: for all tasks
    trial: TrialView
    remarks: list[str] = []

    @classmethod
    def full(
        cls,
        row: tables.Api,
        project: str,
        app: AppView,
        stored: Iterable[tables.ApiCredential],
        trial: ShownTrial | None,
        remarks: Sequence[str] = (),
    ) -> "ApiView":
        return ApiView(
            project=project,
            description=app.description,
            base_url=app.base_url,
            variables=app.variables,
            operations=app.operations,
            prompt_signatures=app.prompt_signatures,
            left_out=app.left_out,
            credentials=shared_credentials(app.schemes, stored, has_token=_has_token(row)),
            trial=TrialView.full(trial),
            remarks=list(remarks),
            **_computed(row, project),
            **columns(row, ApiSummary, "project", *_COMPUTED),
        )


def _computed(row: tables.Api, project: str) -> dict[str, Any]:
    naming = presentation_of(row).naming
    return {
        "has_token": _has_token(row),
        "links": ConsoleLinks.to(f"/console/apis/{row.name}", project),
        "naming": naming,
    }


def _has_token(row: tables.Api) -> bool:
    return row.token is not None or row.secret is not None
