"""Evaluate a policy on held-out scenarios in this process, or several policies on the same ones.

`over_rest` does the same on a running server.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from typing import Literal

import msgspec
import structlog

from app.agent.prompts import adapter_profile
from app.agent.rollout import Agent, hosted_agent
from app.base.errors import EngineError, EngineRefusalError, InvalidError
from app.base.settings import Settings
from app.base.values import BASE, Json, Policy, Trajectory, hosted_id
from app.engine.protocol import OpenHosted
from app.skills.in_memory_library import InMemoryLibrary
from trainer.environment import Environment, Scenario, Split, open_environment
from trainer.evaluation.gate_decision import power_in_words
from trainer.evaluation.metrics import Evaluate, Report, TaskResult
from trainer.learning.adapter import check_adapter
from trainer.rollouts.episode import (
    AdapterEngine,
    Episode,
    EpisodeRunner,
    LibraryFactory,
    Mix,
    open_stack,
    scenario_chain,
)
from trainer.rollouts.memories import NewMemory, open_memory

log = structlog.get_logger(__name__)


async def evaluate_scenarios(  # noqa: PLR0913  what an evaluation sets
    episode_runner: EpisodeRunner,
    scenarios: Sequence[Scenario],
    *,
    library: bool,
    new_library: LibraryFactory = InMemoryLibrary,
    chain: int | None = None,
    at_once: int = 16,
    report: Callable[[int], object] | None = None,
    mix: Callable[[Scenario], Mix] | None = None,
    new_memory: NewMemory | None = None,
) -> list[TaskResult]:
    """Run every scenario as a chain with a library of its own, or each task without one.

    `chain` is the number of tasks of each scenario, the first ones; by default all. `report` is called with the
    number of tasks that were done since its last call. `mix` gives what adds skills to those found,
    `new_memory` what a chain remembers besides.
    """
    slots = asyncio.Semaphore(at_once)

    async def evaluate(scenario: Scenario) -> list[TaskResult]:
        async with slots:
            skills = new_library() if library else None
            tasks = scenario_chain(scenario, chain)
            added = mix(scenario) if mix is not None else None
            memory = new_memory() if new_memory is not None else None
            episodes = await episode_runner.run_chain(tasks, skills, range(len(tasks.tasks)), added, memory)
            if report is not None:
                report(len(episodes))
            size = None if skills is None else len(skills)
            return [task_result(scenario, episode, size) for episode in episodes]

    jobs = [asyncio.create_task(evaluate(each)) for each in scenarios]
    try:
        return [result for results in await asyncio.gather(*jobs) for result in results]
    finally:  # after the first failure the others are stopped: their engine is about to be closed
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)


def task_result(scenario: Scenario, episode: Episode, library: int | None = None) -> TaskResult:
    """`library` is the number of skills at the end of the task's chain."""
    trajectory = episode.trajectory
    used = tuple(offer.name for offer in trajectory.used())
    return TaskResult(
        scenario=scenario.id,
        template=scenario.template,
        success=episode.verdict.success,
        turns=len(trajectory.turns),
        tokens=trajectory.generated_tokens,
        stop=trajectory.stop.value,
        offered=len(trajectory.offered),
        used=len(used),
        wrote=len(_written(trajectory)),
        names=used,
        library=library,
        known=episode.verdict.known,
    )


def _written(trajectory: Trajectory) -> set[str]:
    """The functions of its own that ran and returned."""
    uses = (use for turn in trajectory.turns for use in turn.uses)
    return {use.function for use in uses if use.returned and not use.inherited}


class LocalEvaluation(msgspec.Struct, frozen=True, kw_only=True):
    """The model to evaluate, and on what."""

    environment: str
    adapter: str = ""  # its directory or its hash; "" for the base model
    split: Split = "test"
    scenarios: int = 200
    retrieval: str = "scenario"
    chain: int | None = None  # tasks of each scenario; None: all
    at_once: int = 16  # chains
    memory: str = ""  # as the run setting
    extraction: Literal["inline", "post_hoc"] = "inline"  # as the run setting


@asynccontextmanager
async def open_local_evaluation(evaluation: LocalEvaluation, settings: Settings) -> AsyncIterator[Evaluate]:
    """Load the model for any number of evaluations, one at a time. Without a profile in the settings, that of the
    adapter's card counts before the model's.

    Raises InvalidError for an unknown adapter or environment, ModelError for a model that cannot be loaded.
    """
    adapter = _find(evaluation.adapter, settings.data_dir) if evaluation.adapter else None
    if adapter is not None and not settings.prompt_profile:
        settings = msgspec.structs.replace(settings, prompt_profile=adapter_profile(adapter))
    async with open_stack(open_environment(evaluation.environment), evaluation.retrieval, settings) as stack:
        if adapter is not None:
            await stack.engine.load_adapter(adapter.name, adapter)
        agent = replace(stack.agent, engine=stack.engine)  # without retries
        policy = Policy(adapter.name if adapter else BASE)
        runner = EpisodeRunner(agent, stack.environment, policy, post_hoc=evaluation.extraction == "post_hoc")
        new_memory = open_memory(evaluation.memory)

        async def evaluate(seed: int, library: bool, report: Report) -> list[TaskResult]:
            report(0)
            return await evaluate_scenarios(
                runner,
                stack.environment.scenarios(evaluation.split, evaluation.scenarios, seed),
                library=library,
                new_library=stack.new_library,
                chain=evaluation.chain,
                at_once=evaluation.at_once,
                report=report,
                new_memory=new_memory,
            )

        yield evaluate


def _find(adapter: str, data_dir: Path) -> Path:
    places = (Path(adapter), data_dir / "adapters" / adapter)
    directory = next((place for place in places if place.is_dir()), None)
    if directory is None:
        raise InvalidError(f"no adapter in {places[0]} or {places[1]}: name a directory or a hash")
    check_adapter(directory)
    return directory.absolute()


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
