"""Uploaded training data."""

from uuid import UUID

from sqlalchemy import BigInteger, ForeignKey, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from app.db.base import Entity


class Dataset(Entity):
    """A file of conversations, which never changes. Its content is in `datasets.DatasetStore`, under the id."""

    __tablename__ = "datasets"
    __table_args__ = (UniqueConstraint("project_id", "digest"),)

    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"))
    name: Mapped[str]
    digest: Mapped[str]  # sha256 of the content, hex
    bytes: Mapped[int] = mapped_column(BigInteger)
    conversations: Mapped[int]
