"""One API: its operations, credentials, a call to test it, changes of its document, refreshing and deleting."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import httpx
import msgspec
from litestar import Controller, Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery
from litestar.response import Redirect
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.api_call import ApiCallRequest, ApiCallView, call_api
from app.api.api_changes import refresh_document
from app.api.api_consent import CredentialPlace, connect_api
from app.api.api_content import ApiReaders
from app.api.api_credentials import delete_credential, store_credential
from app.api.api_operations import operation_states
from app.api.api_practice import compare_api, practice_of
from app.api.api_reading import read_api
from app.api.api_request import ApiPatch
from app.api.api_trial import TrialView, renew_trial
from app.api.api_view import ApiView
from app.api.apis import change_api, remove_api
from app.apis.app_view import OperationView
from app.apis.document_reader import DocumentReader
from app.base.errors import ApiDocumentError, ConflictError, InvalidError
from app.base.text import numbered
from app.base.untrusted import JsonError, decode_json
from app.console.credential_form import FIELDS, CredentialFields, PrincipalFields
from app.db import api_changes, api_credentials, api_trials, apis, failed_calls
from app.db.api_credentials import STATIC_TOKEN
from app.db.database import Sessions
from app.db.tables import PracticeSource
from app.web.access import Db
from app.web.forms import Form, read_form
from app.web.pages import Visit, Visitor, after_change, page

_ADMIN: Mapping[str, Any] = {"scope": "admin"}
_SHOWN = 100  # operations


class CallFields(msgspec.Struct, frozen=True):
    """The form of a call that tests an API."""

    operation: str = ""
    arguments: str = "{}"

    def request(self) -> ApiCallRequest:
        """Raises InvalidError."""
        try:
            arguments = decode_json(self.arguments.encode(), max_values=10_000, max_depth=50)
        except JsonError as error:
            raise InvalidError(f"arguments: {error}") from error
        if not isinstance(arguments, dict):
            raise InvalidError('arguments: write an object, such as {"page": 1}')
        return ApiCallRequest(operation=self.operation, arguments=arguments)


class PracticeFields(msgspec.Struct, frozen=True):
    """The form that says what practice on an API is made of."""

    practice: PracticeSource


class Tested(NamedTuple):
    """The form of a call, and its answer if it was made."""

    form: Form[CallFields] = Form()
    answer: ApiCallView | None = None


class Refused(NamedTuple):
    """The form of the page that something is wrong with."""

    scheme: str | None = None  # of the credential
    form: Form[Any] = Form()


class ApiPage(Controller):
    path = "/apis/{name:str}"
    opt = {"scope": "tasks"}  # noqa: RUF012

    @get()
    async def show(
        self,
        name: FromPath[str],
        visit: Visitor,
        session: Db,
        document_reader: NamedDependency[DocumentReader],
        q: FromQuery[str] = "",
    ) -> Response[str]:
        return await _page(visit, session, document_reader, name, words=q)

    @post("/test", opt=_ADMIN)
    async def call(
        self,
        name: FromPath[str],
        request: Request[Any, Any, Any],
        visit: Visitor,
        session: Db,
        readers: NamedDependency[ApiReaders],
    ) -> Response[str]:
        """Answers with the page and what the API answered."""
        form = await read_form(request, CallFields)
        answer = None
        try:
            wanted = (form.value or CallFields()).request()
            answer = await call_api(session, visit.project, name, wanted, readers)
        except InvalidError as error:
            await session.rollback()
            form = form.refused(error)
        return await _page(visit, session, readers.document_reader, name, tested=Tested(form, answer))

    @get("/trial")
    async def trial(self, name: FromPath[str], visit: Visitor, session: Db) -> Response[str]:
        """The part of the page that changes while the API is tried."""
        row = await apis.get(session, visit.project.id, name, document=False)
        trial = TrialView.full(await api_trials.of_api(session, row.id), turns=True)
        return page(visit, "api_trial.html", name=name, trial=trial)

    @post("/trial", opt=_ADMIN)
    async def try_again(self, name: FromPath[str], visit: Visitor, session: Db) -> Redirect:
        await renew_trial(session, visit.project.id, name)
        return after_change(f"{_address(visit, name)}#trial", f"{name} will be tried once no task waits")

    @get("/practice")
    async def practice(
        self,
        name: FromPath[str],
        visit: Visitor,
        session: Db,
        document_reader: NamedDependency[DocumentReader],
    ) -> Response[str]:
        """The part of the page that may take some seconds."""
        row = await apis.get(session, visit.project.id, name, document=False)
        practice = await practice_of(session, document_reader, row)
        return page(visit, "api_practice.html", name=name, practice=practice)

    @post("/practice", opt=_ADMIN)
    async def set_practice(
        self,
        name: FromPath[str],
        request: Request[Any, Any, Any],
        visit: Visitor,
        session: Db,
        document_reader: NamedDependency[DocumentReader],
    ) -> Redirect:
        practice = (await read_form(request, PracticeFields)).given().practice
        patch = ApiPatch(practice=practice)
        await change_api(session, visit.access, visit.project, name, patch, document_reader)
        made_of = "its document" if practice is PracticeSource.DOCUMENT else "its document and what it answers"
        return after_change(f"{_address(visit, name)}#practice", f"practice on {name} is made of {made_of}")

    @post("/practice/compare", opt=_ADMIN)
    async def compare(
        self, name: FromPath[str], visit: Visitor, session: Db, readers: NamedDependency[ApiReaders]
    ) -> Redirect:
        try:
            found = await compare_api(session, visit.project, name, readers)
        except (ConflictError, InvalidError) as error:
            return after_change(f"{_address(visit, name)}#practice", f"{name} could not be compared: {error}")
        differences = numbered(len(found.differences), "difference")
        said = f"{numbered(found.calls, 'call')} to {name}: {differences} from its document"
        return after_change(f"{_address(visit, name)}#practice", said)

    @post("/refresh", opt=_ADMIN)
    async def refresh(
        self,
        name: FromPath[str],
        visit: Visitor,
        session: Db,
        sessions: NamedDependency[Sessions],
        http_client: NamedDependency[httpx.AsyncClient],
        document_reader: NamedDependency[DocumentReader],
    ) -> Redirect:
        found = await refresh_document(
            session, visit.access, sessions, visit.project, name, document_reader, http_client
        )
        if found.failure is not None:
            return after_change(_address(visit, name), f"The document could not be refreshed: {found.failure}")
        changed = "has not changed" if found.change is None else "has changed: see below"
        return after_change(_address(visit, name), f"The document {changed}.")

    @post("/delete", opt=_ADMIN)
    async def delete(self, name: FromPath[str], visit: Visitor, session: Db) -> Redirect:
        await remove_api(session, visit.access, visit.project, name)
        return after_change(visit.url("/console/apis"), f"deleted the API {name}")

    @post("/credentials/{scheme:str}", opt=_ADMIN)
    async def store(
        self,
        name: FromPath[str],
        scheme: FromPath[str],
        request: Request[Any, Any, Any],
        visit: Visitor,
        session: Db,
        http_client: NamedDependency[httpx.AsyncClient],
        document_reader: NamedDependency[DocumentReader],
    ) -> Response[Any]:
        form = await read_form(request, CredentialFields)
        try:
            fields = form.value or CredentialFields()
            if form.value is not None and scheme == STATIC_TOKEN:
                patch = ApiPatch(bearer_token=fields.token())
                await change_api(session, visit.access, visit.project, name, patch, document_reader)
            elif form.value is not None:
                place = CredentialPlace(name, scheme, fields.principal)
                await store_credential(
                    session, visit.access, visit.project, place, fields.credential(), http_client, document_reader
                )
        except InvalidError as error:
            await session.rollback()
            form = form.refused(error)
        if form.status != 200:
            return await _page(visit, session, document_reader, name, refused=Refused(scheme, form))
        return after_change(_address(visit, name), f"stored the credentials {scheme}")

    @post("/credentials/{scheme:str}/delete", opt=_ADMIN)
    async def delete_stored(
        self,
        name: FromPath[str],
        scheme: FromPath[str],
        request: Request[Any, Any, Any],
        visit: Visitor,
        session: Db,
        document_reader: NamedDependency[DocumentReader],
    ) -> Redirect:
        principal = (await read_form(request, PrincipalFields)).given().principal
        if scheme == STATIC_TOKEN:
            await change_api(
                session, visit.access, visit.project, name, ApiPatch(bearer_token=None), document_reader
            )
        else:
            place = CredentialPlace(name, scheme, principal)
            await delete_credential(session, visit.access, visit.project, place)
        return after_change(_address(visit, name), f"deleted the credentials {scheme}")

    @post("/credentials/{scheme:str}/connect", opt=_ADMIN)
    async def connect(  # noqa: PLR0913 - the parts that it needs
        self,
        name: FromPath[str],
        scheme: FromPath[str],
        request: Request[Any, Any, Any],
        visit: Visitor,
        session: Db,
        http_client: NamedDependency[httpx.AsyncClient],
        document_reader: NamedDependency[DocumentReader],
        public_url: NamedDependency[str],
    ) -> Response[str]:
        """A page with the way to the authorization server: forms may lead to this server only."""
        principal = (await read_form(request, PrincipalFields)).given().principal
        place = CredentialPlace(name, scheme, principal)
        consent = await connect_api(session, visit.project, place, public_url, http_client, document_reader)
        return page(visit, "api_connect.html", name=name, scheme=scheme, principal=principal, consent=consent)


async def _page(
    visit: Visit,
    session: AsyncSession,
    reader: DocumentReader,
    name: str,
    *,
    words: str = "",
    tested: Tested = Tested(),  # noqa: B008  immutable
    refused: Refused = Refused(),  # noqa: B008
) -> Response[str]:
    row = await apis.get(session, visit.project.id, name, document=False)
    stored = await api_credentials.of_api(session, row.id)
    changes = await api_changes.of_api(session, row.id)
    failures = await failed_calls.of_api(session, visit.project.id, name)
    try:
        app = await read_api(reader, session, row, row.bind)
    except ApiDocumentError as error:  # one that an earlier version of this server stored, or a lost one
        return page(visit, "api_unreadable.html", api=row, problem=str(error))
    trial = await api_trials.of_api(session, row.id)
    api = ApiView.full(row, visit.project.name, app, stored, trial)
    parts = words.lower().split()
    found = [each for each in api.operations if all(part in _searched(each) for part in parts)]
    return page(
        visit,
        "api.html",
        api=api,
        name=name,
        trial=TrialView.full(trial, turns=True),
        traits=app.traits,
        overridden=[each for each in operation_states(app) if each.set],
        found=found[:_SHOWN],
        more=len(found) - _SHOWN,
        own=[each for each in stored if each.principal] if visit.allows("admin") else [],
        fields=FIELDS,
        changes=changes,
        failures=failures,
        most_tasks=failed_calls.MOST_TASKS,
        practised=await apis.is_documented(session, visit.project.id, name),
        test=tested.form,
        answer=tested.answer,
        refused=refused,
        none_entered=Form(),
        status=max(tested.form.status, refused.form.status),
    )


def _searched(operation: OperationView) -> str:
    return f"{operation.name} {operation.path} {operation.summary}".lower()


def _address(visit: Visit, name: str) -> str:
    return visit.url(f"/console/apis/{name}")
