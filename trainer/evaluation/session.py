"""An exam without a server: the model in a child process; services, gateway and libraries in this one."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from app.errors import InvalidError
from app.records import BASE
from app.settings import Settings
from trainer.environment import Split
from trainer.evaluation.metrics import TaskResult
from trainer.evaluation.paired import Examiner
from trainer.learning.publishing import check_adapter
from trainer.rollouts.stack import open_stack


class HomeExam(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked, and of whom."""

    environment: str
    adapter: str = ""  # its directory or its hash; "" for the base model
    split: Split = "test"
    scenarios: int = 200
    retrieval: str = "scenario"
    chain: int | None = None  # tasks of each scenario; None: all
    at_once: int = 16  # chains


@dataclass(frozen=True)
class Seat:
    """Where one model sits exams, one after the other."""

    exam: HomeExam
    model: str
    examiner: Examiner

    async def sit(self, seed: int, *, library: bool, report: Callable[[int], object]) -> list[TaskResult]:
        """`report` hears of tasks done, and first of none."""
        report(0)
        scenarios = self.examiner.environment.scenarios(self.exam.split, self.exam.scenarios, seed)
        examiner = replace(self.examiner, report=report)
        return await examiner.sit(self.model, scenarios, library=library, chain=self.exam.chain)


@asynccontextmanager
async def take_seat(exam: HomeExam, settings: Settings) -> AsyncIterator[Seat]:
    """Raises InvalidError for an adapter or an environment that there is not, ModelError for such a model."""
    adapter = _find(exam.adapter, settings.data_dir) if exam.adapter else None
    async with open_stack(exam.environment, exam.retrieval, settings) as ground:
        examiner = Examiner(
            ground.agent,
            ground.engine,
            ground.environment,
            adapters=adapter.parent if adapter else Path(),
            new_library=ground.new_library,
            at_once=exam.at_once,
        )
        yield Seat(exam, adapter.name if adapter else BASE, examiner)


def _find(adapter: str, data_dir: Path) -> Path:
    places = (Path(adapter), data_dir / "adapters" / adapter)
    found = next((place for place in places if place.is_dir()), None)
    if found is None:
        raise InvalidError(f"there is no adapter in {places[0]} or {places[1]}: name a directory or a hash")
    check_adapter(found)
    return found.absolute()
