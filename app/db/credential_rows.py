"""Credentials of APIs, encrypted."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import ForeignKey, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from app.db.base import Base, Entity


class ApiCredential(Entity):
    """What the gateway sends for one security scheme of an API, for all tasks or for those of one principal.

    Also the record of uses of an API's static token, which is stored with the API.
    """

    __tablename__ = "api_credentials"
    __table_args__ = (UniqueConstraint("api_id", "scheme", "principal"),)

    api_id: Mapped[UUID] = mapped_column(ForeignKey("apis.id", ondelete="CASCADE"))
    scheme: Mapped[str]
    principal: Mapped[str]  # "": all that have none of their own
    value: Mapped[str | None]  # encrypted JSON of a `Credential`
    kind: Mapped[str]  # of the scheme
    authorized: Mapped[bool]  # False: a person has to connect it first
    expires_at: Mapped[datetime | None]  # of an access token
    renewing_until: Mapped[datetime | None]  # a process asks for a new token until then
    connected_at: Mapped[datetime | None]  # a person has consented
    wanted_scopes: Mapped[list[str] | None]  # that the API asked for, and only a person can grant
    used_at: Mapped[datetime | None]  # by a task
    failed_at: Mapped[datetime | None]
    failure: Mapped[str | None]  # the last one, without secrets


class OAuthAttempt(Base):
    """A person was sent to an authorization server, and has not come back yet."""

    __tablename__ = "oauth_attempts"

    state: Mapped[str] = mapped_column(primary_key=True)  # sha256 of the parameter
    credential_id: Mapped[UUID] = mapped_column(ForeignKey("api_credentials.id", ondelete="CASCADE"))
    verifier: Mapped[str]  # of PKCE, encrypted
    value: Mapped[str | None]  # the credential that was asked for, as that of `ApiCredential`
    redirect_url: Mapped[str]
    expires_at: Mapped[datetime]
