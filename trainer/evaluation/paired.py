"""Candidate and incumbent sit the same exam: what a gate decides by."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from app.agent.loop import Agent
from app.records import BASE, Json, Policy
from app.skills.memory import MemoryLibrary
from trainer.environment import Environment, Scenario, Split
from trainer.evaluation.local import examine
from trainer.evaluation.metrics import TaskResult
from trainer.rollouts.episode import EpisodeRunner
from trainer.rollouts.protocols import AdapterEngine, LibraryFactory

_SPLIT: Split = "validation"


@dataclass(frozen=True)
class Examiner:
    """What an exam is held with. All of the agent counts but its engine and its temperature."""

    agent: Agent
    engine: AdapterEngine
    environment: Environment
    adapters: Path  # the directory that holds every adapter under its hash
    new_library: LibraryFactory = MemoryLibrary
    at_once: int = 32  # chains
    report: Callable[[int], object] | None = None  # hears of tasks done
    temperature: float = 0.0  # of sampling: that of the deployment, where the exam is to tell what users will get

    async def sit(
        self,
        model: str,
        scenarios: Sequence[Scenario],
        *,
        library: bool = True,
        chain: int | None = None,
    ) -> list[TaskResult]:
        """As `examine` does."""
        if model != BASE:
            await self.engine.load_adapter(model, self.adapters / model)
        agent = replace(self.agent, engine=self.engine, temperature=self.temperature)
        return await examine(
            EpisodeRunner(agent, self.environment, Policy(model)),
            scenarios,
            library=library,
            new_library=self.new_library,
            chain=chain,
            at_once=self.at_once,
            report=self.report,
        )


class Sat(msgspec.Struct, frozen=True, kw_only=True):
    """The same exam, sat by both."""

    candidate: list[TaskResult]
    incumbent: list[TaskResult]
    asked: dict[str, Json]  # what it takes to hold it again

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(msgspec.to_builtins(self), indent=1) + "\n")


async def examine_candidate(
    examiner: Examiner, candidate: str, incumbent: str, *, scenarios: int, seed: int
) -> Sat:
    """Both models on one draw of held-out scenarios, all tasks of each, with the library on."""
    drawn = examiner.environment.scenarios(_SPLIT, scenarios, seed)
    return Sat(
        candidate=await examiner.sit(candidate, drawn),
        incumbent=await examiner.sit(incumbent, drawn),
        asked={
            "split": _SPLIT,
            "scenarios": scenarios,
            "seed": seed,
            "library": True,
            "temperature": examiner.temperature,
        },
    )
