"""Routes for the APIs of a project, each an OpenAPI document or an MCP server that the agent may call.

They show an API with its operations as the agent sees them, and never its token; its trial, and run it again;
and call one operation, to see whether it answers.
"""

import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import httpx
import msgspec
from litestar import Controller, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from msgspec import UNSET
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis import store as apis
from app.apis import trials
from app.apis.calls.http_call import HttpCaller
from app.apis.calls.live_calls import AuthenticatedCaller, RequestSecrets
from app.apis.catalog import LeftOut
from app.apis.credentials import store as credentials
from app.apis.credentials.requests import CredentialView, shared_credentials
from app.apis.credentials.stored_credentials import PreparedCredential, StoredCredentials, prepare
from app.apis.documents.fetch import check_server, server_remark
from app.apis.documents.read_process import ReadRequest
from app.apis.documents.reader import DocumentReader
from app.apis.documents.routes import (
    ApiPatch,
    ApiRequest,
    Reader,
    Readers,
    content_of,
    fetch_for,
    untrusted_remarks,
)
from app.apis.documents.stored import ApiReaders, read_api, read_former, read_request
from app.apis.mcp import listing
from app.apis.mcp.calls import mcp_callers
from app.apis.mcp.connection import McpServers
from app.apis.naming import Naming
from app.apis.presentation import AS_WRITTEN, AppView, OperationView, Presentation
from app.apis.servers import address, check_reachable
from app.apis.trial_questions import CallPlan, SampleCall
from app.apis.trials import ShownTrial, Tried, TriedTurn
from app.apis.values import recordable
from app.base.errors import HostError, InvalidError
from app.base.fields import Text, columns
from app.base.secrets import SecretValues
from app.base.values import Json, hosted_id
from app.db import tables
from app.db.tables import AuditAction, PracticeSource
from app.engine.model_scope import ModelScope, trial_remark
from app.projects import audit
from app.projects.authorization import find_project
from app.releases import manifest, tools
from app.releases import store as releases
from app.releases.refresh import record_change
from app.sandbox.protocol import RefusalError
from app.tasks.requests import Principal
from app.web.access import Access, Caller, Db
from app.web.fields import ConsoleLinks, ProjectName
from app.web.problem import CHANGE, READ, problems
from app.web.requests import DocumentRequest

TrialStatus = Literal["waiting", "running", "done", "not_tried", "off"]
_OF_DOCUMENT = ("description", "base_url", "variables", "operations", "prompt_signatures", "left_out")

_SECONDS = 30.0
_SHOWN_CHARS = 4_000


class TriedView(msgspec.Struct, frozen=True, kw_only=True):
    """A question, the right answer by the API itself, and the one that was `given`.

    `correct` is null until it was asked. `stop` is why the agent stopped, as that of a task.
    """

    question: str
    right: Json
    given: Json
    correct: bool | None
    stop: str | None
    detail: str
    calls: int  #: to APIs
    tokens: int  #: that the model read and generated
    turns: Sequence[TriedTurn] = ()  #: of the agent; at `/v1/apis/{name}/trial` alone

    @classmethod
    def of(cls, tried: Tried, *, turns: bool) -> "TriedView":
        return cls(**columns(tried, TriedView, "turns"), turns=tried.turns if turns else ())


class TrialSummary(msgspec.Struct, frozen=True, kw_only=True):
    """How many of the `asked` questions about an API were answered right: so far, until it is done."""

    state: TrialStatus
    right: int
    asked: int
    reason: str | None  #: why it was not tried, or waits
    remark: str | None  #: what to do, if the model cannot use the API
    release: int | None  #: the number of the release that was asked; null before, and where it is gone
    model: str | None  #: that of the release; a hosted one by its name
    outdated_by: int | None  #: the release that serves now, if it may answer otherwise: it will be asked, too
    finished_at: datetime | None

    @classmethod
    def of(cls, trial: ShownTrial | None) -> "TrialSummary":
        return TrialSummary(**_fields(trial))


class TrialView(TrialSummary, frozen=True, kw_only=True):
    """The latest trial of an API: questions that the server made of what the API answers, and put to the model.

    It is repeated when the document, the weights, the prompt or the model is another one.
    """

    questions: list[TriedView]

    @classmethod
    def full(cls, trial: ShownTrial | None, *, turns: bool = False) -> "TrialView":
        tried = [] if trial is None else trials.tried_of(trial.row)
        return TrialView(questions=[TriedView.of(each, turns=turns) for each in tried], **_fields(trial))


class ApiTrialController(Controller):
    path = "/apis/{name:str}/trial"
    tags = ("APIs",)
    opt = {"scope": "tasks"}  # noqa: RUF012

    @get(summary="Show the trial of an API", responses=READ)
    async def show_trial(
        self, name: FromPath[str], session: Db, access: Caller, project: ProjectName = None
    ) -> TrialView:
        """With the turns of the agent."""
        owner = await find_project(session, access, project)
        row = await apis.get(session, owner.id, name, document=False)
        return TrialView.full(await trials.of_api(session, row.id), turns=True)

    @post(opt={"scope": "admin"}, status_code=202, summary="Try an API again", responses=READ)
    async def try_again(
        self, name: FromPath[str], session: Db, access: Caller, project: ProjectName = None
    ) -> TrialView:
        """Also one that was added without a trial. It begins once no task waits."""
        owner = await find_project(session, access, project)
        return TrialView.full(await renew_trial(session, owner.id, name))


async def renew_trial(session: AsyncSession, project_id: UUID, name: str) -> ShownTrial:
    """Raises NotFoundError."""
    api = await apis.get(session, project_id, name, document=False)
    row = await trials.renew(session, project_id, api.id, wanted=True)
    await session.commit()
    return ShownTrial(row)


def _fields(trial: ShownTrial | None) -> dict[str, Json]:
    if trial is None:  # the runner finds the API
        nothing = dict.fromkeys(("reason", "remark", "release", "model", "outdated_by", "finished_at"))
        return {"state": "waiting", "right": 0, "asked": 0, **nothing}
    row, made = trial
    score = trial.score
    return {
        "release": None if made is None else made.release,
        "model": None if made is None else made.hosted or made.model,
        "outdated_by": None if made is None or row.finished_at is None else made.outdated_by,
        "state": "running" if trials.is_under_way(row) else row.state.value,
        "right": row.correct,
        "asked": row.asked,
        "reason": row.reason,
        "remark": None if score is None else trial_remark(*score),
        "finished_at": row.finished_at,
    }


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
        return ApiSummary(trial=TrialSummary.of(trial), **_summary(row, project))


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
            credentials=shared_credentials(app.schemes, stored, has_token=row.has_token),
            trial=TrialView.full(trial),
            remarks=list(remarks),
            **_summary(row, project),
            **{name: getattr(app, name) for name in _OF_DOCUMENT},
        )


def _summary(row: tables.Api, project: str) -> dict[str, Any]:
    links = ConsoleLinks.to(f"/console/apis/{row.name}", project)
    computed = {"project": project, "links": links, "naming": apis.presentation_of(row).naming}
    return computed | columns(row, ApiSummary, "trial", *computed)


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
        readers: Readers,
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

    @get(summary="List APIs", responses=READ)
    async def index(self, session: Db, access: Caller, project: ProjectName = None) -> list[ApiSummary]:
        """Sorted by name. Tokens are never shown."""
        owner = await find_project(session, access, project)
        tried = await trials.of_project(session, owner.id)
        return [
            ApiSummary.of(row, owner.name, tried.get(row.id)) for row in await apis.of_project(session, owner.id)
        ]

    @get("/{name:str}", summary="Show an API and its operations", responses=READ)
    async def show(
        self,
        name: FromPath[str],
        session: Db,
        access: Caller,
        document_reader: Reader,
        project: ProjectName = None,
    ) -> ApiView:
        owner = await find_project(session, access, project)
        row = await apis.get(session, owner.id, name, document=False)
        stored = await credentials.of_api(session, row.id)
        app = await read_api(document_reader, session, row, row.bind)
        return ApiView.full(row, owner.name, app, stored, await trials.of_api(session, row.id))

    @patch(
        "/{name:str}",
        opt={"scope": "admin"},
        summary="Change the token, the bindings or the practice of an API",
        responses=CHANGE,
    )
    async def change(
        self,
        name: FromPath[str],
        data: JSONBody[ApiPatch],
        session: Db,
        access: Caller,
        document_reader: Reader,
        project: ProjectName = None,
    ) -> ApiView:
        """Effective from the next task on."""
        owner = await find_project(session, access, project)
        return await change_api(session, access, owner, name, data, document_reader)

    @delete("/{name:str}", opt={"scope": "admin"}, summary="Remove an API", responses=READ)
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
    http_client, document_reader = readers.http_client, readers.document_reader
    fetch = fetch_for(data, project.id, readers)
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
        source=data.url or (data.mcp or apis.UPLOADED).rstrip("/"),
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
        await credentials.end_attempts(session, row.id)
    stored = await _complete(session, access, row, before, data, prepared)
    await manifest.update_tools(session, serving, [data.name], access.actor)
    if former is not None and former.app is not None and former.app.digest != app.digest:
        await record_change(session, row, former.app, app, applied=True)
    if any(each.authorized for each in stored if not app.operations):
        await listing.mark_connected(session, row.id)
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
    trial = await trials.of_api(session, row.id)
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
        await credentials.forget_uses(session, row.id)
    detail |= {"credentials": [each.scheme for each in prepared]} if prepared else {}
    await audit.add(session, row.project_id, None, access.actor, AuditAction.API_CHANGED, detail)
    return await credentials.of_api(session, row.id)


async def _trial(
    session: AsyncSession, row: tables.Api, before: dict[str, Json], data: ApiRequest
) -> ShownTrial | None:
    """The trial of an API that was put: a new one, if it reads otherwise than before, or if that is wanted."""
    now = apis.about(row)
    same = all(before.get(each) == now[each] for each in ("digest", "presentation", "server"))
    if same and data.trial is UNSET:
        return await trials.of_api(session, row.id)
    wanted = None if data.trial is UNSET else data.trial
    return ShownTrial(await trials.renew(session, row.project_id, row.id, wanted=wanted))


class _Former(msgspec.Struct, frozen=True):
    """The API that is replaced."""

    row: tables.Api
    seen: object
    app: AppView | None  # see `read_former`


async def _former(session: AsyncSession, reader: DocumentReader, project_id: UUID, name: str) -> _Former | None:
    """Ends the transaction."""
    row = await apis.find(session, project_id, name)
    if row is None:
        await session.commit()
        return None
    return _Former(row, apis.state_of(row), await read_former(reader, session, row))


async def _check_server(session: AsyncSession, former: _Former, app: AppView, data: ApiRequest) -> None:
    """Raises ApiDocumentError for secrets that would stay, and go to another server."""
    row = former.row
    held = ["bearer_token"] if data.bearer_token is UNSET and row.token else []
    for each in await credentials.of_api(session, row.id):
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
    presented = new if former is None else apis.presentation_of(former.row)
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
    data: ApiRequest, app: AppView, model_scope: ModelScope, trial: ShownTrial | None, client: httpx.AsyncClient
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


class ApiCallRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Without an `operation`, one that needs no arguments is chosen, if possible one that needs credentials.

    It has to be one that only reads.
    """

    operation: Annotated[Text, msgspec.Meta(max_length=200)] = ""
    arguments: dict[str, Json] = {}
    variables: Annotated[dict[str, Text], msgspec.Meta(max_length=100)] = {}
    principal: Principal = ""


class ApiCallView(msgspec.Struct, frozen=True, kw_only=True):
    """What came back: the beginning of the `answer` as JSON, or the `error` that the agent would get.

    `credentials` names the security schemes whose credentials were sent.
    """

    operation: str
    ok: bool
    status: int | None = None
    answer: str | None = None
    error: str | None = None
    credentials: list[str] = []
    seconds: float


class ApiCallController(Controller):
    path = "/apis/{name:str}/test"
    tags = ("APIs",)
    opt = {"scope": "admin"}  # noqa: RUF012

    @post(status_code=200, summary="Test an API by one call", responses=READ)
    async def try_out(
        self,
        name: FromPath[str],
        data: JSONBody[ApiCallRequest],
        session: Db,
        access: Caller,
        readers: Readers,
        project: ProjectName = None,
    ) -> ApiCallView:
        """With the stored credentials, as a task would. An error of the API is an answer of this route."""
        owner = await find_project(session, access, project)
        return await call_api(session, owner, name, data, readers)


async def call_api(
    session: AsyncSession, owner: tables.Project, name: str, data: ApiCallRequest, readers: ApiReaders
) -> ApiCallView:
    """One call, as a task would make it. Raises NotFoundError, InvalidError that names the field."""
    row = await apis.get(session, owner.id, name, document=False)
    document = await tools.api_document(session, row)
    content = await apis.document(session, row.id, row.digest)
    request = read_request(row, row.bind)
    held = frozenset(await credentials.usable(session, row.id, data.principal))
    await session.commit()  # no transaction is held during the call
    plan = CallPlan(data.operation, data.arguments, held, document.token is not None)
    call = await readers.document_reader.sample_call(request, content, plan)
    call = msgspec.structs.replace(call, app=tools.trusting(call.app, document))
    stored = StoredCredentials(readers.sessions, readers.http_client, [document], data.principal)
    secrets = RequestSecrets(data.variables, stored, None, SecretValues())
    async with McpServers(readers.http_client, readers.mcp_commands) as servers:
        special = mcp_callers(servers, owner.id, data.principal, _SECONDS)
        caller = AuthenticatedCaller(HttpCaller(readers.http_client, timeout=_SECONDS), secrets, special)
        view = await _made(call, caller, data)
    return msgspec.structs.replace(view, credentials=stored.used)


async def _made(call: SampleCall, caller: AuthenticatedCaller, data: ApiCallRequest) -> ApiCallView:
    operation = call.app.operations[call.operation]
    try:
        url = address(call.app, operation.server or call.app.server, data.variables) + call.request.target
    except ValueError as error:
        raise InvalidError(f"variables: {error}") from error
    started = time.perf_counter()
    try:
        answer = await caller.send(call.app, operation, url, call.request)
    except HostError as error:
        seconds = time.perf_counter() - started
        status = error.status if isinstance(error, RefusalError) else None
        reason = caller.mask(error.message)
        return ApiCallView(operation=call.operation, ok=False, status=status, error=reason, seconds=seconds)
    seconds = time.perf_counter() - started
    text = caller.mask(msgspec.json.encode(recordable(answer.value)).decode())[:_SHOWN_CHARS]
    return ApiCallView(operation=call.operation, ok=True, status=answer.status, answer=text, seconds=seconds)
