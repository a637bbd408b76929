"""The credentials of APIs, in the database: what is sent, when it was last used, and why it failed."""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, case, exists, func, select, update
from sqlalchemy import delete as sql_delete
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import NotFoundError
from app.db import tables
from app.db.database import keys_of

STATIC_TOKEN = "bearer_token"
"""Stands for the token that is stored with an API, in the record of its uses."""

_row = tables.ApiCredential
_attempt = tables.OAuthAttempt
_MAX_WANTED = 100  # scopes
_KEY = ("api_id", "scheme", "principal")


async def put(
    session: AsyncSession,
    api_id: UUID,
    scheme: str,
    principal: str,
    *,
    kind: str,
    value: str | None,
    authorized: bool,
) -> tables.ApiCredential:
    """Store what is sent for a scheme, replacing what was stored. A failure of that is forgotten.

    Without a `value` it holds the place of what a person's consent will bring: until then, what all share is used.
    """
    given: dict[str, Any] = {
        "kind": kind,
        "value": None if value is None else keys_of(session).encrypt(value),
        "authorized": authorized,
        "expires_at": None,
        "renewing_until": None,
        "failed_at": None,
        "failure": None,
        "wanted_scopes": None,
    }
    row = await session.scalar(
        insert(_row)
        .values(api_id=api_id, scheme=scheme, principal=principal, **given)
        .on_conflict_do_update(index_elements=_KEY, set_=given)
        .returning(_row)
        .execution_options(populate_existing=True)
    )
    assert row is not None  # an upsert always returns its row
    return row


async def of_api(session: AsyncSession, api_id: UUID) -> Sequence[tables.ApiCredential]:
    """Ordered by scheme and principal, those that all share first."""
    query = select(_row).where(_row.api_id == api_id).order_by(_row.scheme, _row.principal)
    return (await session.scalars(query.execution_options(populate_existing=True))).all()


async def of_project(session: AsyncSession, project_id: UUID) -> dict[UUID, list[tables.ApiCredential]]:
    """By API."""
    query = select(_row).join(tables.Api, tables.Api.id == _row.api_id).where(tables.Api.project_id == project_id)
    found: dict[UUID, list[tables.ApiCredential]] = defaultdict(list)
    for row in await session.scalars(query.order_by(_row.scheme, _row.principal)):
        found[row.api_id].append(row)
    return found


async def usable(session: AsyncSession, api_id: UUID, principal: str) -> dict[str, tables.ApiCredential]:
    """By scheme: the principal's own, or else those that all share."""
    query = select(_row).where(_row.api_id == api_id, _row.value.is_not(None), _row.principal.in_({"", principal}))
    query = query.order_by(case((_row.principal == "", 0), else_=1))
    return {row.scheme: row for row in await session.scalars(query)}


def of_schemes(api_id: Any) -> ColumnElement[bool]:
    """Whether an API has credentials for schemes of its document."""
    return exists().where(_row.api_id == api_id, _row.value.is_not(None))


async def secured_apis(session: AsyncSession, project_id: UUID) -> set[UUID]:
    """The APIs of a project that have credentials for schemes of their documents."""
    api = tables.Api
    return set(await session.scalars(select(api.id).where(api.project_id == project_id, of_schemes(api.id))))


async def get(session: AsyncSession, credential_id: UUID) -> tables.ApiCredential | None:
    """As it is now."""
    return await session.get(_row, credential_id, populate_existing=True)


async def delete(session: AsyncSession, api_id: UUID, scheme: str, principal: str) -> None:
    """Raises NotFoundError."""
    gone = sql_delete(_row).where(*_which(api_id, scheme, principal)).returning(_row.id)
    if await session.scalar(gone) is None:
        whose = f" for the principal {principal!r}" if principal else ""
        raise NotFoundError(f"no credentials are stored for {scheme!r}{whose}")


async def forget_uses(session: AsyncSession, api_id: UUID) -> None:
    """Of the token that is stored with the API: it is another one now."""
    await session.execute(sql_delete(_row).where(*_which(api_id, STATIC_TOKEN, "")))


async def note_use(
    session: AsyncSession, api_id: UUID, scheme: str, principal: str, failure: str | None = None
) -> None:
    """Record that it was sent, or why its API refused it."""
    now = func.statement_timestamp()
    given: dict[str, Any] = {"used_at": now}
    given |= {} if failure is None else {"failed_at": now, "failure": failure}
    if scheme != STATIC_TOKEN:
        await session.execute(update(_row).where(*_which(api_id, scheme, principal)).values(given))
        return
    new = insert(_row).values(
        api_id=api_id, scheme=scheme, principal="", kind="http", authorized=True, value=None, **given
    )
    await session.execute(new.on_conflict_do_update(index_elements=_KEY, set_=given))


async def claim_renewal(session: AsyncSession, credential_id: UUID, seconds: float) -> datetime | None:
    """A claim to ask alone for a new token, for at most so long; None while another process has one.

    Once another credential is stored, the claim is void: nothing is recorded with it.
    """
    now = func.clock_timestamp()
    free = (_row.renewing_until.is_(None)) | (_row.renewing_until < now)
    claimed = update(_row).where(_row.id == credential_id, free)
    claimed = claimed.values(renewing_until=now + timedelta(seconds=seconds)).returning(_row.renewing_until)
    until: datetime | None = await session.scalar(claimed)
    return until


async def end_renewal(
    session: AsyncSession, credential_id: UUID, claim: datetime, *, value: str, expires_at: datetime | None
) -> None:
    """Store the new tokens."""
    await _end_renewal(session, credential_id, claim, **_connected(session, value, expires_at))


async def release_renewal(session: AsyncSession, credential_id: UUID, claim: datetime) -> None:
    """The claim was not needed."""
    await _end_renewal(session, credential_id, claim)


async def fail_renewal(
    session: AsyncSession, credential_id: UUID, claim: datetime, failure: str, *, authorized: bool
) -> None:
    """`authorized` is whether another attempt may succeed without a person."""
    failed = {"failed_at": func.clock_timestamp(), "failure": failure, "authorized": authorized}
    await _end_renewal(session, credential_id, claim, **failed)


async def _end_renewal(session: AsyncSession, credential_id: UUID, claim: datetime, **columns: Any) -> None:
    held = (_row.id == credential_id, _row.renewing_until == claim)
    await session.execute(update(_row).where(*held).values(renewing_until=None, **columns))


def _connected(session: AsyncSession, value: str, expires_at: datetime | None) -> dict[str, Any]:
    sealed = keys_of(session).encrypt(value)
    return {"value": sealed, "expires_at": expires_at, "authorized": True, "failed_at": None, "failure": None}


async def end_attempt(
    session: AsyncSession, credential_id: UUID, *, value: str, expires_at: datetime | None
) -> None:
    """Store the first tokens: a person has consented."""
    given = _connected(session, value, expires_at) | {"renewing_until": None, "wanted_scopes": None}
    given["connected_at"] = func.clock_timestamp()
    await session.execute(update(_row).where(_row.id == credential_id).values(**given))


async def fail_attempt(session: AsyncSession, credential_id: UUID, failure: str) -> None:
    """A person was sent to the authorization server, and came back without a token."""
    given = {"failed_at": func.clock_timestamp(), "failure": failure}
    await session.execute(update(_row).where(_row.id == credential_id).values(**given))


async def want_scopes(session: AsyncSession, credential_id: UUID, scopes: Sequence[str]) -> None:
    """Record scopes that a person has to grant, besides those that were wanted before."""
    row = await session.get(_row, credential_id, populate_existing=True, with_for_update=True)
    if row is not None:
        row.wanted_scopes = list(dict.fromkeys([*(row.wanted_scopes or ()), *scopes]))[:_MAX_WANTED]


async def begin_attempt(
    session: AsyncSession,
    credential_id: UUID,
    *,
    state: str,
    verifier: str,
    redirect_url: str,
    value: str,
    seconds: float,
) -> None:
    """Remember that a person was sent to the authorization server, and with which credential. Old attempts are
    forgotten.
    """
    await session.execute(sql_delete(_attempt).where(_attempt.expires_at < func.clock_timestamp()))
    await session.execute(
        insert(_attempt).values(
            state=_hash(state),
            credential_id=credential_id,
            verifier=keys_of(session).encrypt(verifier),
            redirect_url=redirect_url,
            value=keys_of(session).encrypt(value),
            expires_at=func.clock_timestamp() + timedelta(seconds=seconds),
        )
    )


async def end_attempts(session: AsyncSession, api_id: UUID) -> None:
    """What people have begun to consent to brings nothing any more: it was for another server."""
    of_api = select(_row.id).where(_row.api_id == api_id)
    await session.execute(sql_delete(_attempt).where(_attempt.credential_id.in_(of_api)))


class Attempt(NamedTuple):
    """A person was sent to an authorization server. `value` is what was asked for, None for the stored one."""

    credential_id: UUID
    verifier: str
    redirect_url: str
    value: str | None


async def take_attempt(session: AsyncSession, state: str) -> Attempt | None:
    """Once; None if there is none, or no more."""
    taken = sql_delete(_attempt).where(
        _attempt.state == _hash(state), _attempt.expires_at > func.clock_timestamp()
    )
    columns = _attempt.credential_id, _attempt.verifier, _attempt.redirect_url, _attempt.value
    row = (await session.execute(taken.returning(*columns))).first()
    if row is None:
        return None
    value = None if row.value is None else keys_of(session).decrypt(row.value)
    return Attempt(row.credential_id, keys_of(session).decrypt(row.verifier), row.redirect_url, value)


def _which(api_id: UUID, scheme: str, principal: str) -> tuple[Any, ...]:
    return _row.api_id == api_id, _row.scheme == scheme, _row.principal == principal


def _hash(state: str) -> str:
    return hashlib.sha256(state.encode()).hexdigest()
