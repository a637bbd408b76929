"""What goes wrong in a chaos run: each kind of event is inflicted on a deployment, and ends by itself."""

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

import msgspec
from sqlalchemy import text

from app.db.database import TRANSIENT
from tests.support.chaos_deployment import LEASE_SECONDS, Deployment
from tests.support.processes import descendants
from tests.support.small_filesystem import FILLER, fill
from tests.support.stepped_clock import SteppedClock

STALL_SECONDS = 1.5 * LEASE_SECONDS
HANG_SECONDS = 15.0
"""As long as this, `sage up` restarts what does not answer."""
_FULL_SECONDS = 4.0
_HOUR = 3600
_TERMINATE = text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
)

Inflict = Callable[["Scene"], Awaitable[None]]


class Scene(msgspec.Struct, frozen=True):
    """The deployment, chance, its clocks if they can step, and whether `disk` is one of its own."""

    deployment: Deployment
    chance: random.Random
    clocks: dict[str, SteppedClock]
    small_disk: bool

    def kill(self, command: str) -> None:
        self.signal(self.one(self.deployment.pids(command)), signal.SIGKILL)

    def one(self, pids: list[int]) -> list[int]:
        return [self.chance.choice(pids)] if pids else []

    def signal(self, pids: Iterable[int], number: signal.Signals) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, number)

    async def stall(self, pids: list[int], seconds: float = STALL_SECONDS) -> None:
        self.signal(pids, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.signal(pids, signal.SIGCONT)


async def kill_runner(scene: Scene) -> None:
    scene.kill("app.cli runner")


async def kill_all_runners(scene: Scene) -> None:
    scene.signal(scene.deployment.pids("app.cli runner"), signal.SIGKILL)


async def kill_api(scene: Scene) -> None:
    scene.kill("app.cli serve")


async def kill_worker(scene: Scene) -> None:
    scene.kill("app.cli worker")


async def kill_engine(scene: Scene) -> None:
    scene.kill("tests.support.chaos_engine")


async def kill_sandbox(scene: Scene) -> None:
    """A process that sessions are forked from, or a session."""
    runners = scene.deployment.pids("app.cli runner")
    scene.signal(scene.one(sorted(set().union(*map(descendants, runners)))), signal.SIGKILL)


async def kill_zygotes(scene: Scene) -> None:
    runners = scene.deployment.pids("app.cli runner")
    scene.signal(set().union(*map(descendants, runners)), signal.SIGKILL)


async def kill_backend(scene: Scene) -> None:
    """PostgreSQL then ends all others, and recovers."""
    scene.signal(scene.one(scene.deployment.postgres()[1:]), signal.SIGKILL)


async def kill_postgres(scene: Scene) -> None:
    scene.signal(scene.deployment.postgres(), signal.SIGKILL)


async def stall_runner(scene: Scene) -> None:
    await scene.stall(scene.one(scene.deployment.pids("app.cli runner")))


async def stall_runners(scene: Scene) -> None:
    """With their sandboxes, as if their machine was paused."""
    runners = scene.deployment.pids("app.cli runner")
    await scene.stall([*runners, *set().union(*map(descendants, runners))])


async def stall_api(scene: Scene) -> None:
    await scene.stall(scene.deployment.pids("app.cli serve"))


async def stall_engine(scene: Scene) -> None:
    await scene.stall(scene.deployment.pids("tests.support.chaos_engine"))


async def stall_postgres(scene: Scene) -> None:
    await scene.stall(scene.deployment.postgres())


async def stall_all(scene: Scene) -> None:
    """As if the machine was suspended."""
    up = scene.deployment.up.pid
    await scene.stall([up, *descendants(up), *scene.deployment.postgres()])


async def hang(scene: Scene) -> None:
    """Until it is replaced."""
    pids = scene.one(
        [*scene.deployment.pids("app.cli serve"), *scene.deployment.pids("tests.support.chaos_engine")]
    )
    await scene.stall(pids, HANG_SECONDS)


async def full_disk(scene: Scene) -> None:
    await _fill(scene, 0)


async def nearly_full_disk(scene: Scene) -> None:
    """Below the minimum at which tasks are claimed."""
    await _fill(scene, 8 << 20)


async def _fill(scene: Scene, leave: int) -> None:
    with suppress(OSError):  # another event has filled it, or ends
        await asyncio.to_thread(fill, scene.deployment.disk, leave)
    await asyncio.sleep(_FULL_SECONDS)
    (scene.deployment.disk / FILLER).unlink(missing_ok=True)


async def step_clocks(scene: Scene) -> None:
    """Of the server, of the database, or of both."""
    for name in scene.chance.choice((("server",), ("database",), ("server", "database"))):
        scene.clocks[name].set_wrong_by(scene.chance.randint(-_HOUR, _HOUR))


async def reset_database(scene: Scene) -> None:
    scene.deployment.proxies["database"].reset()


async def terminate_backends(scene: Scene) -> None:
    """As an administrator or a failover does."""
    with suppress(*TRANSIENT):  # it is down already
        async with scene.deployment.sessions() as session:
            await session.execute(_TERMINATE)


async def reset_engine(scene: Scene) -> None:
    scene.deployment.proxies["engine"].reset()


async def reset_api(scene: Scene) -> None:
    """The server does not know which writes have arrived: it reports an error to the agent."""
    scene.deployment.proxies["api"].reset()


async def silence_database(scene: Scene) -> None:
    await _silence(scene, "database")


async def silence_engine(scene: Scene) -> None:
    await _silence(scene, "engine")


async def silence_api(scene: Scene) -> None:
    await _silence(scene, "api")


async def _silence(scene: Scene, name: str) -> None:
    proxy = scene.deployment.proxies[name]
    async with proxy.silent():
        await asyncio.sleep(STALL_SECONDS)
    if scene.chance.random() < 0.5:
        proxy.reset()


_KINDS: dict[Inflict, int] = {
    kill_runner: 6,
    kill_all_runners: 1,
    kill_api: 3,
    kill_worker: 1,
    kill_engine: 4,
    kill_sandbox: 8,
    kill_zygotes: 4,
    kill_backend: 4,
    kill_postgres: 3,
    stall_runner: 6,
    stall_runners: 3,
    stall_api: 2,
    stall_engine: 2,
    stall_postgres: 3,
    stall_all: 3,
    hang: 1,
    full_disk: 3,
    nearly_full_disk: 2,
    step_clocks: 6,
    reset_database: 6,
    terminate_backends: 4,
    reset_engine: 4,
    reset_api: 4,
    silence_database: 4,
    silence_engine: 2,
    silence_api: 2,
}
"""How often each kind comes, in proportion."""
_NEEDS_DISK = (full_disk, nearly_full_disk)


def kinds(scene: Scene, *names: str) -> dict[Inflict, int]:
    """Those that are possible here, or of these only those of the names."""
    missing = set[Inflict]()
    if not scene.small_disk:
        missing.update(_NEEDS_DISK)
    if not scene.clocks:
        missing.add(step_clocks)
    possible = {kind: weight for kind, weight in _KINDS.items() if kind not in missing}
    return {kind: weight for kind, weight in possible.items() if not names or kind.__name__ in names}
