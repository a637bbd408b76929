"""Credentials as they are stored: checked against the document, and complete without it."""

from collections.abc import Mapping
from datetime import datetime
from uuid import UUID

import httpx
import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis.security_schemes import SecurityScheme
from app.credentials import oauth
from app.credentials.credential import Credential, checked
from app.db import api_credentials, tables


class PreparedCredential(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored for one scheme."""

    scheme: str
    kind: str
    credential: Credential
    authorized: bool  # False: a person has to consent first

    async def store(
        self, session: AsyncSession, api_id: UUID, principal: str, expires_at: datetime | None = None
    ) -> tables.ApiCredential:
        """Replaces what is stored for the scheme and the principal."""
        return await api_credentials.put(
            session,
            api_id,
            self.scheme,
            principal,
            kind=self.kind,
            value=self.credential.to_json(),
            authorized=self.authorized,
            expires_at=expires_at,
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
    if scheme is not None and kind in ("oauth2", "openid"):
        credential = await oauth.complete(name, credential, scheme, base, client)
        has_token = credential.access_token is not None or credential.refresh_token is not None
        authorized = has_token or credential.grant != "authorization_code"
    return PreparedCredential(scheme=name, kind=kind, credential=credential, authorized=authorized)
