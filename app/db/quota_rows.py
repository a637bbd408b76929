"""Each project's turn at the queue, and what it used each day."""

from datetime import date
from uuid import UUID

from sqlalchemy import BigInteger, Double, ForeignKey, SmallInteger
from sqlalchemy.orm import Mapped, mapped_column

from app.db.base import Base


class ProjectTurn(Base):
    """The virtual time at which a task of the project was last claimed; see `fair_queue`."""

    __tablename__ = "project_turns"

    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"), primary_key=True)
    turn: Mapped[float | None] = mapped_column(Double)  # NULL: never


class ProjectUsage(Base):
    """What a project used on one day (UTC), as the sum over `writer`.

    Runners are spread over several rows, and submissions have their own, so that a process which stops in the
    middle of a transaction keeps few others waiting.
    """

    __tablename__ = "project_usage"

    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"), primary_key=True)
    day: Mapped[date] = mapped_column(primary_key=True)
    writer: Mapped[int] = mapped_column(SmallInteger, primary_key=True, autoincrement=False)
    submitted: Mapped[int] = mapped_column(BigInteger, server_default="0")
    done: Mapped[int] = mapped_column(BigInteger, server_default="0")
    failed: Mapped[int] = mapped_column(BigInteger, server_default="0")
    cancelled: Mapped[int] = mapped_column(BigInteger, server_default="0")
    turns: Mapped[int] = mapped_column(BigInteger, server_default="0")
    generated_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    calls: Mapped[int] = mapped_column(BigInteger, server_default="0")
    prompt_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    cost: Mapped[float] = mapped_column(server_default="0")  # of hosted models whose price is known
    other_cost: Mapped[float] = mapped_column(server_default="0")  # the part of it that was for no task
