"""Shared by all tables: constraint names, column types, and the columns that many rows have."""

from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar
from uuid import UUID, uuid4

from sqlalchemy import ARRAY, DateTime, Enum, ForeignKey, Index, LargeBinary, MetaData, func, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from app.db.column_types import CleanText


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "pk": "pk_%(table_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "ix": "ix_%(table_name)s_%(column_0_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
        }
    )
    type_annotation_map: ClassVar = {
        str: CleanText,
        bytes: LargeBinary,
        datetime: DateTime(timezone=True),
        dict[str, Any]: JSONB,
        list[str]: ARRAY(CleanText),
        StrEnum: Enum(
            StrEnum, native_enum=False, length=32, values_callable=lambda kind: [each.value for each in kind]
        ),
    }


class Entity(Base):
    """A row with an id and the time of its creation."""

    __abstract__ = True

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid4, sort_order=-1)
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())


class Leased(Base):
    """A row of a queue, which one process at a time works on; see `lease.LeaseQueue`."""

    __abstract__ = True

    owner: Mapped[str | None]  # the claim that holds the lease: see `lease.new_claim`
    lease_until: Mapped[datetime | None]
    attempt: Mapped[int] = mapped_column(default=0)
    finished_at: Mapped[datetime | None]


class Due(Leased):
    """A message to a server of a project; see `due_queue.DueQueue`."""

    __abstract__ = True

    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"))
    next_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())  # of the next attempt


def listing_indexes(table: str, by: str = "", *, sparse: bool = False) -> tuple[Index, Index]:
    """What a listing reads, newest first, that is filtered by a column: one index for a project, one for all.

    `sparse` leaves out the rows where the column is NULL.
    """
    suffix, columns = (f"_{by}", (by, "created_at", "id")) if by else ("", ("created_at", "id"))
    where = text(f"{by} IS NOT NULL") if sparse else None
    return (
        Index(f"ix_{table}_listing{suffix}", "project_id", *columns, postgresql_where=where),
        Index(f"ix_{table}_newest{suffix}", *columns, postgresql_where=where),
    )
