"""Tables that record running tasks: events, turns and calls."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ForeignKey, func
from sqlalchemy.orm import Mapped, mapped_column

from app.db.base import Base


class TaskEvent(Base):
    """An event of the task's event stream."""

    __tablename__ = "task_events"

    task_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str]
    data: Mapped[dict[str, Any]]
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())


class TaskTurn(Base):
    """A turn of the policy, stored before its code runs and replayed by a resumed task."""

    __tablename__ = "task_turns"

    task_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True)
    index: Mapped[int] = mapped_column(primary_key=True)
    record: Mapped[bytes]  # msgpack of records.Turn, encrypted
    ended: Mapped[bool] = mapped_column(default=False)  # the record also holds the observation


class TaskCall(Base):
    """An API call, committed before it goes out and completed with its result."""

    __tablename__ = "task_calls"

    task_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    api: Mapped[str]
    arguments: Mapped[dict[str, Any]]  # {} where they are encrypted
    sealed_arguments: Mapped[bytes | None]  # JSON, encrypted
    repeatable: Mapped[bool]  # safe to send again if the result was lost
    record: Mapped[bytes | None]  # msgpack of records.Call, encrypted; NULL while the call is in flight
