"""An exam without a server: the model in a child process; services, gateway and libraries in this one."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from app.agent.limits import RolloutLimits
from app.agent.loop import Agent
from app.agent.prompt import choose_profile
from app.engine.tokenizer import ChatTokenizer
from app.errors import InvalidError
from app.run_settings import Retrieval
from app.sandbox.host import ForkedSandbox
from app.settings import Settings
from app.skills.memory import MemoryLibrary
from app.skills.retrieval import wants_vectors
from trainer.environment import Split
from trainer.environments.named import open_environment
from trainer.evaluate import TaskResult
from trainer.examine import NewLibrary
from trainer.examiner import BASE, Examiner
from trainer.local_embedder import local_embedder
from trainer.local_engine import local_engine
from trainer.lora import check_adapter
from trainer.model import pick_device


class HomeExam(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked, and of whom."""

    adapter: str = ""  # its directory or its hash; "" for the base model
    environment: str = "office"
    split: Split = "test"
    scenarios: int = 200
    retrieval: Retrieval = "scenario"
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
    environment = open_environment(exam.environment)
    adapter = _find(exam.adapter, settings.data_dir) if exam.adapter else None
    tokenizer = ChatTokenizer.load(settings.model_dir)
    profile = choose_profile(settings.prompt_profile, tokenizer.card)
    async with AsyncExitStack() as stack:
        sandbox = await stack.enter_async_context(ForkedSandbox())
        new_library = await stack.enter_async_context(_libraries(exam.retrieval, settings.skills_offered))
        device = pick_device(settings.engine_device)
        engine = await stack.enter_async_context(local_engine(settings.model_dir, device))
        agent = Agent(engine, tokenizer, profile, sandbox, RolloutLimits.of(settings))
        examiner = Examiner(
            agent,
            engine,
            environment,
            adapters=adapter.parent if adapter else Path(),
            new_library=new_library,
            at_once=exam.at_once,
        )
        yield Seat(exam, adapter.name if adapter else BASE, examiner)


@asynccontextmanager
async def _libraries(mode: Retrieval, limit: int) -> AsyncIterator[NewLibrary]:
    if not wants_vectors(mode):
        yield lambda: MemoryLibrary(mode=mode, limit=limit)
        return
    async with local_embedder() as embedder:
        yield lambda: MemoryLibrary(embedder, mode=mode, limit=limit)


def _find(adapter: str, data_dir: Path) -> Path:
    places = (Path(adapter), data_dir / "adapters" / adapter)
    found = next((place for place in places if place.is_dir()), None)
    if found is None:
        raise InvalidError(f"there is no adapter in {places[0]} or {places[1]}: name a directory or a hash")
    check_adapter(found)
    return found.absolute()
