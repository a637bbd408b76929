"""A chaos run: events at random while tasks run, and how long it takes to recover from each."""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

import msgspec

from tests.support import chaos_events
from tests.support.chaos_events import Inflict, Scene
from tests.support.chaos_load import Life, Load, TaskEnd

_AT_ONCE = (1, 2, 4, 6)
"""Events of a round."""
_LOOK_SECONDS = 0.05
_TRUTH_SECONDS = 15.0  # for which it may say that it is ready while nothing gets on
_SPARES_CALLS = frozenset(
    event.__name__
    for event in (
        chaos_events.kill_api,
        chaos_events.kill_worker,
        chaos_events.kill_engine,
        chaos_events.kill_sandbox,
        chaos_events.kill_zygotes,
        chaos_events.stall_api,
        chaos_events.stall_engine,
        chaos_events.nearly_full_disk,
        chaos_events.reset_engine,
        chaos_events.reset_api,
        chaos_events.silence_engine,
        chaos_events.silence_api,
    )
)
"""After which the server knows of every call what became of it."""
_KILLS = frozenset(event.__name__ for event in (chaos_events.kill_runner, chaos_events.kill_all_runners))
"""By which a runner dies."""
_CONDEMNING = 2


class Inflicted(msgspec.Struct, frozen=True):
    """An event; `recovery` is None if others came at once, or before all tasks got on."""

    kind: str
    began: float
    ended: float
    recovery: float | None = None


class ChaosRun:
    """Inflicts events while a load runs. Times are on the monotonic clock."""

    def __init__(self, scene: Scene, load: Load, *, patience: float, kinds: Sequence[str] = ()) -> None:
        """After `patience` seconds a round gives way to the next, recovered or not. `kinds`: of events; all if
        none is named.
        """
        self.inflicted = list[Inflicted]()
        self.untrue = list[str]()
        self._scene, self._load, self._patience = scene, load, patience
        self._kinds = chaos_events.kinds(scene, *kinds)

    async def inflict(self, count: int) -> None:
        """So many events, in rounds of one or more at once. Print each."""
        async with self._watching():
            while len(self.inflicted) < count:
                size = min(self._scene.chance.choice(_AT_ONCE), count - len(self.inflicted))
                chosen = self._scene.chance.choices([*self._kinds], [*self._kinds.values()], k=size)
                await self._round(chosen)

    async def _round(self, chosen: Sequence[Inflict]) -> None:
        waiting = set(self._load.pending)
        done = await asyncio.gather(*map(self._one, chosen))
        ended = max(each.ended for each in done)
        taken = await self._recovered(waiting, ended)
        if len(done) == 1:
            done = [msgspec.structs.replace(done[0], recovery=taken)]
        self.inflicted += done
        names = " + ".join(each.kind for each in done)
        print(f"{len(self.inflicted):4} {names}: {'-' if taken is None else f'{taken:.1f} s'}", flush=True)

    async def _one(self, event: Inflict) -> Inflicted:
        began = time.monotonic()
        await event(self._scene)
        return Inflicted(event.__name__, began, time.monotonic())

    async def _recovered(self, waiting: set[str], since: float) -> float | None:
        """Seconds until each of the tasks that were under way has made a write or ended."""
        entries = self._load.deployment.ledger.entries
        known = len(entries)
        while waiting:
            if time.monotonic() > since + self._patience:
                return None
            await asyncio.sleep(_LOOK_SECONDS)
            waiting -= {entry.text.split()[0] for entry in entries[known:]}
            waiting &= self._load.pending
        return time.monotonic() - since

    @asynccontextmanager
    async def _watching(self) -> AsyncIterator[None]:
        watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.wait([watching])

    async def _watch(self) -> None:
        """Note when /readyz says 200 for long while tasks wait and nothing gets on."""
        since = time.monotonic()
        while True:
            state = (len(self._load.deployment.ledger.entries), frozenset(self._load.pending))
            await asyncio.sleep(1)
            now = (len(self._load.deployment.ledger.entries), frozenset(self._load.pending))
            if await self._load.deployment.ready() or now != state or not self._load.pending:
                since = time.monotonic()
            elif time.monotonic() - since > _TRUTH_SECONDS:
                self.untrue.append(f"ready, and {len(self._load.pending)} tasks wait: {self.inflicted[-3:]}")
                since = time.monotonic()

    def needless(self, ends: Iterable[TaskEnd]) -> list[str]:
        """Tasks in doubt although no call can be lost, or given up although no two runners died."""
        return [
            f"{end.word}: {end.shown['failure']} after {met}"
            for end in ends
            for met in (self._met(self._load.lives[end.word]),)
            if (
                (end.stop == "in_doubt" and set(met) <= _SPARES_CALLS)
                or (end.stop == "crashed" and sum(kind in _KILLS for kind in met) < _CONDEMNING)
            )
        ]

    def _met(self, life: Life) -> list[str]:
        return [each.kind for each in self.inflicted if each.began < life.ended and each.ended > life.sent]

    def recoveries(self) -> dict[str, list[float]]:
        """Seconds by kind of event, of those that came alone."""
        found = dict[str, list[float]]()
        for each in self.inflicted:
            if each.recovery is not None:
                found.setdefault(each.kind, []).append(each.recovery)
        return dict(sorted(found.items()))


def table(recoveries: dict[str, list[float]]) -> str:
    """Median and worst of each kind."""
    rows = (
        f"| {kind.replace('_', ' ')} | {len(each)} | {statistics.median(each):.1f} | {max(each):.1f} |"
        for kind, each in recoveries.items()
    )
    return "\n".join(("| event | alone | median s | worst s |", "|---|---|---|---|", *rows))
