"""The table of people who are signed in to the console."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import ForeignKey, Index, false
from sqlalchemy.orm import Mapped, mapped_column

from app.db.base import Entity


class SignIn(Entity):
    """A session of the console, or the link that starts one. Only the hash of its secret is stored."""

    __tablename__ = "sign_ins"
    __table_args__ = (Index("ix_sign_ins_expires_at", "expires_at"),)

    hash: Mapped[str] = mapped_column(unique=True)  # sha256, hex
    key_id: Mapped[UUID] = mapped_column(ForeignKey("keys.id", ondelete="CASCADE"), index=True)
    link: Mapped[bool]  # True: it starts a session, once
    by_link: Mapped[bool] = mapped_column(default=False, server_default=false())  # the session: a link began it
    expires_at: Mapped[datetime]
