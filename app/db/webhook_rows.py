"""The table of messages to webhooks, which is also their queue."""

from enum import StrEnum
from uuid import UUID

from sqlalchemy import ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from app.db.base import Due, Entity, listing_indexes


class DeliveryState(StrEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"  # given up, until somebody has it sent again


class WebhookDelivery(Entity, Due):
    """A message about an event of a task or a release, stored in the transaction of the event.

    `attempt` counts the times it was sent.
    """

    __tablename__ = "webhook_deliveries"
    __table_args__ = (
        Index("ix_webhook_deliveries_queue", "project_id", "next_at", postgresql_where=text("state = 'pending'")),
        Index("ix_webhook_deliveries_leased", "project_id", postgresql_where=text("owner IS NOT NULL")),
        *listing_indexes("webhook_deliveries"),
        *listing_indexes("webhook_deliveries", "state"),
        Index("ix_webhook_deliveries_finished", "finished_at"),
    )

    task_id: Mapped[UUID | None] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"), index=True)
    release_id: Mapped[UUID | None] = mapped_column(ForeignKey("releases.id", ondelete="CASCADE"), index=True)
    event: Mapped[str]
    body: Mapped[str]  # the same at every attempt
    state: Mapped[DeliveryState] = mapped_column(default=DeliveryState.PENDING)
    status: Mapped[int | None]  # HTTP status of the latest answer
    error: Mapped[str | None]  # of the latest attempt
