"""An adapter loader on real model servers, with adapters that tests call by short names."""

from dataclasses import dataclass
from pathlib import Path

from app.base.values import Probe
from app.db import tables
from app.db.database import Sessions
from app.db.tables import ReleaseState
from app.engine.client import HttpEngine
from app.engine.protocol import Completion, OpenHosted, Sampling
from app.releases import store as releases
from app.releases.adapter_store import AdapterDirectory
from app.releases.swap import AdapterLoader, SwapReport
from tests.support.named_adapters import cut_short, make_named, probe_of
from tests.support.rows import project_row

PROMPT = [3, 1, 4, 1, 5]
GREEDY = Sampling(max_tokens=6, temperature=0)


@dataclass(frozen=True)
class NamedAdapters:
    """Adapters in a directory; `names` maps short names to those on the model servers."""

    model_dir: Path
    path: Path
    names: dict[str, str]

    @classmethod
    def fill(cls, model_dir: Path, path: Path) -> "NamedAdapters":
        """Four valid ones, and some damaged ones."""
        names = {name: make_named(model_dir, path, seed) for seed, name in enumerate("abcd")}
        names["nan"] = make_named(model_dir, path, 8, fill=float("nan"))
        names["cut"] = make_named(model_dir, path, 9)
        cut_short(path, names["cut"])
        return cls(model_dir, path, names | {"none": "0" * 32, "base": "base"})

    def probe(self, name: str) -> Probe:
        return probe_of(self.model_dir, self.path / self.names[name])

    def loader(
        self, engine: HttpEngine, sessions: Sessions, open_hosted: OpenHosted | None = None
    ) -> AdapterLoader:
        return AdapterLoader(engine, sessions, AdapterDirectory(self.path, self.model_dir), open_hosted)


@dataclass(frozen=True)
class LoaderSetup:
    engine: HttpEngine
    sessions: Sessions
    adapters: NamedAdapters
    loader: AdapterLoader

    async def ask(self, name: str) -> Completion:
        return await self.loader.complete(PROMPT, model=self.adapters.names[name], sampling=GREEDY)

    async def load(self, name: str) -> None:
        await self.loader.load(self.adapters.names[name])

    async def swap(self, name: str, probe: Probe | None = None) -> SwapReport:
        return await self.loader.swap(self.adapters.names[name], probe)

    async def unload(self, name: str) -> None:
        """Unloads as another process would."""
        await self.engine.unload_adapter(self.adapters.names[name])

    async def loaded(self) -> list[str]:
        """In the order of loading, without "base"."""
        short = {long: name for name, long in self.adapters.names.items()}
        return [short[each] for each in await self.engine.loaded() if each != "base"]

    async def release(self, name: str, state: ReleaseState) -> tables.Release:
        """The only release of a new project."""
        async with self.sessions.begin() as session:
            project = await project_row(session)
            first = await releases.active(session, project.id)
            first.model, first.state = self.adapters.names[name], state
        return first
