"""Paired evaluation: models on the same held-out scenarios."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path

import msgspec
import structlog

from app.agent.rollout_loop import Agent, hosted_agent
from app.engine.hosted.chat_model import OpenHosted
from app.errors import EngineError, EngineRefusalError, InvalidError
from app.records import BASE, Json, Policy, hosted_id
from app.skills.in_memory_library import InMemoryLibrary
from trainer.environment import Environment, Scenario, Split
from trainer.evaluation.gate_power import power_in_words
from trainer.evaluation.local import evaluate_scenarios
from trainer.evaluation.policy_metrics import TaskResult
from trainer.rollouts.episode import EpisodeRunner
from trainer.rollouts.protocols import AdapterEngine, LibraryFactory

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Evaluator:
    """Evaluates models with one agent, on one environment. The agent's own temperature is not used."""

    agent: Agent
    engine: AdapterEngine  # the agent's, which loads adapters
    environment: Environment
    adapters: Path  # the directory that holds every adapter under its hash
    new_library: LibraryFactory = InMemoryLibrary
    at_once: int = 32  # chains
    split: Split = "validation"  # on which models are compared
    temperature: float = 0.0  # the deployment's, where the evaluation is to predict what users will get
    base: str = ""  # the base model of the adapters
    fetch: Callable[[str], Awaitable[object]] | None = None  # makes sure that an adapter is in `adapters`
    about: Mapping[str, Json] = field(default_factory=dict)  # the environment, for the record
    report: Callable[[int, int], object] | None = None  # is told how many tasks of how many are done
    open_hosted: OpenHosted | None = None  # None: hosted models cannot be evaluated

    @property
    def prompt_hash(self) -> str:
        return self.agent.prompt_hash

    async def load(self, model: str) -> None:
        """Safe to repeat. Raises AdapterError if it is gone, EngineRefusalError if an engine refuses the weights,
        and EngineError, also where one has no room for them. A hosted model is loaded nowhere.
        """
        if hosted_id(model) is not None:
            return
        if self.fetch is not None:
            await self.fetch(model)
        if model != BASE:
            try:
                await self.engine.load_adapter(model, self.adapters / model)
            except EngineRefusalError as error:
                if error.code == HTTPStatus.CONFLICT:
                    raise EngineError(str(error)) from error
                raise

    async def evaluate(
        self, model: str, scenarios: Sequence[Scenario], before: int = 0, after: int = 0
    ) -> list[TaskResult]:
        """As `evaluate_scenarios`, with the library on, and with `model`: an adapter, the base or a hosted model.

        Other models' tasks, `before` this one's and `after` them, count in what is reported.
        """
        done, total = before, before + sum(len(each.tasks) for each in scenarios) + after

        def ended(tasks: int) -> None:
            nonlocal done
            done += tasks
            if self.report is not None:
                self.report(done, total)

        await self.load(model)
        async with self._agent_of(model) as agent:
            return await evaluate_scenarios(
                EpisodeRunner(agent, self.environment, Policy(model), guard_written=True),
                scenarios,
                library=True,
                new_library=self.new_library,
                at_once=self.at_once,
                report=ended,
            )

    @asynccontextmanager
    async def _agent_of(self, model: str) -> AsyncIterator[Agent]:
        agent, model_id = replace(self.agent, temperature=self.temperature), hosted_id(model)
        if model_id is None:
            yield agent
            return
        if self.open_hosted is None:
            raise InvalidError("a hosted model cannot be evaluated here: let a run of the kind `exam` do it")
        async with self.open_hosted(model_id) as opened:
            yield hosted_agent(agent, opened)


class PairedResults(msgspec.Struct, frozen=True, kw_only=True):
    """The results of two models, or three, on the same scenarios."""

    candidate: list[TaskResult]
    incumbent: list[TaskResult]
    reference: list[TaskResult] | None = None  # of the release that last proved a gain, where it is another
    settings: dict[str, Json]  # all it takes to repeat the evaluation
    greedy: "PairedResults | None" = None  # of the first two, where they were sampled and that decided nothing

    def only_known(self) -> "PairedResults":
        """Only the scenarios whose results are known of every model; `coverage` in the settings is their share."""
        kept, share = only_known(
            [self.candidate, self.incumbent, *([] if self.reference is None else [self.reference])]
        )
        coverage = self.settings.get("coverage", 1.0) * share
        return msgspec.structs.replace(
            self,
            candidate=kept[0],
            incumbent=kept[1],
            reference=None if self.reference is None else kept[2],
            settings=self.settings | {"coverage": coverage},
        )

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(msgspec.to_builtins(self), indent=1) + "\n")


def only_known(sides: Sequence[Sequence[TaskResult]]) -> tuple[list[list[TaskResult]], float]:
    """The results of the scenarios that are known of every side, and the share of these."""
    every = {result.scenario for result in sides[0]}
    known = every - {result.scenario for side in sides for result in side if not result.known}
    kept = [[result for result in side if result.scenario in known] for side in sides]
    return kept, len(known) / len(every) if every else 1.0


async def evaluate_pair(
    evaluator: Evaluator, candidate: str, incumbent: str, *, scenarios: int, seed: int
) -> PairedResults:
    """Both models on one sample of held-out scenarios, all tasks of each, with the library on.

    Before that it logs how often so many scenarios show a gain, which is also `power` in the results' settings.
    """
    sample = held_out(evaluator, scenarios, seed)
    tasks, power = sum(len(each.tasks) for each in sample), power_in_words(len(sample))
    log.info("two models are compared", power=power, temperature=evaluator.temperature)
    return PairedResults(
        candidate=await evaluator.evaluate(candidate, sample, after=tasks),
        incumbent=await evaluator.evaluate(incumbent, sample, before=tasks),
        settings=evaluation_settings(evaluator, scenarios, seed) | {"power": power},
    )


def held_out(evaluator: Evaluator, scenarios: int, seed: int) -> Sequence[Scenario]:
    """A sample of the scenarios on which models are compared."""
    return evaluator.environment.scenarios(evaluator.split, scenarios, seed)


def evaluation_settings(evaluator: Evaluator, scenarios: int, seed: int) -> dict[str, Json]:
    """All it takes to repeat an evaluation."""
    return {
        "split": evaluator.split,
        "scenarios": scenarios,
        "seed": seed,
        "library": True,
        "temperature": evaluator.temperature,
        "prompt_hash": evaluator.prompt_hash,
        "base": evaluator.base,
        **evaluator.about,
    }


async def evaluate_again(results: PairedResults, evaluator: Evaluator, model: str) -> list[TaskResult]:
    """The results of another model on the same scenarios."""
    scenarios, seed = results.settings["scenarios"], results.settings["seed"]
    return await evaluator.evaluate(model, held_out(evaluator, scenarios, seed))
