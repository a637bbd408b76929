"""Room for one more adapter. vLLM would evict one by itself, and not ask which of them a rollout still needs."""

import structlog

from app.db import adapters, run_queue
from app.db.database import Sessions
from app.engine.capability import PROBE_PREFIX
from app.engine.http_engine import HttpEngine
from app.errors import EngineError
from app.records import BASE

log = structlog.get_logger(__name__)


async def make_room(engine: HttpEngine, sessions: Sessions, model: str) -> None:
    """Every model server that says how many adapters it holds can take `model`: those nobody needs go, one by one.

    Raises EngineError where all that are loaded are in use.
    """
    spare: list[str] | None = None
    while full := _full(engine, model):
        spare = await spare_adapters(engine, sessions, model) if spare is None else spare
        if not spare:
            raise in_use(f"{full} holds --max-loras of them")
        await unload(engine, spare.pop(0))


def _full(engine: HttpEngine, model: str) -> str | None:
    """The URL of a live server without room."""
    for replica in engine.replicas:
        adapters_there = replica.names - {BASE, model}
        if replica.alive and replica.max_loras is not None and len(adapters_there) >= replica.max_loras:
            return replica.url
    return None


async def spare_adapters(engine: HttpEngine, sessions: Sessions, model: str) -> list[str]:
    """Loaded adapters that nothing unfinished needs; those of active releases come last.

    What the database does not know may be the policy of a run that rolls out on these servers. While none runs, it
    is what a run that was killed left behind.
    """
    loaded = [name for name in await engine.loaded() if name not in {BASE, model}]
    async with sessions() as session:
        needed, active = await adapters.needed(session), await adapters.active(session)
        known = await adapters.known(session, loaded)
        training = await run_queue.any_running(session)
    idle = [name for name in loaded if name not in needed]
    spare = [name for name in idle if not training or name in known or name.startswith(PROBE_PREFIX)]
    return sorted(spare, key=active.__contains__)


async def unload(engine: HttpEngine, model: str) -> None:
    await engine.unload_adapter(model)
    log.info("an adapter made room", model=model)


def in_use(cause: str) -> EngineError:
    return EngineError(
        f"all adapters loaded are in use, and there is no room for another ({cause}): wait until tasks of older "
        "releases, or training runs, have ended, or serve with more --max-loras"
    )
