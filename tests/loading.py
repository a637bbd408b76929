"""In the place of the model servers: remembers what it is asked to serve, or refuses."""

import asyncio

from app.errors import AppError
from app.hot_swap.receipt import Receipt, ReplicaReceipt
from app.records import Probe


class Loads:
    def __init__(self) -> None:
        self.models: list[str] = []
        self.refusal: AppError | None = None
        self.open = asyncio.Event()  # cleared: a swap takes until it is set
        self.open.set()
        self.begun = asyncio.Event()

    async def swap(self, model: str, probe: Probe | None) -> Receipt:
        self.begun.set()
        await self.open.wait()
        if self.refusal is not None:
            raise self.refusal
        self.models.append(model)
        proof = ReplicaReceipt(
            url="http://engine",
            load_seconds=0.25,
            probe_seconds=0.125,
            probed=probe is not None,
            error=1e-5,
            distance=0.5,
            noise=1e-5,
        )
        return Receipt(model=model, seconds=0.5, replicas=(proof,))
