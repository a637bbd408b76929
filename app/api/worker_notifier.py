"""Tells the workers that a training run waits."""

import asyncio
from uuid import UUID

from celery import Celery

from app.queue import open_broker, ring
from app.settings import Settings


class BrokerBell:
    """Opens the broker when it is first rung. Nothing depends on its being heard: the row is what counts."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._broker: Celery | None = None

    async def ring(self, run_id: UUID) -> None:
        """Call it after the commit that queued the run."""
        await asyncio.to_thread(self._ring, run_id)

    def _ring(self, run_id: UUID) -> None:
        self._broker = self._broker or open_broker(self._settings)
        ring(self._broker, run_id)
