"""Processes that execute work: runners, and what each training worker has installed."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Identity, false, func
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from app.db.base import Base


class WorkerEnvironment(Base):
    """An environment of one worker. A row that is not refreshed belongs to a worker that is gone."""

    __tablename__ = "worker_environments"

    worker: Mapped[str] = mapped_column(primary_key=True)  # its host
    name: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[str]
    options: Mapped[dict[str, Any]]  # JSON schema
    reported_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())


class RunnerProcess(Base):
    """A runner, which refreshes its row every second. Without that it is stuck, cut off or dead."""

    __tablename__ = "runners"

    id: Mapped[str] = mapped_column(primary_key=True)  # the owner of its tasks' leases
    number: Mapped[int] = mapped_column(BigInteger, Identity())  # of all runners ever started
    host: Mapped[str]
    pid: Mapped[int]
    pid_space: Mapped[str]  # where the pid is valid: `process_identity.pid_space`
    started_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    seen_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    in_flight: Mapped[int]
    capacity: Mapped[int]
    memory_bytes: Mapped[int] = mapped_column(BigInteger)
    generating: Mapped[int] = mapped_column(default=0, server_default="0")  # requests under way to model servers
    waiting: Mapped[int] = mapped_column(default=0, server_default="0")  # requests that wait for a model server
    sandbox: Mapped[str]  # its layers of confinement
    prompt: Mapped[str | None]  # hash of the prompt that it serves with
    draining: Mapped[bool] = mapped_column(default=False, server_default=false())  # it claims nothing more
    error: Mapped[str | None]  # why it cannot execute tasks
    faults: Mapped[dict[str, str]] = mapped_column(JSONB, default=dict, server_default="{}")  # by part of it
    loop_failures: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")  # rounds that raised
    loop_restarts: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    dropped_lines: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")  # of its log
