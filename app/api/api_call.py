"""A route that calls one operation of an API, to see whether it answers."""

import time
from typing import Annotated

import msgspec
from litestar import Controller, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.api_content import ApiReaders
from app.api.api_reading import read_request
from app.api.submission import Principal
from app.apis.address import address
from app.apis.binary_values import recordable
from app.apis.sample_call import CallPlan, SampleCall
from app.base.errors import HostError, InvalidError
from app.base.secrets import SecretValues
from app.base.values import Json
from app.credentials.stored_credentials import StoredCredentials
from app.db import api_credentials, apis, manifests, tables
from app.gateway.authenticated_caller import AuthenticatedCaller
from app.gateway.callers import Callers
from app.gateway.http_call import HttpCaller
from app.gateway.mcp_client.connection_pool import McpServers
from app.gateway.mcp_client.mcp_calls import mcp_callers
from app.gateway.request_secrets import RequestSecrets
from app.projects.authorization import find_project
from app.release import tool_documents
from app.sandbox.protocol import RefusalError
from app.web.access import Caller, Db
from app.web.fields import ProjectName, Text
from app.web.problem import problems

_SECONDS = 30.0
_SHOWN_CHARS = 4_000


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

    @post(status_code=200, summary="Test an API by one call", responses=problems(400, 401, 403, 404))
    async def try_out(
        self,
        name: FromPath[str],
        data: JSONBody[ApiCallRequest],
        session: Db,
        access: Caller,
        readers: NamedDependency[ApiReaders],
        project: ProjectName = None,
    ) -> ApiCallView:
        """With the stored credentials, as a task would. An error of the API is an answer of this route."""
        owner = await find_project(session, access, project)
        return await call_api(session, owner, name, data, readers)


async def call_api(
    session: AsyncSession,
    owner: tables.Project,
    name: str,
    data: ApiCallRequest,
    readers: ApiReaders,
) -> ApiCallView:
    """One call, as a task would make it. Raises NotFoundError, InvalidError that names the field."""
    row = await apis.get(session, owner.id, name, document=False)
    document = await tool_documents.api_document(session, row)
    content = await manifests.document(session, row.id, row.digest)
    request = read_request(row, row.bind)
    held = frozenset(await api_credentials.usable(session, row.id, data.principal))
    await session.commit()  # no transaction is held during the call
    plan = CallPlan(data.operation, data.arguments, held, document.token is not None)
    call = await readers.document_reader.sample_call(request, content, plan)
    call = msgspec.structs.replace(call, app=tool_documents.trusting(call.app, document))
    credentials = StoredCredentials(readers.sessions, readers.http_client, [document], data.principal)
    secrets = RequestSecrets(data.variables, credentials, None, SecretValues())
    async with McpServers(readers.http_client, readers.mcp_commands) as servers:
        special = mcp_callers(servers, owner.id, data.principal, _SECONDS)
        callers = Callers(HttpCaller(readers.http_client, timeout=_SECONDS), special)
        view = await _made(call, AuthenticatedCaller(callers, secrets), data)
    return msgspec.structs.replace(view, credentials=credentials.used)


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
