"""Evicts adapters that nothing needs. vLLM would evict by itself, even adapters that a rollout still needs."""

import structlog

from app.base.errors import EngineError
from app.base.values import BASE
from app.db import adapters
from app.db.database import Sessions
from app.engine.client import HttpEngine
from app.engine.replica import PROBE_PREFIX
from app.hot_swap.load_everywhere import NoRoomError

log = structlog.get_logger(__name__)


class Evictable:
    """Loaded adapters that nothing unfinished needs: those of active releases, and others."""

    def __init__(self, active: list[str], others: list[str]) -> None:
        self._active, self._others = active, others

    def take(self, cause: str, *, ahead: bool) -> str:
        """The next one to evict; those of active releases come last, and never make room `ahead` of a task.

        Raises EngineError if all loaded adapters are in use, NoRoomError if only those of active releases are not.
        """
        if self._others:
            return self._others.pop(0)
        if not self._active:
            raise EngineError(
                f"all loaded adapters are in use, and there is no room for another ({cause}): wait until tasks of "
                "older releases, or training runs, have ended, or raise SAGE_ENGINE_ADAPTERS (--max-loras)"
            )
        if ahead:
            raise NoRoomError(cause)
        return self._active.pop(0)


async def check_room_ahead(engine: HttpEngine, sessions: Sessions, model: str) -> None:
    """Raises what `Evictable.take` raises if `model` can certainly not be loaded ahead of a task."""
    if full := _full_server(engine, model):
        (await evictable_adapters(engine, sessions, model)).take(full, ahead=True)


async def evict(engine: HttpEngine, sessions: Sessions, model: str, *, ahead: bool) -> None:
    """Unload unneeded adapters until every server that reports its limit has room for `model`.

    Raises what `Evictable.take` raises.
    """
    evictable: Evictable | None = None
    while full := _full_server(engine, model):
        evictable = evictable or await evictable_adapters(engine, sessions, model)
        await unload(engine, evictable.take(full, ahead=ahead))


def _full_server(engine: HttpEngine, model: str) -> str | None:
    """A live server at its limit, in words."""
    for replica in engine.replicas:
        adapters_there = replica.names - {BASE, model}
        if replica.alive and replica.max_loras is not None and len(adapters_there) >= replica.max_loras:
            return f"{replica.url} holds --max-loras of them"
    return None


async def evictable_adapters(engine: HttpEngine, sessions: Sessions, model: str) -> Evictable:
    """Those that make room for `model`.

    An adapter that the database does not know may be the policy of a training run; if none is running, a killed
    run left it behind.
    """
    loaded = [name for name in await engine.loaded() if name not in {BASE, model}]
    async with sessions() as session:
        needed, active = await adapters.needed(session), await adapters.active(session)
        known = await adapters.known(session, loaded)
        training = await adapters.any_trains(session)
    idle = [name for name in loaded if name not in needed]
    evictable = [name for name in idle if not training or name in known or name.startswith(PROBE_PREFIX)]
    return Evictable(
        [name for name in evictable if name in active], [name for name in evictable if name not in active]
    )


async def unload(engine: HttpEngine, model: str) -> None:
    await engine.unload_adapter(model)
    log.info("evicted an adapter", model=model)
