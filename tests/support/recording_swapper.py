"""Stands in for the model servers: records the adapters it is asked to load, or refuses."""

import asyncio

from app.base.errors import AppError
from app.base.values import Probe
from app.releases.swap import ReplicaSwapReport, SwapReport


class RecordingSwapper:
    def __init__(self) -> None:
        self.models: list[str] = []
        self.refusal: AppError | None = None
        self.open = asyncio.Event()  # cleared: swaps wait until it is set
        self.open.set()
        self.begun = asyncio.Event()

    async def swap(self, model: str, probe: Probe | None) -> SwapReport:
        self.begun.set()
        await self.open.wait()
        if self.refusal is not None:
            raise self.refusal
        self.models.append(model)
        replica = ReplicaSwapReport(
            url="http://engine",
            load_seconds=0.25,
            probe_seconds=0.125,
            probed=probe is not None,
            error=1e-5,
            distance=0.5,
            noise=1e-5,
        )
        return SwapReport(model=model, seconds=0.5, replicas=(replica,))
