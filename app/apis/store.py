"""The APIs of projects in the database: their documents, when each is fetched again, and what changed then.

The calls of an API that failed are found among the events of tasks.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType
from sqlalchemy import JSON, Integer, Row, Select, Text, cast, func, literal, select, true, update
from sqlalchemy import delete as sql_delete
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import defer

from app.apis.presentation import Presentation
from app.base.errors import ConflictError, NotFoundError, SettingError
from app.base.values import Json
from app.db import tables
from app.db.database import Handle, keys_of
from app.db.tables import PracticeSource

WITHOUT_DOCUMENT: Final = defer(tables.Api.document, raiseload=True)
FAILED_OF_TASKS: Final = 100
"""The latest tasks of a project, which are looked through for failed calls."""
UPLOADED: Final = "upload"
"""The source of a document that has no URL."""
_FAILED: Final = 20
_CHANGES: Final = 100
_IS_LISTING: Final = tables.Api.document["mcp"].as_string().is_not(None)
_change = tables.ApiChange


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """How the answers of the real server differ from what the document with this digest promises."""

    at: datetime
    digest: str
    calls: int  #: that were made to the real server
    differences: list[str]
    skipped: list[str]  #: what was not read, and why


class FailedCall(msgspec.Struct, frozen=True, kw_only=True):
    """`api` is the operation with the name of its API, `skill` the one that made the call."""

    task_id: UUID
    instruction: str
    turn: int
    api: str
    error: str
    skill: str | None
    at: datetime


async def put(  # noqa: PLR0913 - the columns of a row
    session: AsyncSession,
    project_id: UUID,
    name: str,
    *,
    source: str,
    document: dict[str, Json] | bytes,
    digest: str,
    server: str | None = None,
    secrets_for: str | UnsetType = UNSET,
    token: str | UnsetType | None = UNSET,
    bind: Mapping[str, Json] | UnsetType = UNSET,
    presentation: Mapping[str, Json] | UnsetType = UNSET,
    practice: PracticeSource | UnsetType = UNSET,
) -> tables.Api:
    """Insert an API, or replace the one of that name, which keeps what is UNSET.

    A document in bytes is JSON: it is stored as it is, and the row comes without it.
    """
    as_text = isinstance(document, bytes)
    stored = cast(literal(document.decode(), Text), JSON) if isinstance(document, bytes) else document
    given: dict[str, Any] = {"source": source, "document": stored, "digest": digest, "server": server}
    given |= {"checked_at": func.clock_timestamp(), "check_failure": None}
    given |= sealed(session, token)
    kept = {"secrets_for": secrets_for, "bind": bind, "presentation": presentation, "practice": practice}
    given |= {name: each for name, each in kept.items() if each is not UNSET}
    await session.execute(
        insert(tables.Api)
        .values(project_id=project_id, name=name, **given)
        .on_conflict_do_update(index_elements=["project_id", "name"], set_=given)
    )
    return await get(session, project_id, name, document=not as_text)


async def find(session: AsyncSession, project_id: UUID, name: str, *, lock: bool = False) -> tables.Api | None:
    """An API without its document, as it is now; None if there is no such API."""
    query = _named(project_id, name).options(WITHOUT_DOCUMENT)
    return await session.scalar(query.with_for_update(key_share=True) if lock else query)


async def documented(session: AsyncSession, project_id: UUID) -> set[str]:
    """The names of those that have an OpenAPI document. An MCP server has a listing."""
    api = tables.Api
    return set(await session.scalars(select(api.name).where(api.project_id == project_id, ~_IS_LISTING)))


async def is_documented(session: AsyncSession, project_id: UUID, name: str) -> bool:
    """Whether the project has an API of this name with an OpenAPI document."""
    api = tables.Api
    return bool(await session.scalar(select(~_IS_LISTING).where(api.project_id == project_id, api.name == name)))


def state_of(row: tables.Api) -> object:
    """What a change relies on that is worked out from the row, while others may change it."""
    return row.id, row.digest, row.bind, row.presentation


def about(row: tables.Api) -> dict[str, Json]:
    """What the audit log says of an API: no document, and no secret."""
    names = ("source", "server", "secrets_for", "digest", "bind", "token_origins", "presentation", "practice")
    return {name: getattr(row, name) for name in names}


async def check_unchanged(session: AsyncSession, project_id: UUID, name: str, seen: object) -> None:
    """Raises ConflictError unless the API has the `state_of` that was seen. It stays so: it is locked."""
    row = await find(session, project_id, name, lock=True)
    if row is None or state_of(row) != seen:
        raise ConflictError(f"{name} was changed meanwhile; try again")


def place_of(row: tables.Api) -> object:
    """The API, and the server that its secrets are for: what `hold` compares."""
    return row.id, row.secrets_for


async def hold(session: AsyncSession, project_id: UUID, name: str, place: object) -> tables.Api:
    """The API, without its document, locked for a secret to be stored: it cannot be moved until then.

    Raises NotFoundError, and ConflictError unless it is at the `place_of` which the secret was given for.
    """
    row = await find(session, project_id, name, lock=True)
    if row is None:
        raise _unknown(name)
    if place_of(row) != place:
        raise ConflictError(
            f"nothing was stored: {name} was moved meanwhile, to {row.secrets_for or row.server or row.source}. "
            "Look at that address, and try again if it may have the secret"
        )
    return row


def comparison_of(row: tables.Api) -> Comparison | None:
    """The latest one; None if there is none, or if it is about an earlier document."""
    found = None if row.comparison is None else msgspec.convert(row.comparison, Comparison)
    return None if found is None or found.digest != row.digest else found


async def store_comparison(session: AsyncSession, api_id: UUID, comparison: Comparison) -> None:
    values = {"comparison": msgspec.to_builtins(comparison)}
    await session.execute(update(tables.Api).where(tables.Api.id == api_id).values(values))


async def secrets_for(session: AsyncSession, api_id: UUID) -> str | None:
    """The server that the secrets of an API were given for, as it is now."""
    return await session.scalar(select(tables.Api.secrets_for).where(tables.Api.id == api_id))


def sealed(session: AsyncSession, token: str | UnsetType | None) -> dict[str, str | None]:
    """The columns that store a token, encrypted; none if it is UNSET."""
    if token is UNSET:
        return {}
    return {"token": None if token is None else keys_of(session).encrypt(str(token))}


def token_of(handle: Handle, row: tables.Api | Row[Any]) -> str | None:
    """The token of an API. Raises SettingError if it cannot be decrypted here."""
    if row.token is None:
        return None
    try:
        return keys_of(handle).decrypt(row.token)
    except SettingError as error:
        raise SettingError(f"the token of the API {row.name!r} cannot be read: {error}") from error


def presentation_of(row: tables.Api) -> Presentation:
    """How the API is presented now."""
    return msgspec.convert(row.presentation, Presentation)


def url_of(source: str) -> str | None:
    """Of a document; None if it was uploaded."""
    return None if source == UPLOADED else source


async def of_project(session: AsyncSession, project_id: UUID) -> Sequence[tables.Api]:
    """Ordered by name, without their documents, which may be large."""
    query = select(tables.Api).where(tables.Api.project_id == project_id).order_by(tables.Api.name)
    return (await session.scalars(query.options(WITHOUT_DOCUMENT))).all()


async def of_all_projects(session: AsyncSession) -> Sequence[tables.Api]:
    """Without their documents, which may be large."""
    return (await session.scalars(select(tables.Api).options(WITHOUT_DOCUMENT))).all()


async def get(session: AsyncSession, project_id: UUID, name: str, *, document: bool = True) -> tables.Api:
    query = _named(project_id, name)
    row = await session.scalar(query if document else query.options(WITHOUT_DOCUMENT))
    if row is None:
        raise _unknown(name)
    return row


async def document(session: AsyncSession, api_id: UUID, digest: str) -> bytes:
    """A document that an API has or had, as JSON that is not decoded."""
    api = tables.Api
    query = select(cast(api.document, Text)).where(api.id == api_id, api.digest == digest)
    text = await session.scalar(query)
    return await kept_document(session, digest) if text is None else str(text).encode()


async def kept_document(session: AsyncSession, digest: str) -> bytes:
    """A document of a release, as JSON that is not decoded."""
    kept = tables.ToolDocument
    text = await session.scalar(select(cast(kept.document, Text)).where(kept.digest == digest))
    if text is None:
        raise NotFoundError("an API document was removed before it could be read")
    return str(text).encode()


async def delete(session: AsyncSession, project_id: UUID, name: str) -> None:
    deleted = await session.scalar(
        sql_delete(tables.Api)
        .where(tables.Api.project_id == project_id, tables.Api.name == name)
        .returning(tables.Api.id)
    )
    if deleted is None:
        raise _unknown(name)


def _named(project_id: UUID, name: str) -> Select[tables.Api]:
    query = select(tables.Api).where(tables.Api.project_id == project_id, tables.Api.name == name)
    return query.execution_options(populate_existing=True)


def _unknown(name: str) -> NotFoundError:
    return NotFoundError(f"this project has no API named {name!r}; GET /v1/apis lists them")


async def claim_due(session: AsyncSession, hours: float) -> UUID | None:
    """An API whose document was last fetched so long ago; it is not due again for as long. Or None."""
    checked = func.coalesce(tables.Api.checked_at, tables.Api.created_at)
    due = (
        select(tables.Api.id)
        .where(tables.Api.source.like("http%"), checked < func.clock_timestamp() - timedelta(hours=hours))
        .order_by(checked)
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    claimed = update(tables.Api).where(tables.Api.id == due.scalar_subquery()).returning(tables.Api.id)
    return await session.scalar(claimed.values(checked_at=func.clock_timestamp()))


async def checked(session: AsyncSession, api_id: UUID, failure: str | None = None) -> None:
    """Record that the document was fetched, or why it could not be."""
    values = {"checked_at": func.clock_timestamp(), "check_failure": failure}
    await session.execute(update(tables.Api).where(tables.Api.id == api_id).values(values))


async def of_api(session: AsyncSession, api_id: UUID) -> Sequence[tables.ApiChange]:
    """The latest ones, newest first."""
    query = select(_change).where(_change.api_id == api_id).order_by(_change.created_at.desc(), _change.id)
    return (await session.scalars(query.limit(_CHANGES))).all()


async def waiting(session: AsyncSession, api_id: UUID, digest: str) -> tables.ApiChange | None:
    """The change to this document, if it is recorded and was not applied."""
    query = select(_change).where(_change.api_id == api_id, _change.digest == digest, ~_change.applied)
    return await session.scalar(query.limit(1))


async def failed_calls(session: AsyncSession, project_id: UUID, name: str) -> Sequence[FailedCall]:
    """Those of an API, newest first, of the project's latest tasks: no index has the calls by API."""
    task, event = tables.Task, tables.TaskEvent
    latest = (
        select(task.id, task.instruction)
        .where(task.project_id == project_id)
        .order_by(task.created_at.desc(), task.id.desc())
        .limit(FAILED_OF_TASKS)
        .subquery()
    )
    api, error = event.data["api"].astext, event.data["error"].astext
    failed = (
        select(
            cast(event.data["turn"].astext, Integer).label("turn"),
            api.label("api"),
            error.label("error"),
            event.data["skill"].astext.label("skill"),
            event.created_at.label("at"),
        )
        .where(event.task_id == latest.c.id, event.kind == "call")
        .where(func.split_part(api, ".", 1) == name, error.is_not(None))
        .order_by(event.seq.desc())
        .limit(_FAILED)  # so that the events of each task are read by their key
        .lateral()
    )
    query = (
        select(latest.c.id.label("task_id"), latest.c.instruction, failed)
        .join(failed, true())
        .order_by(failed.c.at.desc())
        .limit(_FAILED)
    )
    return [FailedCall(**row) for row in (await session.execute(query)).mappings()]
