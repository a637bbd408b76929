"""The table of values that operations of a project's APIs are bound to."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import ForeignKey, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from app.db.base import Entity


class Secret(Entity):
    """A value that the gateway fills in. It is encrypted, and never shown again."""

    __tablename__ = "secrets"
    __table_args__ = (UniqueConstraint("project_id", "name"),)

    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"))
    name: Mapped[str]
    value: Mapped[str]  # encrypted
    used_at: Mapped[datetime | None]  # by a task
