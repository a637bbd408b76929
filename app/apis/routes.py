"""Routes for the APIs of a project, each an OpenAPI document or an MCP server that the agent may call."""

from collections.abc import Sequence
from contextlib import suppress
from uuid import UUID

import httpx
import msgspec
from litestar import Controller, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from msgspec import UNSET
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.api_content import ApiReaders, content_of
from app.api.api_reading import read_api
from app.api.api_request import ApiPatch, ApiRequest
from app.api.api_view import ApiSummary, ApiView
from app.api.document_access import fetch_for, untrusted_remarks
from app.apis.address import check_reachable
from app.apis.app_view import AppView
from app.apis.document_reader import DocumentReader
from app.apis.presentation import AS_WRITTEN, Presentation
from app.apis.read_process import ReadRequest
from app.apis.server_remark import server_remark
from app.base.errors import ApiDocumentError
from app.base.values import Json, hosted_id
from app.credentials.document_fetch import check_server
from app.credentials.prepared import PreparedCredential, prepare
from app.db import api_credentials, api_trials, apis, mcp_changes, releases, tables
from app.db.api_trials import ShownTrial
from app.db.tables import AuditAction
from app.engine.model_scope import ModelScope
from app.projects import audit
from app.projects.authorization import find_project
from app.release import manifest
from app.release.api_refresh import record_change
from app.release.tool_documents import presentation_of
from app.web.access import Access, Caller, Db
from app.web.fields import ProjectName
from app.web.problem import problems
from app.web.routes import DocumentRequest


class ApiController(Controller):
    path = "/apis"
    tags = ("APIs",)
    opt = {"scope": "tasks"}  # noqa: RUF012

    @post(
        opt={"scope": "admin"},
        summary="Add or replace an API",
        responses=problems(400, 401, 403, 404, 409, 413),
        request_class=DocumentRequest,
    )
    async def put(
        self,
        data: JSONBody[ApiRequest],
        session: Db,
        access: Caller,
        readers: NamedDependency[ApiReaders],
        model_scope: NamedDependency[ModelScope],
    ) -> ApiView:
        """Fetches, parses and stores the document, or the tools of the MCP server, replacing one of the same name.

        Without `bearer_token`, `bind` or `token_origins` a replaced API keeps them; null removes. Secrets that it
        keeps stay with their server: to move, send them again, or allow the origin by `token_origins`. Operations
        that it had keep their names, by operationId or by method and path, unless `naming` changes. If tasks have
        started with the active release, a new release with the new tools becomes active: rolling back restores the
        documents. `remarks` say what to look at, such as a server that does not answer, or a model that was not
        made for this API."""
        project = await find_project(session, access, data.project)
        return await register_api(session, access, project, data, readers, model_scope)

    @get(summary="List APIs", responses=problems(400, 401, 403, 404))
    async def index(self, session: Db, access: Caller, project: ProjectName = None) -> list[ApiSummary]:
        """Sorted by name. Tokens are never shown."""
        owner = await find_project(session, access, project)
        trials = await api_trials.of_project(session, owner.id)
        return [
            ApiSummary.of(row, owner.name, trials.get(row.id)) for row in await apis.of_project(session, owner.id)
        ]

    @get("/{name:str}", summary="Show an API and its operations", responses=problems(400, 401, 403, 404))
    async def show(
        self,
        name: FromPath[str],
        session: Db,
        access: Caller,
        document_reader: NamedDependency[DocumentReader],
        project: ProjectName = None,
    ) -> ApiView:
        owner = await find_project(session, access, project)
        row = await apis.get(session, owner.id, name, document=False)
        stored = await api_credentials.of_api(session, row.id)
        app = await read_api(document_reader, session, row, row.bind)
        return ApiView.full(row, owner.name, app, stored, await api_trials.of_api(session, row.id))

    @patch(
        "/{name:str}",
        opt={"scope": "admin"},
        summary="Change the token, the bindings or the practice of an API",
        responses=problems(400, 401, 403, 404, 409),
    )
    async def change(
        self,
        name: FromPath[str],
        data: JSONBody[ApiPatch],
        session: Db,
        access: Caller,
        document_reader: NamedDependency[DocumentReader],
        project: ProjectName = None,
    ) -> ApiView:
        """Effective from the next task on."""
        owner = await find_project(session, access, project)
        return await change_api(session, access, owner, name, data, document_reader)

    @delete(
        "/{name:str}",
        opt={"scope": "admin"},
        summary="Remove an API",
        responses=problems(400, 401, 403, 404),
    )
    async def remove(self, name: FromPath[str], session: Db, access: Caller, project: ProjectName = None) -> None:
        """New tasks of any release cannot call it: its token is deleted."""
        owner = await find_project(session, access, project)
        await remove_api(session, access, owner, name)


async def register_api(
    session: AsyncSession,
    access: Access,
    project: tables.Project,
    data: ApiRequest,
    readers: ApiReaders,
    model_scope: ModelScope,
) -> ApiView:
    """Add or replace an API. Raises ApiDocumentError, InvalidError that names the field, and ConflictError if it
    was changed by others meanwhile.
    """
    sessions, http_client, document_reader, _ = readers
    fetch = fetch_for(data, project.id, sessions, http_client, document_reader)
    content = await content_of(data, session, project.id, readers, fetch)
    if hosted_id((await releases.active(session, project.id)).model) is not None:
        model_scope = ModelScope()  # a hosted model was made for any
    former = await _former(session, document_reader, project.id, data.name)
    request = _request(data, former, model_scope)
    app, document = await document_reader.read(request, content, fetch)
    check_reachable(app.base_url)
    prepared = [
        await prepare(name, each, app.schemes, app.default_url, http_client)
        for name, each in data.credentials.items()
    ]
    serving = await manifest.lock_active(session, project.id)
    if former is not None:
        await apis.check_unchanged(session, project.id, data.name, former.seen)
        await _check_server(session, former, app, data)
    before = {} if former is None else apis.about(former.row)
    row = await apis.put(
        session,
        project.id,
        data.name,
        source=data.url or (data.mcp or "upload").rstrip("/"),
        server=data.server,
        document=document,
        digest=app.digest,
        secrets_for=app.server,
        token=data.bearer_token,
        bind=request.bind,
        presentation=msgspec.to_builtins(app.presentation),
        practice=data.practice,
    )
    if before and before["secrets_for"] != app.server:
        await api_credentials.end_attempts(session, row.id)
    stored = await _complete(session, access, row, before, data, prepared)
    await manifest.update_tools(session, serving, [data.name], access.actor)
    if former is not None and former.app is not None and former.app.digest != app.digest:
        await record_change(session, row, former.app, app, applied=True)
    if any(each.authorized for each in stored if not app.operations):
        await mcp_changes.mark_connected(session, row.id)
    trial = await _trial(session, row, before, data)
    await session.commit()
    remarks = await _remarks(data, app, model_scope, trial, http_client)
    if fetch.needs_credentials:
        remarks += untrusted_remarks(data.url or "", data.server or app.default_url, row.token_origins)
    return ApiView.full(row, project.name, app, stored, trial, remarks)


async def change_api(
    session: AsyncSession,
    access: Access,
    owner: tables.Project,
    name: str,
    data: ApiPatch,
    document_reader: DocumentReader,
) -> ApiView:
    """Raises NotFoundError, InvalidError for bindings that do not fit, ConflictError if it is moved meanwhile."""
    row = await apis.get(session, owner.id, name, document=False)
    place = apis.place_of(row)
    bind = row.bind if data.bind is UNSET else dict(data.bind or {})
    app = await read_api(document_reader, session, row, bind)
    row = await apis.hold(session, owner.id, name, place)
    before = apis.about(row)
    if data.bind is not UNSET:
        row.bind = bind
    if data.practice is not UNSET:
        row.practice = data.practice
    for column, value in apis.sealed(session, data.bearer_token).items():
        setattr(row, column, value)
    stored = await _complete(session, access, row, before, data)
    trial = await api_trials.of_api(session, row.id)
    await session.commit()
    return ApiView.full(row, owner.name, app, stored, trial)


async def remove_api(session: AsyncSession, access: Access, owner: tables.Project, name: str) -> None:
    """Raises NotFoundError."""
    serving = await manifest.lock_active(session, owner.id)
    await apis.delete(session, owner.id, name)
    await manifest.update_tools(session, serving, [name], access.actor)
    await audit.add(session, owner.id, None, access.actor, AuditAction.API_DELETED, {"name": name})
    await session.commit()


async def _complete(
    session: AsyncSession,
    access: Access,
    row: tables.Api,
    before: dict[str, Json],
    data: ApiRequest | ApiPatch,
    prepared: Sequence[PreparedCredential] = (),
) -> Sequence[tables.ApiCredential]:
    """Store what belongs to an API, and record its change for the audit log. The credentials that it has now."""
    if data.token_origins is not UNSET:
        row.token_origins = list(data.token_origins)
    for each in prepared:
        await each.store(session, row.id, "")
    detail: dict[str, Json] = {"name": row.name, "before": before, "after": apis.about(row)}
    if data.bearer_token is not UNSET:
        detail["token"] = "removed" if data.bearer_token is None else "stored"
        await api_credentials.forget_uses(session, row.id)
    detail |= {"credentials": [each.scheme for each in prepared]} if prepared else {}
    await audit.add(session, row.project_id, None, access.actor, AuditAction.API_CHANGED, detail)
    return await api_credentials.of_api(session, row.id)


async def _trial(
    session: AsyncSession, row: tables.Api, before: dict[str, Json], data: ApiRequest
) -> ShownTrial | None:
    """The trial of an API that was put: a new one, if it reads otherwise than before, or if that is wanted."""
    now = apis.about(row)
    same = all(before.get(each) == now[each] for each in ("digest", "presentation", "server"))
    if same and data.trial is UNSET:
        return await api_trials.of_api(session, row.id)
    wanted = None if data.trial is UNSET else data.trial
    return ShownTrial(await api_trials.renew(session, row.project_id, row.id, wanted=wanted))


class _Former(msgspec.Struct, frozen=True):
    """The API that is replaced."""

    row: tables.Api
    seen: object
    app: AppView | None  # None: an earlier version of this server stored it, and it cannot be read any more


async def _former(session: AsyncSession, reader: DocumentReader, project_id: UUID, name: str) -> _Former | None:
    """Ends the transaction."""
    row, app = await apis.find(session, project_id, name), None
    seen = None if row is None else apis.state_of(row)
    if row is not None:
        with suppress(ApiDocumentError):
            app = await read_api(reader, session, row, row.bind)
    await session.commit()
    return None if row is None else _Former(row, seen, app)


async def _check_server(session: AsyncSession, former: _Former, app: AppView, data: ApiRequest) -> None:
    """Raises ApiDocumentError for secrets that would stay, and go to another server."""
    row = former.row
    held = ["bearer_token"] if data.bearer_token is UNSET and (row.token or row.secret) else []
    for each in await api_credentials.of_api(session, row.id):
        if each.value is not None and (each.principal or each.scheme not in data.credentials):
            held.append(f"credentials of {each.scheme}" + (f" for {each.principal}" if each.principal else ""))
    held += ["bind"] if data.bind is UNSET and row.bind else []
    if held:
        before = row.secrets_for or (None if former.app is None else former.app.server)
        origins = row.token_origins if data.token_origins is UNSET else data.token_origins
        check_server(before, app, origins, f"the stored {', '.join(held)}")


def _request(data: ApiRequest, former: _Former | None, model_scope: ModelScope) -> ReadRequest:
    """How the document is read, after the one that it replaces."""
    new = AS_WRITTEN if model_scope.as_written else Presentation(naming="readable")
    presented = new if former is None else presentation_of(former.row)
    naming = data.naming or presented.naming
    app = former.app if former is not None and naming == presented.naming else None
    bind = data.bind if data.bind is not UNSET else {} if former is None else former.row.bind
    return ReadRequest(
        name=data.name,
        source=data.url,
        server=data.server,
        presentation=msgspec.structs.replace(presented, naming=naming, names={}),
        names=None if app is None else app.names,
        bind=bind or {},
    )


async def _remarks(
    data: ApiRequest,
    app: AppView,
    model_scope: ModelScope,
    trial: ShownTrial | None,
    client: httpx.AsyncClient,
) -> list[str]:
    score = None if trial is None else trial.score
    tried = {} if score is None else {data.name: score}
    remarks = [model_scope.remark({data.name: [each.name for each in app.operations]}, tried)]
    if not app.operations:
        remarks.append("it has no tools until it is connected, or has a token: see its `credentials`")
    if data.naming is None and (readable := app.readable_names):
        name = next(iter(readable))
        remarks.append(
            f"{len(readable)} of {len(app.traits | app.hidden_traits)} operations have the names of the document, "
            f'such as {name}: `"naming": "readable"` (`sage apis add --naming readable`) calls it {readable[name]}'
        )
    if data.mcp is None and data.server is None:
        remarks.append(await server_remark(client, app, data.url))
    return [each for each in remarks if each is not None]
