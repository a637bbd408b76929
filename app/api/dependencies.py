"""What the edge needs of the parts below it, as protocols, so that each can be handed in."""

from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable
from uuid import UUID

import httpx
import msgspec

from app.api.health import Probe
from app.api.notifications import EventFeed
from app.db.database import Sessions
from app.engine.dispatcher import Occupancy
from app.hot_swap.adapter_directory import AdapterDirectory
from app.records import Offer
from app.release.promote import Promoter, Swapper


@runtime_checkable
class Work(Protocol):
    """The runner, as the edge sees it."""

    def wake(self) -> None:
        """There may be work, or a task to cancel. Missing a call costs a moment, never a task."""
        ...


@runtime_checkable
class Search(Protocol):
    """The skill library, as the edge sees it."""

    async def find(self, project_id: UUID, instruction: str, scenario: str | None, limit: int) -> list[Offer]: ...


@runtime_checkable
class Bell(Protocol):
    """The broker, as the edge sees it."""

    async def ring(self, run_id: UUID) -> None:
        """A training run waits. Missing a call costs a delay, never a run."""
        ...


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the HTTP application stands on."""

    sessions: Sessions
    feed: EventFeed
    work: Work
    library: Search
    swap: Swapper  # the model servers
    promoter: Promoter
    adapters: AdapterDirectory
    bell: Bell
    client: httpx.AsyncClient  # fetches OpenAPI documents
    probes: Mapping[str, Probe]
    occupancy: Callable[[], Occupancy]  # of the model servers
