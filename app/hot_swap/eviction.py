"""Evicts adapters that nothing needs. vLLM would evict by itself, even adapters that a rollout still needs."""

import structlog

from app.db import adapters, run_queue
from app.db.database import Sessions
from app.engine.capability import PROBE_PREFIX
from app.engine.http_engine import HttpEngine
from app.errors import EngineError
from app.records import BASE

log = structlog.get_logger(__name__)


async def evict(engine: HttpEngine, sessions: Sessions, model: str) -> None:
    """Unload unneeded adapters until every server that reports its limit has room for `model`.

    Raises EngineError if all loaded adapters are in use.
    """
    evictable: list[str] | None = None
    while full := _full_server(engine, model):
        evictable = await evictable_adapters(engine, sessions, model) if evictable is None else evictable
        if not evictable:
            raise all_in_use_error(f"{full} holds --max-loras of them")
        await unload(engine, evictable.pop(0))


def _full_server(engine: HttpEngine, model: str) -> str | None:
    """The URL of a live server at its limit."""
    for replica in engine.replicas:
        adapters_there = replica.names - {BASE, model}
        if replica.alive and replica.max_loras is not None and len(adapters_there) >= replica.max_loras:
            return replica.url
    return None


async def evictable_adapters(engine: HttpEngine, sessions: Sessions, model: str) -> list[str]:
    """Loaded adapters that nothing unfinished needs; those of active releases last.

    An adapter that the database does not know may be the policy of a training run; if none is running, a killed
    run left it behind.
    """
    loaded = [name for name in await engine.loaded() if name not in {BASE, model}]
    async with sessions() as session:
        needed, active = await adapters.needed(session), await adapters.active(session)
        known = await adapters.known(session, loaded)
        training = await run_queue.any_running(session)
    idle = [name for name in loaded if name not in needed]
    evictable = [name for name in idle if not training or name in known or name.startswith(PROBE_PREFIX)]
    return sorted(evictable, key=active.__contains__)


async def unload(engine: HttpEngine, model: str) -> None:
    await engine.unload_adapter(model)
    log.info("evicted an adapter", model=model)


def all_in_use_error(cause: str) -> EngineError:
    return EngineError(
        f"all loaded adapters are in use, and there is no room for another ({cause}): wait until tasks of older "
        "releases, or training runs, have ended, or raise SAGE_ENGINE_ADAPTERS (--max-loras)"
    )
