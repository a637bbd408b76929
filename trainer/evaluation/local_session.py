"""Evaluation without a server: one model, its services, gateway and libraries in this process and its children."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import msgspec

from app.agent.prompt_profiles import adapter_profile
from app.errors import InvalidError
from app.records import BASE, Policy
from app.settings import Settings
from trainer.environment import Split, open_environment
from trainer.evaluation.local import evaluate_scenarios
from trainer.evaluation.policy_metrics import Evaluate, Report, TaskResult
from trainer.learning.publishing import check_adapter
from trainer.rollouts.episode import EpisodeRunner
from trainer.rollouts.stack import open_stack


class LocalEvaluation(msgspec.Struct, frozen=True, kw_only=True):
    """The model to evaluate, and on what."""

    environment: str
    adapter: str = ""  # its directory or its hash; "" for the base model
    split: Split = "test"
    scenarios: int = 200
    retrieval: str = "scenario"
    chain: int | None = None  # tasks of each scenario; None: all
    at_once: int = 16  # chains


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
        runner = EpisodeRunner(agent, stack.environment, Policy(adapter.name if adapter else BASE))

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
            )

        yield evaluate


def _find(adapter: str, data_dir: Path) -> Path:
    places = (Path(adapter), data_dir / "adapters" / adapter)
    directory = next((place for place in places if place.is_dir()), None)
    if directory is None:
        raise InvalidError(f"no adapter in {places[0]} or {places[1]}: name a directory or a hash")
    check_adapter(directory)
    return directory.absolute()
