"""Fetches the documents of APIs again, asks MCP servers for their tools again, and applies what has changed.

A new document serves at once, in a new release. Skills that call what has changed are quarantined, until
`SkillRepairs` has decided about them. A document that asks for less supervision than before, or names another
server, is for a person to decide.
"""

from collections.abc import Mapping
from typing import Final, Self, get_args
from uuid import UUID

import httpx
import msgspec
import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis import store as apis
from app.apis.calls.skill_guard import AllowedOperation
from app.apis.catalog import App
from app.apis.credentials import store as credentials
from app.apis.credentials.credential import Credentials
from app.apis.documents.fetch import DocumentFetch, check_origin, check_server, of_api
from app.apis.documents.read_process import ReadRequest
from app.apis.documents.reader import DocumentReader
from app.apis.documents.stored import read_request
from app.apis.mcp import listing
from app.apis.mcp.connection import Changed, McpCommand, McpServers, McpTarget
from app.apis.mcp.document import is_listing, oauth_of
from app.apis.mcp.listing import connected_listing
from app.apis.presentation import AppView, OperationTraits
from app.apis.servers import check_reachable
from app.base.errors import ApiDocumentError, InvalidError, NotFoundError, SettingError, first_line
from app.base.loop import Loop, Looping
from app.db import tables
from app.db.database import TRANSIENT, Sessions
from app.db.tables import AuditAction, SkillState
from app.projects import audit
from app.projects.settings import Risk
from app.releases import manifest, tools
from app.releases.manifest import compare
from app.skills import moves, repairs
from app.skills.admission import stored_manifest

log = structlog.get_logger(__name__)

_RISKS: Final = (None, *get_args(Risk))
_SECONDS: Final = 60.0  # between looks for what is due
_MCP_SECONDS: Final = 2.0  # likewise, among MCP servers


async def refresh_api(
    sessions: Sessions, reader: DocumentReader, client: httpx.AsyncClient, api_id: UUID, actor: str = moves.SERVER
) -> tables.ApiChange | None:
    """The change, or None if there is none. A document that cannot be fetched or read is recorded as such."""
    async with sessions() as session:
        row = await session.get(tables.Api, api_id, options=[apis.WITHOUT_DOCUMENT])
        if row is None or row.source == apis.UPLOADED:
            return None
        old_content = await apis.document(session, row.id, row.digest)
    if is_listing(old_content):
        async with sessions.begin() as session:
            await apis.checked(session, api_id)
            await listing.mark(session, row.project_id, row.source)  # for `McpRefresh`
        return None
    request = read_request(row, row.bind)
    try:
        old = await reader.view(request, old_content, row.digest)
        fetch = _fetch(sessions, client, row, old)
        content = await fetch(row.source)
        named = msgspec.structs.replace(request, names=old.names)
        app, document = await reader.read(named, content, fetch, check=False)
        check_reachable(app.default_url)
        check_server(row.secrets_for or old.server, app, row.token_origins, "the API's credentials")
    except ApiDocumentError as error:
        async with sessions.begin() as session:
            await apis.checked(session, api_id, str(error)[:2_000])
        return None
    async with sessions.begin() as session:
        return await apply_change(session, row, old, app, document, actor)


def _fetch(sessions: Sessions, client: httpx.AsyncClient, row: tables.Api, old: AppView) -> DocumentFetch:
    async def stored() -> tuple[Credentials, App]:
        check_origin(row.source, row.server or old.default_url, row.token_origins)
        async with sessions() as session:
            api = await tools.api_document(session, row)
            rows = await credentials.of_api(session, row.id)
        return of_api(sessions, client, api, rows, old)

    return DocumentFetch(client, row.source, stored)


async def apply_change(
    session: AsyncSession, row: tables.Api, old: AppView, new: AppView, document: bytes, actor: str = moves.SERVER
) -> tables.ApiChange | None:
    """Record and apply what was fetched. None if nothing has changed, or what has is recorded already."""
    await apis.checked(session, row.id)
    if new.digest == row.digest or await apis.waiting(session, row.id, new.digest):
        return None
    serving = await manifest.lock_active(session, row.project_id)
    now = await apis.get(session, row.project_id, row.name, document=False)
    same = (now.id, now.digest, now.source, now.presentation) == (row.id, row.digest, row.source, row.presentation)
    if not same:  # it was registered again meanwhile
        return None
    applied = not _eased(old, new)
    if applied:
        before = apis.about(row)
        now = await apis.put(
            session,
            row.project_id,
            row.name,
            source=row.source,
            server=row.server,
            document=document,
            digest=new.digest,
            secrets_for=new.server,
            presentation=msgspec.to_builtins(new.presentation),
        )
        detail = {"name": row.name, "before": before, "after": apis.about(now)}
        await audit.add(session, row.project_id, None, actor, AuditAction.API_CHANGED, detail)
        await manifest.update_tools(session, serving, [row.name], actor)
    return await record_change(session, row, old, new, applied=applied)


async def record_change(
    session: AsyncSession, row: tables.Api, old: AppView, new: AppView, *, applied: bool
) -> tables.ApiChange:
    """Record another document of an API. If it is applied, take out the skills that it may break."""
    changes = compare(old.traits, new.traits)
    about = {"added": changes.added, "removed": changes.removed, "changed": changes.changed}  # names are kept
    change = tables.ApiChange(
        api_id=row.id, digest=new.digest, applied=applied, eased=_eased(old, new), skills=[], **about
    )
    session.add(change)
    await session.flush()  # repairs refer to it
    if applied:
        await _quarantine(session, change, row, old, new)
        await session.flush()
    return change


def _eased(old: AppView, new: AppView) -> list[str]:
    both = sorted(old.traits.keys() & new.traits.keys())
    return [name for name in both if _is_eased(old.traits[name], new.traits[name])]


def _is_eased(old: OperationTraits, new: OperationTraits) -> bool:
    freer = (new.safe and not old.safe) or (new.repeatable and not old.repeatable)
    return freer or _RISKS.index(new.risk) < _RISKS.index(old.risk)


async def _quarantine(
    session: AsyncSession, change: tables.ApiChange, row: tables.Api, old: AppView, new: AppView
) -> None:
    """Take out the skills that call operations which are gone or that code can tell from the former ones, until
    `SkillRepairs` has decided about them. `change` gets their ids.
    """
    touched = [f"{row.name}.{name}" for name in (*change.removed, *change.changed) if _is_other(old, new, name)]
    rev = await moves.next_rev(session, row.project_id)
    waiting = await repairs.under_way(session, row.project_id)
    for skill in [*await moves.callers(session, row.project_id, touched), *waiting]:
        operations = stored_manifest(skill).operations
        if not (changed := [api for api in touched if api in operations]):
            continue
        gone = [api for api in changed if not _fits(operations[api], new.traits, api)]
        reason = f"no longer what they were: {', '.join(gone)}" if gone else f"changed: {', '.join(changed)}"
        was, skill.held = skill.state, True
        await moves.move(session, skill, SkillState.QUARANTINED, rev, actor=moves.CHANGES, reason=reason)
        await repairs.open_(session, skill, change.id, was, fits=not gone)
        change.skills = [*change.skills, str(skill.id)]


def _is_other(old: AppView, new: AppView, name: str) -> bool:
    return name not in new.traits or old.traits[name].shape != new.traits[name].shape


def _fits(allowed: AllowedOperation, traits: Mapping[str, OperationTraits], api: str) -> bool:
    now = traits.get(api.partition(".")[2])
    return now is not None and allowed.fits(now)


class ApiRefresh(Looping):
    """Fetches the documents of all projects again, each every `hours`. Any number of processes may."""

    def __init__(
        self, sessions: Sessions, reader: DocumentReader, client: httpx.AsyncClient, hours: float
    ) -> None:
        self._sessions = sessions
        self._reader = reader
        self._client = client
        self._hours = hours
        self._loop = Loop("fetch API documents again", self._refresh, _SECONDS, expected=TRANSIENT)

    async def __aenter__(self) -> Self:
        return await super().__aenter__() if self._hours else self

    async def _refresh(self) -> float | None:
        async with self._sessions.begin() as session:
            due = await apis.claim_due(session, self._hours)
        if due is None:
            return None
        change = await refresh_api(self._sessions, self._reader, self._client, due)
        if change is not None:
            log.info("an API document has changed", api=str(due), applied=change.applied)
        return 0


def mark_changed(sessions: Sessions) -> Changed:
    """For a runner's sessions with MCP servers: what they tell is noted for `McpRefresh`."""

    async def mark(target: McpTarget) -> None:
        assert target.project is not None
        try:
            async with sessions.begin() as session:
                await listing.mark(session, target.project, target.url)
        except TRANSIENT as error:
            log.warning("a change of an MCP server's tools is not noted", cause=first_line(error))

    return mark


class McpRefresh(Looping):
    """Stores changed tools while it is entered, as a new release of the project. Any number of processes may."""

    def __init__(
        self,
        sessions: Sessions,
        client: httpx.AsyncClient,
        commands: Mapping[str, McpCommand],
        reader: DocumentReader,
        *,
        pause: float = _MCP_SECONDS,
    ) -> None:
        self._sessions = sessions
        self._client = client
        self._servers = McpServers(client, commands)
        self._reader = reader
        self._loop = Loop("refresh the tools of MCP servers", self._refresh_next, pause, expected=TRANSIENT)

    async def _refresh_next(self) -> float | None:
        async with self._sessions.begin() as session:
            row = await listing.claim_due(session)
        if row is None:
            return None
        try:
            await self._refresh(row)
        except (InvalidError, NotFoundError, SettingError) as error:
            left = listing.MAX_TRIES - row.refresh_tries
            log.warning(
                "the tools of an MCP server cannot be refreshed", api=row.name, tries_left=left, cause=str(error)
            )
            async with self._sessions.begin() as session:
                await apis.checked(session, row.id, str(error)[:2_000])
        return 0

    async def _refresh(self, row: tables.Api) -> None:
        async with self._sessions() as session:
            api = await tools.api_document(session, row)
            old_content = await apis.document(session, row.id, row.digest)
        shared = (self._sessions, self._servers, self._client)
        content = await connected_listing(*shared, api, row.source, oauth_of(old_content))
        request = ReadRequest(name=row.name, presentation=apis.presentation_of(row), bind=row.bind)
        old = await self._reader.view(request, old_content, row.digest)
        named = msgspec.structs.replace(request, names=old.names)
        app, document = await self._reader.read(named, content, check=False)
        async with self._sessions.begin() as session:
            change = await apply_change(session, row, old, app, document)
            await listing.done(session, row.id, row.refresh_tries)
        if change is not None:
            log.info("the tools of an MCP server have changed", api=row.name, applied=change.applied)
