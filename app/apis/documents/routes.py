"""Routes for the documents of APIs: what registers one, how it is got and read, fetched again, and what changed.

For an operation, a person can set what takes the place of what its document says.
"""

import keyword
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Annotated, Final, Literal, NamedTuple, Self, TypeAlias
from uuid import UUID

import httpx
import msgspec
from litestar import Controller, get, patch, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from msgspec import UNSET, UnsetType
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis import store as apis
from app.apis.catalog import App
from app.apis.credentials import store as credentials
from app.apis.credentials.credential import Credential, Credentials
from app.apis.documents.fetch import DocumentFetch, check_origin, given, is_trusted, of_api, of_registration
from app.apis.documents.reader import DocumentReader
from app.apis.documents.stored import ApiReaders, read_api, read_former, read_request
from app.apis.mcp.connection import SCHEME, McpCommand, McpServers
from app.apis.mcp.document import McpOAuth, oauth_of
from app.apis.mcp.listing import connected_listing, first_listing
from app.apis.naming import Naming, nearest
from app.apis.presentation import AppView, OperationOverride, OperationTraits, OperationView
from app.apis.servers import has_name, origin
from app.base.errors import ApiDocumentError, ConflictError, InvalidError, NotFoundError
from app.base.fields import AppName, Text, columns
from app.base.values import Json
from app.db import tables
from app.db.database import Sessions
from app.db.tables import AuditAction, PracticeSource, RepairOutcome
from app.projects import audit
from app.projects.authorization import find_project
from app.projects.settings import Risk
from app.releases import manifest, tools
from app.releases.refresh import refresh_api
from app.skills import repairs
from app.web.access import Access, Caller, Db
from app.web.fields import ProjectName
from app.web.problem import CHANGE, READ

Url = Annotated[Text, msgspec.Meta(max_length=2_000, examples=["http://127.0.0.1:8100/sites/0/mail/openapi.json"])]
Document = Annotated[
    dict[str, Json] | str,
    msgspec.Meta(
        description="an OpenAPI 3.0, 3.1 or 3.2 or Swagger 2.0 document: as an object, or as JSON or YAML text. "
        "`x-safe: true` at an operation marks it as read-only, `x-safe: false` as writing, where the method does "
        "not show it"
    ),
]
McpServer = Annotated[
    str,
    msgspec.Meta(
        max_length=2_000,
        pattern=r"^(https?://[^\s{}\x00]+|stdio:[A-Za-z0-9_.-]{1,64})(?!\n)$",
        description="an MCP server, of which the tools become operations: its address (streamable HTTP), or "
        "`stdio:NAME` for a command of `SAGE_MCP_COMMANDS`",
        examples=["https://mcp.example.com/mcp"],
    ),
]
Server = Annotated[Text, msgspec.Meta(max_length=2_000, description="overrides the server named in the document")]
Bindings = Annotated[
    dict[str, str | dict[str, str]],
    msgspec.Meta(
        description='parameters that the server fills in: `{"password": "secret:NAME"}` in every operation that '
        'has it, `{"log_in": {"password": "secret:NAME"}}` in one. The agent does not see them',
        examples=[{"log_in": {"password": "secret:mail"}}],
    ),
]
GivenCredentials = Annotated[
    dict[str, Credential],
    msgspec.Meta(max_length=20, description="by the name of the security scheme; those of other schemes stay"),
]
TokenOrigins = Annotated[
    list[
        Annotated[
            str, msgspec.Meta(pattern=r"^https?://([^/?#@:\s\x00]{1,250}|\[[0-9a-f:.]+\])(:\d{1,5})?/?(?!\n)$")
        ]
    ],
    msgspec.Meta(
        max_length=100,
        description="origins, such as `https://files.example.com`, that get the token and bound secrets, too, if "
        "the document names them as the server of an operation",
    ),
]
Token = Annotated[
    str,
    msgspec.Meta(
        max_length=10_000,
        pattern=r"^[!-~]+(?!\n)$",
        description="sent with every call, and never shown: printable ASCII without blanks",
    ),
]
ApiNaming = Annotated[
    Naming,
    msgspec.Meta(
        description="of the operations: `readable` has the verb first and no additions of frameworks, such as "
        "`create_issue` for `issues/create`; `operation_id` is as the document writes them. Without it a replaced "
        "API keeps its own; a new one has `readable`, or `operation_id` if the model that serves was trained so"
    ),
]
Practice = Annotated[
    PracticeSource,
    msgspec.Meta(
        description="what practice on the API is made of: its `document` alone, the default, or also what the "
        "real API answers. With `read`, the server calls operations that only read, with the stored credentials, "
        "100 times at most, and keeps which fields there are and of which form, but nothing personal and no secret"
    ),
]

NOTHING: Final[Mapping[RepairOutcome | None, list[UUID]]] = {}

_OVERRIDES = 2_000  # of one API


class ApiRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Send `url`, `document` or `mcp`. The agent calls the operations as `apis.<name>.<operation>(...)`.

    A new document is tried: the server asks the model a few questions about the API, which only reads. False: not
    this API, until it is wanted again.
    """

    name: AppName
    project: str | None = None
    url: Url | None = None
    document: Document | UnsetType = UNSET
    mcp: McpServer | None = None
    server: Server | None = None
    bearer_token: Token | UnsetType | None = UNSET
    credentials: GivenCredentials = {}
    bind: Bindings | UnsetType | None = UNSET
    token_origins: TokenOrigins | UnsetType = UNSET
    naming: ApiNaming | None = None
    trial: bool | UnsetType = UNSET
    practice: Practice | UnsetType = UNSET


class ApiPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields that are left out stay; null removes."""

    bearer_token: Token | UnsetType | None = UNSET
    bind: Bindings | UnsetType | None = UNSET
    token_origins: TokenOrigins | UnsetType = UNSET
    practice: Practice | UnsetType = UNSET


Reader: TypeAlias = NamedDependency[DocumentReader]
Readers: TypeAlias = NamedDependency[ApiReaders]


def api_readers(
    sessions: NamedDependency[Sessions],
    http_client: NamedDependency[httpx.AsyncClient],
    document_reader: Reader,
    mcp_commands: NamedDependency[Mapping[str, McpCommand]],
) -> ApiReaders:
    return ApiReaders(sessions, http_client, document_reader, mcp_commands)


async def content_of(
    data: ApiRequest, session: AsyncSession, project_id: UUID, readers: ApiReaders, fetch: DocumentFetch
) -> bytes:
    """Its text, not decoded; what has a URL is fetched by `fetch`. Ends the transaction.

    Raises ApiDocumentError, and InvalidError for fields that exclude one another.
    """
    if data.mcp is None:
        await session.commit()  # no transaction is held while a document is fetched
        return await _content(data, fetch)
    if data.url is not None or data.document is not UNSET or data.server is not None:
        raise InvalidError("send `mcp` without `url`, `document` and `server`: an MCP server describes itself")
    if data.mcp.startswith(SCHEME) and isinstance(data.bearer_token, str):
        raise InvalidError("bearer_token: a command takes none; give it its secrets in SAGE_MCP_COMMANDS")
    row = await apis.find(session, project_id, data.name)
    token = _token(data, data.mcp, session, row)
    connected = await _connected(data, data.mcp, session, row)
    await session.commit()
    client = readers.http_client
    servers = McpServers(client, readers.mcp_commands)
    if connected is not None:
        return await connected_listing(readers.sessions, servers, client, *connected)
    return await first_listing(servers, client, data.mcp.rstrip("/"), token)


def _token(data: ApiRequest, server: str, session: AsyncSession, row: tables.Api | None) -> str | None:
    """The bearer token for an MCP server: the one that is sent, or else that of the API that is replaced."""
    if data.bearer_token is not UNSET:
        return data.bearer_token
    if row is None:
        return None
    origins = row.token_origins if data.token_origins is UNSET else data.token_origins
    return apis.token_of(session, row) if is_trusted(server, row.secrets_for or row.source, origins) else None


async def _connected(
    data: ApiRequest, server: str, session: AsyncSession, row: tables.Api | None
) -> tuple[tools.ApiDocument, str, McpOAuth] | None:
    """The API as it is, with its address, if it is the same MCP server and has a token by OAuth."""
    if row is None or row.source != server.rstrip("/") or isinstance(data.bearer_token, str):
        return None
    oauth = oauth_of(await apis.document(session, row.id, row.digest))
    rows = await credentials.of_api(session, row.id)
    if oauth is None or not any(each.authorized and each.value is not None for each in rows):
        return None
    return await tools.api_document(session, row), row.source, oauth


async def _content(data: ApiRequest, fetch: DocumentFetch) -> bytes:
    """The text of the document, not decoded."""
    if (data.url is None) == (data.document is UNSET):
        raise InvalidError("send either `url`, `document` or `mcp`, and only one of them")
    if data.url is not None:
        if not data.url.lower().startswith(("http://", "https://")):  # a path would be a file of this machine
            raise ApiDocumentError("url: must begin with http:// or https://; send a file's text as `document`")
        if has_name(data.url):
            raise ApiDocumentError("url: must not have a name or password, since it is shown; send `credentials`")
        return await fetch(data.url)
    assert isinstance(data.document, str)  # see DocumentRequest
    return data.document.encode()


def fetch_for(data: ApiRequest, project_id: UUID, readers: ApiReaders) -> DocumentFetch:
    """With the credentials of the request, or else with those that are stored for the API that it replaces."""
    source = data.url or ""

    async def find() -> tuple[Credentials, App]:
        async with readers.sessions() as session:
            row = await apis.find(session, project_id, data.name)
            view = None if row is None else await read_former(readers.document_reader, session, row)
            former = () if row is None else row.token_origins
            origins = former if data.token_origins is UNSET else data.token_origins
            sent = given(data.bearer_token or None, data.credentials, {} if view is None else view.schemes)
            if sent or row is None or view is None:
                check_origin(source, data.server, origins)
                return of_registration(sent, data.name)
            check_origin(source, view.default_url, origins)
            api = await tools.api_document(session, row)
            rows = await credentials.of_api(session, row.id)
        return of_api(readers.sessions, readers.http_client, api, rows, view)

    return DocumentFetch(readers.http_client, source, find)


def untrusted_remarks(source: str, server: str, token_origins: Collection[str]) -> list[str]:
    """What to do so that a document which needs credentials can be fetched again."""
    if is_trusted(source, server, token_origins):
        return []
    return [
        f"the document needs the credentials of the API, which are for {server}: without {origin(source)} among "
        "its `token_origins` it cannot be fetched again"
    ]


class ApiChangeView(msgspec.Struct, frozen=True, kw_only=True):
    """The difference between two versions of a document. Operations by name; `skills` were quarantined for it, and
    since then restored, repaired or retired. The page of a skill says why.

    One that is not `applied` asks for less supervision of the operations `eased`: register the API again if that
    is right.
    """

    created_at: datetime
    digest: str
    applied: bool
    added: list[str]
    removed: list[str]
    changed: list[str]
    eased: list[str]
    skills: list[UUID]
    restored: list[UUID] = []
    repaired: list[UUID] = []
    retired: list[UUID] = []

    @classmethod
    def of(cls, row: tables.ApiChange, skills: Mapping[RepairOutcome | None, list[UUID]] = NOTHING) -> Self:
        return cls(
            **columns(row, ApiChangeView, "skills", "restored", "repaired", "retired"),
            skills=list(map(UUID, row.skills)),
            restored=skills.get(RepairOutcome.RESTORED, []),
            repaired=skills.get(RepairOutcome.REPAIRED, []),
            retired=skills.get(RepairOutcome.RETIRED, []),
        )


class RefreshView(msgspec.Struct, frozen=True):
    """The change, if there is one; or why the document could not be fetched or read."""

    change: ApiChangeView | None
    failure: str | None


class ApiChangeController(Controller):
    path = "/apis/{name:str}"
    tags = ("APIs",)
    opt = {"scope": "tasks"}  # noqa: RUF012

    @get("/changes", summary="List the changes of an API's document", responses=READ)
    async def list_changes(
        self, name: FromPath[str], session: Db, access: Caller, project: ProjectName = None
    ) -> list[ApiChangeView]:
        """The latest hundred, newest first: of documents that were fetched again, every SAGE_API_REFRESH_HOURS, or
        registered again."""
        owner = await find_project(session, access, project)
        row = await apis.get(session, owner.id, name, document=False)
        changes = await apis.of_api(session, row.id)
        skills = await repairs.outcomes(session, [each.id for each in changes])
        return [ApiChangeView.of(each, skills[each.id]) for each in changes]

    @post(
        "/refresh",
        opt={"scope": "admin"},
        status_code=200,
        summary="Fetch the document of an API again",
        responses=CHANGE,
    )
    async def refresh(
        self, name: FromPath[str], session: Db, access: Caller, readers: Readers, project: ProjectName = None
    ) -> RefreshView:
        """Now, and as on schedule. 409 for a document that was uploaded."""
        owner = await find_project(session, access, project)
        return await refresh_document(session, access, owner, name, readers)


async def refresh_document(
    session: AsyncSession, access: Access, owner: tables.Project, name: str, readers: ApiReaders
) -> RefreshView:
    """Raises NotFoundError, ConflictError for a document that was uploaded."""
    row = await apis.get(session, owner.id, name, document=False)
    if row.source == apis.UPLOADED:
        raise ConflictError(f"the document of {name} was uploaded: send the new one to POST /v1/apis")
    await session.commit()
    change = await refresh_api(
        readers.sessions, readers.document_reader, readers.http_client, row.id, access.actor
    )
    row = await apis.get(session, owner.id, name, document=False)
    return RefreshView(None if change is None else ApiChangeView.of(change), row.check_failure)


Approval: TypeAlias = Literal["always", "write", "first", "never"]
PythonName = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[A-Za-z][A-Za-z0-9_]{0,99}(?!\n)$", description="which the agent calls it by", examples=["send"]
    ),
]
Description = Annotated[
    Text, msgspec.Meta(min_length=1, max_length=10_000, description="its first line is shown in lists")
]


class OperationPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields that are left out stay as they are; with null, the document decides again."""

    name: PythonName | UnsetType | None = UNSET
    description: Description | UnsetType | None = UNSET
    hidden: bool | UnsetType | None = UNSET
    safe: bool | UnsetType | None = UNSET
    approval: Approval | UnsetType | None = UNSET
    explore: bool | UnsetType | None = UNSET


class OperationState(msgspec.Struct, frozen=True, kw_only=True):
    """An operation, and what a person has `set` for it. One that is `gone` is no longer in the document.

    `approval` says which calls wait for a person: null leaves it to the project's rules and to `risk`. `explore`
    says whether tasks that explore may make calls that change something: null leaves it to the project's
    `explore_writes`.
    """

    name: str
    key: str  #: its operationId, or method and path
    method: str
    path: str
    signature: str
    hidden: bool
    safe: bool | None
    risk: Risk | None
    approval: str | None
    explore: bool | None
    gone: bool = False
    set: list[str]

    @classmethod
    def of(cls, view: OperationView, traits: OperationTraits, app: AppView) -> Self:
        override = app.overridden.get(view.name)
        return cls(
            **columns(view, OperationView, "summary"),
            **{name: getattr(traits, name) for name in ("key", "safe", "risk", "approval", "explore")},
            hidden=view.name in app.hidden_traits,
            set=[] if override is None else override.fields_set,
        )

    @classmethod
    def of_gone(cls, key: str, override: OperationOverride) -> Self:
        method, _, path = override.place.partition(" ")
        return cls(
            name=override.name or override.was,
            key=key,
            method=method,
            path=path,
            signature="",
            risk=None,
            gone=True,
            set=override.fields_set,
            **columns(override, OperationPatch, "name", "description"),
        )


class OperationPlace(NamedTuple):
    """An operation, by its name, of an API of a project."""

    api: str
    operation: str


class ApiOperationController(Controller):
    path = "/apis/{name:str}/operations"
    tags = ("APIs",)
    opt = {"scope": "tasks"}  # noqa: RUF012

    @get(summary="List the operations of an API", responses=READ)
    async def list_operations(
        self,
        name: FromPath[str],
        session: Db,
        access: Caller,
        document_reader: Reader,
        project: ProjectName = None,
    ) -> list[OperationState]:
        """With those that are hidden, and those for which something is set though they are gone."""
        owner = await find_project(session, access, project)
        row = await apis.get(session, owner.id, name, document=False)
        return operation_states(await read_api(document_reader, session, row, row.bind))

    @patch(
        "/{operation:str}",
        opt={"scope": "admin"},
        summary="Rename, describe, hide or mark an operation of an API",
        responses=CHANGE,
    )
    async def change_operation(
        self,
        name: FromPath[str],
        operation: FromPath[str],
        data: JSONBody[OperationPatch],
        session: Db,
        access: Caller,
        document_reader: Reader,
        project: ProjectName = None,
    ) -> OperationState:
        """What is set stays when the document changes or is registered again, and is part of a release as the
        document is. Skills that call the operation in another way are not offered while they do not fit."""
        owner = await find_project(session, access, project)
        return await set_for_operation(
            session, access, owner, OperationPlace(name, operation), data, document_reader
        )


async def set_for_operation(
    session: AsyncSession,
    access: Access,
    owner: tables.Project,
    place: OperationPlace,
    data: OperationPatch,
    reader: DocumentReader,
) -> OperationState:
    """In a new release, if tasks have begun with the active one. Commits. Raises NotFoundError, InvalidError, and
    ConflictError, also if the API was changed meanwhile.
    """
    row = await apis.get(session, owner.id, place.api, document=False)
    seen = apis.state_of(row)
    before = await read_api(reader, session, row, row.bind)
    key, old = find_override(before, place.operation)
    new = _changed(old, data)
    if data.name is not UNSET and data.name is not None:
        _check_name(before, key, data.name)
    others = before.presentation.overrides.items()
    overrides = {each: one for each, one in others if each != key and one != old}
    overrides |= {key: new} if new.fields_set else {}
    if len(overrides) > _OVERRIDES:
        raise InvalidError(f"at most {_OVERRIDES:,} operations of one API can have something set for them")
    presentation = msgspec.structs.replace(before.presentation, overrides=overrides)
    content = await apis.document(session, row.id, row.digest)
    await session.commit()  # no transaction is held while a document is read
    request = msgspec.structs.replace(read_request(row, row.bind), presentation=presentation)
    after = await reader.view(request, content, row.digest)
    if new != old:
        serving = await manifest.lock_active(session, row.project_id)
        await apis.check_unchanged(session, row.project_id, row.name, seen)
        row.presentation = msgspec.to_builtins(presentation)
        await session.flush()
        await manifest.update_tools(session, serving, [row.name], access.actor)
        changed = {"before": msgspec.to_builtins(old), "after": msgspec.to_builtins(new)}
        detail = {"name": f"{row.name}.{old.was}", **changed}
        await audit.add(session, row.project_id, None, access.actor, AuditAction.OPERATION_CHANGED, detail)
        await session.commit()
    return next((each for each in operation_states(after) if each.key == key), OperationState.of_gone(key, new))


def operation_states(app: AppView) -> list[OperationState]:
    shown = [OperationState.of(each, app.traits[each.name], app) for each in app.operations]
    hidden = [OperationState.of(each, app.hidden_traits[each.name], app) for each in app.hidden]
    return [*shown, *hidden, *(OperationState.of_gone(key, app.presentation.overrides[key]) for key in app.gone)]


def find_override(app: AppView, name: str) -> tuple[str, OperationOverride]:
    """Key of an operation by its name, and what is set for it. Raises NotFoundError."""
    every = app.traits | app.hidden_traits
    if name in every:
        unset = OperationOverride(place=every[name].place, was=name)
        return every[name].key, app.overridden.get(name, unset)
    for key in app.gone:
        override = app.presentation.overrides[key]
        if name in (override.name, override.was):
            return key, override
    raise NotFoundError(f"this API has no operation {name!r}: {nearest(name, every)}")


def _changed(old: OperationOverride, data: OperationPatch) -> OperationOverride:
    """A field that is given as None has its default again."""
    given = {name: each for name, each in msgspec.structs.asdict(data).items() if each is not UNSET}
    wanted = msgspec.structs.asdict(old) | given
    return OperationOverride(**{name: each for name, each in wanted.items() if each is not None})


def _check_name(app: AppView, key: str, name: str) -> None:
    """Raises InvalidError for a name that code cannot use, ConflictError for one that is taken."""
    if keyword.iskeyword(name):
        raise InvalidError(f"name: {name!r} is a keyword of Python; choose another")
    taken = (app.traits | app.hidden_traits).get(name)
    if taken is not None and taken.key != key:
        raise ConflictError(f"name: {name!r} is the name of {taken.place}; choose another")
