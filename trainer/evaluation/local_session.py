"""Evaluation without a server: one model, its services, gateway and libraries in this process and its children."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from app.errors import InvalidError
from app.records import BASE
from app.settings import Settings
from trainer.environment import Split
from trainer.evaluation.paired import Evaluator
from trainer.evaluation.policy_metrics import TaskResult
from trainer.learning.publishing import check_adapter
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


@dataclass(frozen=True)
class EvaluationSession:
    """A loaded model, ready for several evaluations, one by one."""

    evaluation: LocalEvaluation
    model: str
    evaluator: Evaluator

    async def evaluate(self, seed: int, *, library: bool, report: Callable[[int], object]) -> list[TaskResult]:
        """`report` is called with 0 at the start, then with the number of tasks done since its last call."""
        report(0)
        scenarios = self.evaluator.environment.scenarios(self.evaluation.split, self.evaluation.scenarios, seed)
        evaluator = replace(self.evaluator, report=report)
        return await evaluator.evaluate(self.model, scenarios, library=library, chain=self.evaluation.chain)


@asynccontextmanager
async def open_session(evaluation: LocalEvaluation, settings: Settings) -> AsyncIterator[EvaluationSession]:
    """Raises InvalidError for an unknown adapter or environment, ModelError for a model that cannot be loaded."""
    adapter = _find(evaluation.adapter, settings.data_dir) if evaluation.adapter else None
    async with open_stack(evaluation.environment, evaluation.retrieval, settings) as stack:
        evaluator = Evaluator(
            stack.agent,
            stack.engine,
            stack.environment,
            adapters=adapter.parent if adapter else Path(),
            new_library=stack.new_library,
            at_once=evaluation.at_once,
        )
        yield EvaluationSession(evaluation, adapter.name if adapter else BASE, evaluator)


def _find(adapter: str, data_dir: Path) -> Path:
    places = (Path(adapter), data_dir / "adapters" / adapter)
    directory = next((place for place in places if place.is_dir()), None)
    if directory is None:
        raise InvalidError(f"no adapter in {places[0]} or {places[1]}: name a directory or a hash")
    check_adapter(directory)
    return directory.absolute()
