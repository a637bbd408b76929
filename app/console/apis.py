"""The APIs of a project: the list, and the form that registers one by a document or an MCP server."""

from typing import Any

import msgspec
from litestar import Controller, Request, Response, get, post
from litestar.datastructures import UploadFile
from litestar.di import NamedDependency
from msgspec import UNSET

from app.api.api_content import ApiReaders
from app.api.api_fields import McpServer, Server, Token, Url
from app.api.api_request import ApiRequest
from app.api.api_view import ApiSummary, ApiView
from app.api.apis import register_api
from app.api.credential_view import CredentialView
from app.base.errors import InvalidError
from app.db import api_credentials, api_trials, apis
from app.engine.model_scope import ModelScope
from app.web.access import Db
from app.web.fields import AppName, Text
from app.web.forms import Form, read_form
from app.web.pages import Visit, Visitor, after_change, page


class ApiFields(msgspec.Struct, frozen=True, kw_only=True):
    """The form of a new API. A file takes the place of `document`."""

    name: AppName
    url: Url | None = None
    document: Text | None = None
    mcp: McpServer | None = None
    server: Server | None = None
    bearer_token: Token | None = None
    without_trial: bool = False

    def request(self, file: str | None) -> ApiRequest:
        document = file or self.document
        return ApiRequest(
            name=self.name,
            url=self.url,
            document=UNSET if document is None else document,
            mcp=self.mcp,
            server=self.server,
            bearer_token=self.bearer_token or UNSET,
            trial=False if self.without_trial else UNSET,
        )


class ApiPages(Controller):
    path = "/apis"
    opt = {"scope": "tasks"}  # noqa: RUF012

    @get()
    async def index(self, visit: Visitor, session: Db) -> Response[str]:
        rows, admin = await apis.of_project(session, visit.project.id), visit.allows("admin")
        stored = await api_credentials.of_project(session, visit.project.id)
        views = {
            id_: [CredentialView.stored(row, None) for row in found if admin or not row.principal]
            for id_, found in stored.items()
        }
        trials = await api_trials.of_project(session, visit.project.id)
        summaries = [ApiSummary.of(row, visit.project.name, trials.get(row.id)) for row in rows]
        return page(visit, "apis.html", apis=summaries, credentials=views)

    @get("/new-api", opt={"scope": "admin"})
    async def ask(self, visit: Visitor) -> Response[str]:
        return _form(visit, Form())

    @post("/new-api", opt={"scope": "admin"})
    async def register(
        self,
        request: Request[Any, Any, Any],
        visit: Visitor,
        session: Db,
        readers: NamedDependency[ApiReaders],
        model_scope: NamedDependency[ModelScope],
    ) -> Response[Any]:
        form = await read_form(request, ApiFields)
        if form.value is None:
            return _form(visit, form)
        try:
            wanted = form.value.request(await _file(request))
            api = await register_api(session, visit.access, visit.project, wanted, readers, model_scope)
        except InvalidError as error:
            await session.rollback()
            return _form(visit, form.refused(error))
        return after_change(visit.url(f"/console/apis/{api.name}"), _done(api))


def _form(visit: Visit, form: Form[ApiFields]) -> Response[str]:
    return page(visit, "api_new.html", form=form, status=form.status)


def _done(api: ApiView) -> str:
    remarks = [f"{remark[:1].upper()}{remark[1:]}." for remark in api.remarks]
    return " ".join([f"Registered {api.name} with {len(api.operations)} operations.", *remarks])


async def _file(request: Request[Any, Any, Any]) -> str | None:
    """Raises InvalidError for one that is no text."""
    file = (await request.form()).get("file")
    if not isinstance(file, UploadFile) or not file.filename:
        return None
    try:
        return (await file.read()).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidError(f"file: {file.filename} is no text in UTF-8") from error
