"""A hot swap before model servers as they really run, with adapters that tests call by short names."""

from dataclasses import dataclass
from pathlib import Path

from app.db import models, releases
from app.db.database import Sessions
from app.db.models import ReleaseState
from app.engine.http_engine import HttpEngine
from app.engine.protocol import Completion, Sampling
from app.hot_swap.adapter_directory import AdapterDirectory
from app.hot_swap.loader import HotSwap
from app.hot_swap.receipt import Receipt
from app.records import Probe
from tests.named_adapters import cut_short, make_named, probe_of
from tests.rows import project_row

PROMPT = [3, 1, 4, 1, 5]
GREEDY = Sampling(max_tokens=6, temperature=0)


@dataclass(frozen=True)
class Shelf:
    """Adapters in a directory; `names` are those that the model servers know them by."""

    model_dir: Path
    path: Path
    names: dict[str, str]

    @classmethod
    def fill(cls, model_dir: Path, path: Path) -> "Shelf":
        """Four sound ones, and some that are not."""
        names = {name: make_named(model_dir, path, seed) for seed, name in enumerate("abcd")}
        names["nan"] = make_named(model_dir, path, 8, fill=float("nan"))
        names["cut"] = make_named(model_dir, path, 9)
        cut_short(path, names["cut"])
        return cls(model_dir, path, names | {"none": "0" * 32, "base": "base"})

    def probe(self, name: str) -> Probe:
        return probe_of(self.model_dir, self.path / self.names[name])

    def swap(self, engine: HttpEngine, sessions: Sessions) -> HotSwap:
        return HotSwap(engine, sessions, AdapterDirectory(self.path, self.model_dir))


@dataclass(frozen=True)
class Swapping:
    engine: HttpEngine
    sessions: Sessions
    shelf: Shelf
    hot: HotSwap

    async def ask(self, name: str) -> Completion:
        return await self.hot.complete(PROMPT, model=self.shelf.names[name], sampling=GREEDY)

    async def load(self, name: str) -> None:
        await self.hot.load(self.shelf.names[name])

    async def swap(self, name: str, probe: Probe | None = None) -> Receipt:
        return await self.hot.swap(self.shelf.names[name], probe)

    async def unload(self, name: str) -> None:
        """As another process would."""
        await self.engine.unload_adapter(self.shelf.names[name])

    async def loaded(self) -> list[str]:
        """In the order of loading, "base" left out."""
        short = {long: name for name, long in self.shelf.names.items()}
        return [short[each] for each in await self.engine.loaded() if each != "base"]

    async def release(self, name: str, state: ReleaseState) -> models.Release:
        """The only one of a project of its own."""
        async with self.sessions.begin() as session:
            project = await project_row(session)
            first = await releases.active(session, project.id)
            first.model, first.state = self.shelf.names[name], state
        return first
