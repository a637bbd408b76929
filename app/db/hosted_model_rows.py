"""The table of models that other servers host."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ForeignKey, UniqueConstraint
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from app.db.base import Entity


class HostedModel(Entity):
    """An endpoint of chat completions that a project may use as policy, expert or judge.

    `releases.model` is `records.hosted(id)` where it is the policy.
    """

    __tablename__ = "hosted_models"
    __table_args__ = (UniqueConstraint("project_id", "name"),)

    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"))
    name: Mapped[str]
    url: Mapped[str]
    model: Mapped[str]  # its name there
    key: Mapped[str | None]  # encrypted; never shown
    trusted: Mapped[bool]  # its URL is by a key for all projects: it may be at any address of this network
    price_in: Mapped[float | None]  # of a million tokens of prompts; NULL: unknown, so its cost is
    price_out: Mapped[float | None]
    abilities: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))  # by its latest probe
    probed_at: Mapped[datetime | None]
    failure: Mapped[str | None]  # why its latest probe, or request, failed
