"""The APIs of a project in the console: the list, the form that registers one, and the page of one.

The page has its operations, with a form of what a person sets for each, its credentials, a call to test it, and
the changes of its document. What a new task can call is listed for the form that sends one.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from litestar import Controller, Response, get, post
from litestar.datastructures import UploadFile
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery
from litestar.response import Redirect
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis import store as apis
from app.apis import trials
from app.apis.credentials import store as credentials
from app.apis.credentials.credential import Credential, bearer
from app.apis.credentials.requests import CredentialView, shared_credentials
from app.apis.credentials.routes import CredentialPlace, connect_api, delete_credential, store_credential
from app.apis.credentials.schemes import UNFIT_FOR_HEADERS
from app.apis.credentials.store import STATIC_TOKEN
from app.apis.documents.reader import DocumentReader
from app.apis.documents.routes import (
    ApiPatch,
    ApiRequest,
    Approval,
    Description,
    McpServer,
    OperationPatch,
    OperationPlace,
    PythonName,
    Reader,
    Readers,
    Server,
    Token,
    Url,
    find_override,
    operation_states,
    refresh_document,
    set_for_operation,
)
from app.apis.documents.stored import read_api
from app.apis.double.routes import compare_api, practice_of
from app.apis.presentation import AppView, OperationOverride, OperationView
from app.apis.routes import (
    ApiCallRequest,
    ApiCallView,
    ApiSummary,
    ApiView,
    TrialView,
    call_api,
    change_api,
    register_api,
    remove_api,
    renew_trial,
)
from app.base.errors import ApiDocumentError, ConflictError, InvalidError
from app.base.fields import AppName, Text
from app.base.text import numbered
from app.base.untrusted import JsonError, decode_json
from app.db import tables
from app.db.tables import PracticeSource
from app.engine.model_scope import ModelScope
from app.tasks.requests import Principal
from app.web.access import Db
from app.web.forms import Form, read_form
from app.web.pages import Visit, Visitor, after_change, page
from app.web.problem import AnyRequest

_ADMIN: Mapping[str, Any] = {"scope": "admin"}
_SHOWN = 100  # operations

_OAUTH: Final = ("client_id", "client_secret", "value")
FIELDS: Final = {
    "api_key": ("value",),
    "http": ("value",),
    "basic": ("username", "password"),
    "oauth2": _OAUTH,
    "openid": _OAUTH,
    "mutual_tls": ("certificate",),
}
"""By the kind of a scheme."""

_READ = 10  # documents
_OPERATIONS_SHOWN = 30  # operations of each


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
        given = {name: each for name, each in msgspec.structs.asdict(self).items() if each}
        given |= {"document": file} if file else {}
        given |= {"trial": False} if given.pop("without_trial", False) else {}
        return ApiRequest(**given)


class ApiPages(Controller):
    path = "/apis"
    opt = {"scope": "tasks"}  # noqa: RUF012

    @get()
    async def index(self, visit: Visitor, session: Db) -> Response[str]:
        rows, admin = await apis.of_project(session, visit.project.id), visit.allows("admin")
        stored = await credentials.of_project(session, visit.project.id)
        views = {
            id_: [CredentialView.stored(row, None) for row in found if admin or not row.principal]
            for id_, found in stored.items()
        }
        tried = await trials.of_project(session, visit.project.id)
        summaries = [ApiSummary.of(row, visit.project.name, tried.get(row.id)) for row in rows]
        return page(visit, "apis.html", apis=summaries, credentials=views)

    @get("/new-api", opt={"scope": "admin"})
    async def ask(self, visit: Visitor) -> Response[str]:
        return _form(visit, Form())

    @post("/new-api", opt={"scope": "admin"})
    async def register(
        self,
        request: AnyRequest,
        visit: Visitor,
        session: Db,
        readers: Readers,
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


async def _file(request: AnyRequest) -> str | None:
    """Raises InvalidError for one that is no text."""
    file = (await request.form()).get("file")
    if not isinstance(file, UploadFile) or not file.filename:
        return None
    try:
        return (await file.read()).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidError(f"file: {file.filename} is no text in UTF-8") from error


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
        self, name: FromPath[str], visit: Visitor, session: Db, document_reader: Reader, q: FromQuery[str] = ""
    ) -> Response[str]:
        return await _page(visit, session, document_reader, name, words=q)

    @post("/test", opt=_ADMIN)
    async def call(
        self, name: FromPath[str], request: AnyRequest, visit: Visitor, session: Db, readers: Readers
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
        trial = TrialView.full(await trials.of_api(session, row.id), turns=True)
        return page(visit, "api_trial.html", name=name, trial=trial)

    @post("/trial", opt=_ADMIN)
    async def try_again(self, name: FromPath[str], visit: Visitor, session: Db) -> Redirect:
        await renew_trial(session, visit.project.id, name)
        return after_change(f"{_address(visit, name)}#trial", f"{name} will be tried once no task waits")

    @get("/practice")
    async def practice(
        self, name: FromPath[str], visit: Visitor, session: Db, document_reader: Reader
    ) -> Response[str]:
        """The part of the page that may take some seconds."""
        row = await apis.get(session, visit.project.id, name, document=False)
        practice = await practice_of(session, document_reader, row)
        return page(visit, "api_practice.html", name=name, practice=practice)

    @post("/practice", opt=_ADMIN)
    async def set_practice(
        self, name: FromPath[str], request: AnyRequest, visit: Visitor, session: Db, document_reader: Reader
    ) -> Redirect:
        practice = (await read_form(request, PracticeFields)).given().practice
        patch = ApiPatch(practice=practice)
        await change_api(session, visit.access, visit.project, name, patch, document_reader)
        made_of = "its document" if practice is PracticeSource.DOCUMENT else "its document and what it answers"
        return after_change(f"{_address(visit, name)}#practice", f"practice on {name} is made of {made_of}")

    @post("/practice/compare", opt=_ADMIN)
    async def compare(self, name: FromPath[str], visit: Visitor, session: Db, readers: Readers) -> Redirect:
        try:
            found = await compare_api(session, visit.project, name, readers)
        except (ConflictError, InvalidError) as error:
            return after_change(f"{_address(visit, name)}#practice", f"{name} could not be compared: {error}")
        differences = numbered(len(found.differences), "difference")
        said = f"{numbered(found.calls, 'call')} to {name}: {differences} from its document"
        return after_change(f"{_address(visit, name)}#practice", said)

    @post("/refresh", opt=_ADMIN)
    async def refresh(self, name: FromPath[str], visit: Visitor, session: Db, readers: Readers) -> Redirect:
        found = await refresh_document(session, visit.access, visit.project, name, readers)
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
        request: AnyRequest,
        visit: Visitor,
        session: Db,
        readers: Readers,
    ) -> Response[Any]:
        form = await read_form(request, CredentialFields)
        client, reader = readers.http_client, readers.document_reader
        try:
            fields = form.value or CredentialFields()
            if form.value is not None and scheme == STATIC_TOKEN:
                patch = ApiPatch(bearer_token=fields.token())
                await change_api(session, visit.access, visit.project, name, patch, reader)
            elif form.value is not None:
                place, given = CredentialPlace(name, scheme, fields.principal), fields.credential()
                await store_credential(session, visit.access, visit.project, place, given, client, reader)
        except InvalidError as error:
            await session.rollback()
            form = form.refused(error)
        if form.status != 200:
            return await _page(visit, session, reader, name, refused=Refused(scheme, form))
        return after_change(_address(visit, name), f"stored the credentials {scheme}")

    @post("/credentials/{scheme:str}/delete", opt=_ADMIN)
    async def delete_stored(
        self,
        name: FromPath[str],
        scheme: FromPath[str],
        request: AnyRequest,
        visit: Visitor,
        session: Db,
        document_reader: Reader,
    ) -> Redirect:
        principal = (await read_form(request, PrincipalFields)).given().principal
        if scheme == STATIC_TOKEN:
            patch = ApiPatch(bearer_token=None)
            await change_api(session, visit.access, visit.project, name, patch, document_reader)
        else:
            place = CredentialPlace(name, scheme, principal)
            await delete_credential(session, visit.access, visit.project, place)
        return after_change(_address(visit, name), f"deleted the credentials {scheme}")

    @post("/credentials/{scheme:str}/connect", opt=_ADMIN)
    async def connect(
        self,
        name: FromPath[str],
        scheme: FromPath[str],
        request: AnyRequest,
        visit: Visitor,
        session: Db,
        readers: Readers,
        public_url: NamedDependency[str],
    ) -> Response[str]:
        """A page with the way to the authorization server: forms may lead to this server only."""
        principal = (await read_form(request, PrincipalFields)).given().principal
        place = CredentialPlace(name, scheme, principal)
        consent = await connect_api(
            session, visit.project, place, public_url, readers.http_client, readers.document_reader
        )
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
    stored = await credentials.of_api(session, row.id)
    changes = await apis.of_api(session, row.id)
    failures = await apis.failed_calls(session, visit.project.id, name)
    try:
        app = await read_api(reader, session, row, row.bind)
    except ApiDocumentError as error:  # one that an earlier version of this server stored, or a lost one
        return page(visit, "api_unreadable.html", api=row, problem=str(error))
    trial = await trials.of_api(session, row.id)
    api = ApiView.full(row, visit.project.name, app, stored, trial)
    parts = words.lower().split()
    texts = [f"{each.name} {each.path} {each.summary}".lower() for each in api.operations]
    found = [each for each, text in zip(api.operations, texts, strict=True) if all(part in text for part in parts)]
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
        most_tasks=apis.FAILED_OF_TASKS,
        practised=await apis.is_documented(session, visit.project.id, name),
        test=tested.form,
        answer=tested.answer,
        refused=refused,
        none_entered=Form(),
        status=max(tested.form.status, refused.form.status),
    )


def _address(visit: Visit, name: str) -> str:
    return visit.url(f"/console/apis/{name}")


class OperationFields(msgspec.Struct, frozen=True, kw_only=True):
    """The form of an operation. Of a field that is empty, the document decides."""

    name: PythonName | None = None
    description: Description | None = None
    hidden: bool = False
    safe: bool | None = None
    approval: Approval | None = None
    explore: bool | None = None

    def patch(self) -> OperationPatch:
        return OperationPatch(**msgspec.structs.asdict(self))


class OperationPage(Controller):
    path = "/apis/{api:str}/operations/{operation:str}"
    opt = {"scope": "admin"}  # noqa: RUF012

    @get()
    async def show(
        self, api: FromPath[str], operation: FromPath[str], visit: Visitor, session: Db, document_reader: Reader
    ) -> Response[str]:
        return await _operation_page(visit, session, document_reader, OperationPlace(api, operation))

    @post()
    async def change(
        self,
        api: FromPath[str],
        operation: FromPath[str],
        request: AnyRequest,
        visit: Visitor,
        session: Db,
        document_reader: Reader,
    ) -> Response[Any]:
        place = OperationPlace(api, operation)
        form = await read_form(request, OperationFields)
        if form.value is None:
            return await _operation_page(visit, session, document_reader, place, form)
        try:
            changed = await set_for_operation(
                session, visit.access, visit.project, place, form.value.patch(), document_reader
            )
        except (ConflictError, InvalidError) as error:
            await session.rollback()
            return await _operation_page(visit, session, document_reader, place, form.refused(error))
        return after_change(visit.url(f"/console/apis/{api}") + "#operations", f"changed {changed.name}")


async def _operation_page(
    visit: Visit,
    session: AsyncSession,
    reader: DocumentReader,
    place: OperationPlace,
    form: Form[OperationFields] | None = None,
) -> Response[str]:
    """`form` is the one that was refused."""
    row = await apis.get(session, visit.project.id, place.api, document=False)
    app = await read_api(reader, session, row, row.bind)
    key, override = find_override(app, place.operation)
    state = next(each for each in operation_states(app) if each.key == key)
    shown = form or Form(values=_entered(override))
    return page(visit, "api_operation.html", api=row.name, operation=state, form=shown, status=shown.status)


def _entered(override: OperationOverride) -> Mapping[str, str]:
    """What is set, as the fields of the form have it."""
    chosen = {None: "", True: "true", False: "false"}
    return {
        "name": override.name,
        "description": override.description,
        "hidden": "true" if override.hidden else "",
        "safe": chosen[override.safe],
        "approval": override.approval or "",
        "explore": chosen[override.explore],
    }


class PrincipalFields(msgspec.Struct, frozen=True):
    """Whose credentials are meant; without one, those for all tasks."""

    principal: Principal = ""


class CredentialFields(PrincipalFields, frozen=True, kw_only=True):
    """Whatever was left empty is not sent."""

    value: str | None = None
    username: str | None = None
    password: str | None = None
    certificate: str | None = None
    client_id: str | None = None
    client_secret: str | None = None

    def credential(self) -> Credential:
        """Raises InvalidError that names the field."""
        given = {name: value for name, value in msgspec.structs.asdict(self).items() if value}
        given.pop("principal", None)
        if not given:
            raise InvalidError("fill in at least one field")
        try:
            return msgspec.convert(given, Credential)
        except msgspec.ValidationError as error:
            raise InvalidError(f"credentials: {error}") from error

    def token(self) -> str:
        """Raises InvalidError."""
        if not self.value:
            raise InvalidError("value: must be filled in")
        if not bearer(self.value).fits_headers:
            raise InvalidError(f"value: they {UNFIT_FOR_HEADERS}")
        return self.value


class CallableApi(msgspec.Struct, frozen=True, kw_only=True):
    """`total` operations, of which the first are shown. `problem`: its document cannot be read."""

    name: str
    operations: Sequence[OperationView] = ()
    total: int = 0
    reads: frozenset[str] = frozenset()  # names of operations that change nothing
    credentials: Sequence[CredentialView] = ()  # for all tasks
    variables: Mapping[str, str] = {}
    problem: str = ""


class CallableApis(msgspec.Struct, frozen=True):
    """The first APIs of a project, and the names of the others."""

    read: Sequence[CallableApi]
    others: Sequence[str]

    @property
    def variables(self) -> dict[str, str]:
        return {name: value for api in self.read for name, value in api.variables.items()}


async def read_callable(session: AsyncSession, project: tables.Project, reader: DocumentReader) -> CallableApis:
    """Ends the transaction."""
    rows = await apis.of_project(session, project.id)
    stored = await credentials.of_project(session, project.id)
    read = [await _read(session, reader, row, stored.get(row.id, [])) for row in rows[:_READ]]
    return CallableApis(read, [row.name for row in rows[_READ:]])


async def _read(
    session: AsyncSession, reader: DocumentReader, row: tables.Api, stored: Sequence[tables.ApiCredential]
) -> CallableApi:
    try:
        app: AppView = await read_api(reader, session, row, row.bind)
    except ApiDocumentError as error:
        return CallableApi(name=row.name, problem=str(error))
    return CallableApi(
        name=row.name,
        operations=app.operations[:_OPERATIONS_SHOWN],
        total=len(app.operations),
        reads=frozenset(name for name, traits in app.traits.items() if traits.safe),
        credentials=shared_credentials(app.schemes, stored, has_token=row.has_token),
        variables=app.variables,
    )
