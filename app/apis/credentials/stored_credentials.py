"""The stored credentials of a project's APIs: checked against the document when given, and complete without it.

As the calls of a task get them, they are renewed.
"""

import asyncio
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol
from uuid import UUID

import httpx
import msgspec
import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis import store as apis
from app.apis.catalog import App, Operation
from app.apis.credentials import oauth
from app.apis.credentials import store as credentials
from app.apis.credentials.credential import Credential, authentication, bearer, checked, chosen_schemes, secrets_of
from app.apis.credentials.oauth import TOKEN_SECONDS, TokenError, Tokens
from app.apis.credentials.schemes import OAUTH_KINDS, Authentication, SecurityScheme, combined
from app.apis.credentials.store import STATIC_TOKEN
from app.base.errors import HostError, SettingError
from app.base.secrets import MASK
from app.db import tables
from app.db.database import Sessions, keys_of, retry_while_unavailable

log = structlog.get_logger(__name__)
_LEEWAY: Final = timedelta(seconds=30)  # before its expiry, a token is renewed
_RENEWAL_SECONDS: Final = 2 * TOKEN_SECONDS
_POLL_SECONDS: Final = 0.2
_FRESH_SECONDS: Final = 30  # so old, a token that is refused is not the reason
_asking: Final = set[asyncio.Task[None]]()  # the event loop alone does not keep tasks alive


class PreparedCredential(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored for one scheme."""

    scheme: str
    kind: str
    credential: Credential
    authorized: bool  # False: a person has to consent first

    async def store(self, session: AsyncSession, api_id: UUID, principal: str) -> tables.ApiCredential:
        """Replaces what is stored for the scheme and the principal."""
        value = self.credential.to_json()
        return await credentials.put(
            session, api_id, self.scheme, principal, kind=self.kind, value=value, authorized=self.authorized
        )


async def prepare(
    name: str,
    credential: Credential,
    schemes: Mapping[str, SecurityScheme],
    base: str,
    client: httpx.AsyncClient,
) -> PreparedCredential:
    """Raises InvalidError that names the field. `base` is what addresses of the document are relative to.

    May ask an OpenID provider where its endpoints are.
    """
    scheme = schemes.get(name)
    credential, kind = checked(name, credential, scheme)
    authorized = True
    if scheme is not None and kind in OAUTH_KINDS:
        credential = await oauth.complete(name, credential, scheme, base, client)
        has_token = credential.access_token is not None or credential.refresh_token is not None
        authorized = has_token or credential.grant != "authorization_code"
    return PreparedCredential(scheme=name, kind=kind, credential=credential, authorized=authorized)


class SecuredApi(Protocol):
    """An API, as far as its credentials are concerned."""

    @property
    def id(self) -> UUID: ...
    @property
    def name(self) -> str: ...
    @property
    def token(self) -> str | SettingError | None:
        """Sent to all operations that get no other one; or why it cannot be read."""

    @property
    def secrets_for(self) -> str | None:
        """The server that they were given for; None: that is not known."""

    @property
    def has_credentials(self) -> bool:
        """Whether any are stored for schemes of its document."""


class _Held(msgspec.Struct, kw_only=True):
    """One stored credential, as it was when it was last read."""

    id: UUID
    scheme: str
    principal: str
    kind: str
    authorized: bool
    expires_at: datetime | None
    credential: Credential
    renewed: float = -math.inf  # when this process got the present token, by the monotonic clock


class StoredCredentials:
    """Fulfils `Credentials` for the tasks of one principal, whose own come before those that all share."""

    def __init__(
        self, sessions: Sessions, client: httpx.AsyncClient, apis: Iterable[SecuredApi], principal: str = ""
    ) -> None:
        self._sessions = sessions
        self._client = client  # for authorization servers
        self._apis = {api.name: api for api in apis}
        self._principal = principal
        self._held: dict[str, dict[str, _Held]] = {}
        self._noted = set[tuple[str, str]]()

    @property
    def used(self) -> list[str]:
        """The schemes whose credentials were sent so far, `STATIC_TOKEN` among them."""
        return sorted({scheme for _, scheme in self._noted})

    async def of(self, app: App, operation: Operation) -> Authentication:
        """Raises HostError if the credentials cannot be read, or a token cannot be renewed."""
        api = self._apis.get(app.name)
        if api is None:
            return Authentication()
        parts = [await self._part(app, each) for each in await self._chosen(app, operation)]
        if not any("Authorization" in each.headers for each in parts) and api.token is not None:
            if isinstance(api.token, SettingError):
                raise _unreadable(app.name, api.token)
            parts.append(bearer(api.token))
            await self._note(app.name, STATIC_TOKEN, "")
        return combined(parts)

    async def refused(
        self, app: App, operation: Operation, reason: str, *, renew: bool, scopes: Sequence[str] = ()
    ) -> bool:
        """Renews the OAuth tokens that were sent, or asks for more scopes. Raises HostError if renewing fails."""
        api = self._apis.get(app.name)
        if api is None:
            return False
        sent = await self._chosen(app, operation)
        names = [(each.scheme, each.principal) for each in sent]
        if not names and api.token is not None:
            names = [(STATIC_TOKEN, "")]
        async with self._sessions.begin() as session:
            for scheme, principal in names:
                await credentials.note_use(session, api.id, scheme, principal, reason)
        old = [each for each in sent if _is_renewable(each) and time.monotonic() - each.renewed > _FRESH_SECONDS]
        for each in old if renew else ():
            await self._renew(app.name, each)
        widened = [await self._widen(app.name, each, scopes) for each in sent if scopes and _is_renewable(each)]
        return (renew and bool(old)) or any(widened)

    async def _widen(self, app: str, held: _Held, scopes: Sequence[str]) -> bool:
        """Whether there is a token with more scopes now. Where a person has to grant them, that is recorded."""
        had = held.credential.scopes or []
        if held.credential.grant == "authorization_code":
            async with self._sessions.begin() as session:
                await credentials.want_scopes(session, held.id, scopes)
            return False
        if set(scopes) <= set(had):
            return False  # it was asked for them, and did not get them
        async with self._sessions.begin() as session:
            claim = await credentials.claim_renewal(session, held.id, _RENEWAL_SECONDS)
        if claim is None:
            return False
        both = list(dict.fromkeys([*had, *scopes]))
        wider = msgspec.structs.replace(held.credential, scopes=both, refresh_token=None)
        try:
            tokens = await oauth.renewed(self._client, wider)
        except TokenError as error:
            reason = without_secrets(str(error), wider)
            log.warning("no token with more scopes for an API", api=app, scheme=held.scheme, cause=reason)
            async with self._sessions.begin() as session:
                await credentials.release_renewal(session, held.id, claim)
            return False
        await self._keep(held, wider, tokens, claim)
        return True

    async def _chosen(self, app: App, operation: Operation) -> list[_Held]:
        held = await self._of_api(app.name)
        credentials = {name: each.credential for name, each in held.items()}
        return [held[name] for name in chosen_schemes(app, operation, credentials)]

    async def _of_api(self, name: str) -> dict[str, _Held]:
        if name not in self._held:
            api = self._apis[name]
            if not api.has_credentials:
                return self._held.setdefault(name, {})
            async with self._sessions() as session:
                rows = await credentials.usable(session, api.id, self._principal)
                held = {scheme: _read(session, name, row) for scheme, row in rows.items()}
                await self._check_server(session, name)
            self._held[name] = held
        return self._held[name]

    async def _check_server(self, session: AsyncSession, name: str) -> None:
        """Call after credentials were read: raises HostError if they may be those for another server."""
        api = self._apis[name]
        if api.secrets_for not in (None, await apis.secrets_for(session, api.id)):
            raise HostError("ApiError", f"{name} was moved to another server since this task began")

    async def _part(self, app: App, held: _Held) -> Authentication:
        expires = held.expires_at
        stale = expires is not None and expires - _LEEWAY < datetime.now(UTC)
        if _is_renewable(held) and (stale or held.credential.access_token is None):
            await self._renew(app.name, held)
        await self._note(app.name, held.scheme, held.principal)
        return authentication(app.schemes.get(held.scheme), held.credential)

    async def _note(self, app: str, scheme: str, principal: str) -> None:
        """Record the use, once a task."""
        if (app, scheme) not in self._noted:
            self._noted.add((app, scheme))
            async with self._sessions.begin() as session:
                await credentials.note_use(session, self._apis[app].id, scheme, principal)

    async def _renew(self, app: str, held: _Held) -> None:
        """Get another access token: one process asks, the others wait for its answer."""
        known = held.credential.access_token
        deadline = time.monotonic() + _RENEWAL_SECONDS
        while time.monotonic() < deadline:
            if await self._reload(app, held, known):
                return
            async with self._sessions.begin() as session:
                claim = await credentials.claim_renewal(session, held.id, _RENEWAL_SECONDS)
            if claim and await self._reload(app, held, known):  # another process was done meanwhile
                async with self._sessions.begin() as session:
                    await credentials.release_renewal(session, held.id, claim)
                return
            if claim:  # also once the task is cancelled: a refresh token may be good for one use
                asking = asyncio.create_task(self._ask(app, held, claim))
                _asking.add(asking)
                asking.add_done_callback(_asking.discard)
                return await asyncio.shield(asking)
            await asyncio.sleep(_POLL_SECONDS)
        raise HostError("ApiError", f"no token for {app} within {_RENEWAL_SECONDS:g} seconds")

    async def _reload(self, app: str, held: _Held, known: str | None) -> bool:
        """Whether there is another token by now."""
        async with self._sessions() as session:
            row = await credentials.get(session, held.id)
            if row is None:
                raise HostError("ApiError", f"the credentials of {app} have been removed")
            now = _read(session, app, row)
            await self._check_server(session, app)
        held.credential, held.expires_at, held.authorized = now.credential, now.expires_at, now.authorized
        if not held.authorized:
            raise _not_connected(app, held)
        if held.credential.access_token in (None, known):
            return False
        held.renewed = time.monotonic()
        return True

    async def _ask(self, app: str, held: _Held, claim: datetime) -> None:
        try:
            tokens = await oauth.renewed(self._client, held.credential)
        except TokenError as error:
            async with self._sessions.begin() as session:
                reason = without_secrets(str(error), held.credential)
                await credentials.fail_renewal(session, held.id, claim, reason, authorized=not error.final)
            log.warning("no new token for an API", api=app, scheme=held.scheme, cause=reason)
            if error.final:
                raise _not_connected(app, held) from error
            raise HostError("ApiError", f"no token for {app}: {reason}") from error
        await self._keep(held, held.credential, tokens, claim)

    async def _keep(self, held: _Held, asked: Credential, tokens: Tokens, claim: datetime) -> None:
        """The tokens that the credential `asked` has got."""
        held.credential = with_tokens(asked, tokens)
        held.expires_at, held.renewed = tokens.expires_at, time.monotonic()
        value, expires_at = held.credential.to_json(), tokens.expires_at

        async def store() -> None:
            async with self._sessions.begin() as session:
                await credentials.end_renewal(session, held.id, claim, value=value, expires_at=expires_at)

        await retry_while_unavailable(store)


def with_tokens(credential: Credential, tokens: Tokens) -> Credential:
    """The credential with new tokens."""
    return msgspec.structs.replace(
        credential,
        access_token=tokens.access_token,
        refresh_token=tokens.refresh_token,
        client_auth=tokens.client_auth,
    )


def _read(session: AsyncSession, app: str, row: tables.ApiCredential) -> _Held:
    try:
        value = keys_of(session).decrypt(row.value or "")
    except SettingError as error:
        raise _unreadable(app, error) from error
    return _Held(
        id=row.id,
        scheme=row.scheme,
        principal=row.principal,
        kind=row.kind,
        authorized=row.authorized,
        expires_at=row.expires_at,
        credential=Credential.from_json(value),
    )


def _is_renewable(held: _Held) -> bool:
    return held.kind in OAUTH_KINDS and (held.credential.grant is not None)


def without_secrets(text: str, credential: Credential) -> str:
    """The text with the secrets of the credential masked."""
    for secret in sorted(secrets_of(credential).values(), key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def _unreadable(app: str, error: SettingError) -> HostError:
    log.error("a credential cannot be read", api=app, cause=str(error))
    return HostError("ApiError", f"the server cannot read its token for {app}: check SAGE_SECRET_KEY")


def _not_connected(app: str, held: _Held) -> HostError:
    whose = f" for {held.principal}" if held.principal else ""
    return HostError("ApiError", f"{app} is not connected{whose}: a person has to authorise {held.scheme} first")
