"""A run that has published an adapter, ready for the gate; the policies are scripts."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from app.agent.prompts import Compact
from app.agent.rollout import Agent, RolloutLimits
from app.base.errors import AdapterError, ConflictError, EngineRefusalError
from app.base.run_settings import RunSettings
from app.base.values import Json, Task, Trajectory
from app.db import tables
from app.db.database import Sessions
from app.engine.protocol import Completion, Sampling
from app.releases import manifest_store
from app.releases import store as releases
from app.runs import store as runs
from app.sandbox.forked_sandbox import ForkedSandbox
from tests.support.evaluated_server import ExpertPolicy
from tests.support.promoted_releases import EVEN, GAIN, exam
from tests.support.rows import project_row
from tests.support.scripted_engine import Answer, Script, ScriptedEngine, block, byte_tokenizer
from trainer.environment import Scenario, Split, Verdict
from trainer.evaluation.gate_decision import GateRules
from trainer.evaluation.local import Evaluator
from trainer.runs.gate import CandidateAdapter, GateResult, Guard, evaluate_candidate
from trainer.worlds.office.environment import OfficeEnvironment, OfficeWorld

SCENARIOS = 4
RULES = GateRules(min_scenarios=SCENARIOS)
NEW, BEST, SERVING = "the-new-adapter", "the-best-so-far", "what-serves-now"
BASE_MODEL = "the-base-model"


def lazy(*_: object) -> str:
    return block("apis.supervisor.complete_task()")


def wordy(*_: object) -> str:
    """Does as much as `lazy`, in more tokens."""
    return block("print('Let me think.')\napis.supervisor.complete_task()")


class FixedScenarios(OfficeEnvironment):
    """Always the same scenarios, which the expert knows; records the requests."""

    def __init__(self, count: int = SCENARIOS) -> None:
        super().__init__()
        self.fixed = super().scenarios("validation", count, seed=1)
        self.requests: list[tuple[Split, int]] = []

    def scenarios(self, split: Split, count: int, seed: int) -> Sequence[Scenario]:  # noqa: ARG002
        self.requests.append((split, count))
        return self.fixed[:count]


class PartlyKnown(FixedScenarios):
    """Nobody can tell how the model did on the scenarios after the first `known`, as on recorded calls."""

    def __init__(self, model: str, known: int, count: int = SCENARIOS) -> None:
        super().__init__(count)
        self.unknown = {task.id for each in self.fixed[known:] for task in each.tasks}
        self.model = model

    @asynccontextmanager
    async def open(self, scenario: Scenario, task: Task) -> AsyncIterator[OfficeWorld]:
        async with super().open(scenario, task) as world:
            yield PartlyKnownWorld(world, self.model if task.id in self.unknown else "")


class PartlyKnownWorld(OfficeWorld):
    """Its verdict on the model is unknown."""

    def __init__(self, world: OfficeWorld, model: str) -> None:
        self.__dict__.update(world.__dict__)
        self.model = model

    async def verify(self, trajectory: Trajectory) -> Verdict:
        verdict = await super().verify(trajectory)
        return msgspec.structs.replace(verdict, known=trajectory.policy.model != self.model)


class Policies:
    """A model server with a script for each model it has loaded."""

    def __init__(self, scripts: Mapping[str, Script], engine: Callable[[Script], ScriptedEngine]) -> None:
        self.scripts = {name: engine(script) for name, script in scripts.items()}
        self.loaded: dict[str, Path] = {}
        self.refused: dict[str, int] = {}  # adapters, with the HTTP status
        self.before: Callable[[], Awaitable[object]] | None = None  # the first completion

    async def load_adapter(self, name: str, path: Path) -> None:
        if name in self.refused:
            raise EngineRefusalError(f"{name} is refused", self.refused[name])
        self.loaded[name] = path

    async def unload_adapter(self, name: str) -> None:
        del self.loaded[name]

    async def complete(self, prompt_ids: Sequence[int], *, model: str, sampling: Sampling) -> Completion:
        assert model == "base" or model in self.loaded
        if (before := self.before) is not None:
            self.before = None
            await before()
        return await self.scripts[model].complete(prompt_ids, model=model, sampling=sampling)


class Run:
    """Implements `Progress`: held by its process until it is lost."""

    def __init__(self) -> None:
        self.lost = False

    def part(self, phase: str, done: int, total: int) -> None: ...

    async def step(self, index: int, total: int, metrics: dict[str, Json]) -> None: ...

    async def hold(self, session: AsyncSession) -> None:  # noqa: ARG002
        if self.lost:
            raise ConflictError("another process holds the run")


class GatedRun:
    """A run whose adapter is to be evaluated."""

    def __init__(self, sessions: Sessions, sandbox: ForkedSandbox, directory: Path) -> None:
        self.sessions = sessions
        self.directory = directory
        self.environment = FixedScenarios()
        self.expert: Script = ExpertPolicy(self.environment.fixed)
        self.run = Run()
        self.gone: set[str] = set()  # adapters
        self.about: dict[str, Json] = {}  # the environment
        self.temperature = 0.0  # of serving
        self._sandbox = sandbox
        self._tokenizer = byte_tokenizer(directory)

    async def open(self, **settings: object) -> "GatedRun":
        given = {"environment": "office", "gate_scenarios": SCENARIOS} | settings
        async with self.sessions.begin() as session:
            self.project_id = (await project_row(session)).id
            self.settings = msgspec.convert(given, RunSettings)
            self.run_id = (await runs.create(session, self.project_id, self.settings)).id
        return self

    def policies(
        self, *, new: Script, base: Script = lazy, best: Script = lazy, serving: Script = lazy
    ) -> Policies:
        scripts = {"base": base, NEW: new, BEST: best, SERVING: serving}
        return Policies(scripts, lambda script: ScriptedEngine(self._tokenizer, script=script))

    async def serve_since_best(self, *, base: str = BASE_MODEL) -> None:
        """Release 2 has proven a gain, with an adapter for `base`; release 3, which serves now, has shown none."""
        async with self.sessions.begin() as session:
            await manifest_store.put(session, BEST, base=base, rank=1, project_id=self.project_id)
            before = await releases.active(session, self.project_id)
            for model, sgc in ((BEST, GAIN), (SERVING, EVEN)):
                release = await releases.propose(session, self.project_id, model)
                await releases.record_evidence(session, release.id, exam(before, sgc))
                before = await releases.activate(session, release.id)

    async def evaluate(
        self,
        policies: Policies | None,
        model: str = NEW,
        rules: GateRules = RULES,
        *,
        guard: Guard | None = None,
        no_time: str = "",
    ) -> GateResult:
        candidate = CandidateAdapter(
            project_id=self.project_id, run_id=self.run_id, model=model, settings=self.settings, no_time=no_time
        )
        evaluator = self._evaluator(policies) if policies is not None else None
        return await evaluate_candidate(
            self.sessions,
            candidate,
            evaluator,
            progress=self.run,
            rules=rules,
            directory=self.directory,
            guard=guard,
        )

    def expert_in(self, scenarios: Sequence[Scenario], otherwise: Script = lazy) -> Script:
        """Solves the tasks of these only."""
        known = [task.instruction for each in scenarios for task in each.tasks]

        def script(prompt: str, turn: int) -> Answer:
            return (self.expert if any(each in prompt for each in known) else otherwise)(prompt, turn)

        return script

    async def active(self) -> tables.Release:
        async with self.sessions() as session:
            return await releases.active(session, self.project_id)

    async def evaluations(self, run_id: UUID) -> Sequence[tables.Evaluation]:
        async with self.sessions() as session:
            evaluation = tables.Evaluation
            query = select(evaluation).where(evaluation.run_id == run_id).order_by(evaluation.created_at)
            return (await session.scalars(query)).all()

    def _evaluator(self, policies: Policies) -> Evaluator:
        limits = RolloutLimits(turns=5, turn_tokens=2000)  # of one byte each
        agent = Agent(policies, self._tokenizer, Compact(), self._sandbox, limits, temperature=1.0)

        async def fetch(model: str) -> None:
            if model in self.gone:
                raise AdapterError(f"there is no adapter in /adapters/{model}: put it back")

        return Evaluator(
            agent,
            policies,
            self.environment,
            Path("/adapters"),
            at_once=4,
            temperature=self.temperature,
            base=BASE_MODEL,
            fetch=fetch,
            about=self.about,
        )
