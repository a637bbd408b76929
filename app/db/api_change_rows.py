"""Changes of API documents."""

from uuid import UUID

from sqlalchemy import ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from app.db.base import Entity


class ApiChange(Entity):
    """The difference that a document had when it was fetched again. Operations by name."""

    __tablename__ = "api_changes"
    __table_args__ = (Index("ix_api_changes_api_id", "api_id", "created_at"),)

    api_id: Mapped[UUID] = mapped_column(ForeignKey("apis.id", ondelete="CASCADE"))
    digest: Mapped[str]  # of the new document
    applied: Mapped[bool]  # False: a person has to register it
    added: Mapped[list[str]]
    removed: Mapped[list[str]]
    changed: Mapped[list[str]]
    eased: Mapped[list[str]]  # that would need a person's approval less often, or not be writes any more
    skills: Mapped[list[str]]  # ids of those that no longer fit, and were quarantined
