"""What each training worker has installed."""

from datetime import datetime
from typing import Any

from sqlalchemy import func
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
