"""SAGE on fresh rollouts: chains are rolled out, rewarded and learned from, step by step."""

import shutil
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from app.agent.loop import Agent
from app.records import Json, Policy
from app.run_settings import RunSettings
from app.skills.memory import MemoryLibrary
from trainer.environment import Environment
from trainer.evaluation.paired import AdapterEngine
from trainer.learning.checkpoints import Checkpoints
from trainer.learning.lora import Published
from trainer.learning.update import Learner
from trainer.rollouts.episode import Practice
from trainer.rollouts.groups import Collected, Collector, draw_chains
from trainer.runs.step_metrics import of_experience, of_results, of_update
from trainer.sage.advantages import advise


class RolloutEngine(AdapterEngine, Protocol):
    """An engine whose adapters come and go as the policy learns."""

    async def unload_adapter(self, name: str) -> None: ...


class Done(msgspec.Struct, frozen=True):
    """One step, finished."""

    index: int  # from 1
    metrics: dict[str, Json]
    adapter: Published  # the policy after it


Report = Callable[[Done], Awaitable[None]]


@dataclass
class Practiser:
    """A policy that practises. Its adapters of every step lie in `directory`/adapters until the next one."""

    agent: Agent  # its engine is `engine`, its temperature 1: other samples would need other logprobs
    engine: RolloutEngine
    environment: Environment
    learner: Learner
    settings: RunSettings
    directory: Path
    new_library: Callable[[], MemoryLibrary]
    at_once: int = 128  # chains, as in Collector
    updating: Callable[[], AbstractContextManager[None]] = nullcontext  # held around each update
    _serving: Published | None = field(default=None, init=False)

    async def practise(self, report: Report) -> Published:
        """All steps that are still to be done. Goes on from its checkpoint after an interruption."""
        checkpoints = Checkpoints(self.directory)
        done = checkpoints.restore(self.learner)
        latest = await self._serve()
        for index in range(done + 1, self.settings.steps + 1):
            metrics = await self._step(index, latest)
            latest = await self._serve()
            checkpoints.save(self.learner, index)
            await report(Done(index, metrics, latest))
        return latest

    async def _step(self, index: int, policy: Published) -> dict[str, Json]:
        started = time.perf_counter()
        collected = await self._collect(index, policy)
        rolled = time.perf_counter()
        advised = advise(collected.rewarded, normalise=self.settings.normalise)
        with self.updating():
            figures = self.learner.update(advised)
        generated = sum(result.tokens for result in collected.results)
        return {
            **of_experience(advised),
            **of_results(collected.results),
            **of_update(figures, time.perf_counter() - rolled),
            "rollout_seconds": rolled - started,
            "rollout_tokens_per_second": generated / (rolled - started),
        }

    async def _collect(self, index: int, policy: Published) -> Collected:
        practice = Practice(self.agent, self.environment, Policy(policy.hash))
        collector = Collector(practice, self.settings, self.new_library, self.at_once)
        return await collector.collect(draw_chains(self.environment, "train", self.settings, index), index)

    async def _serve(self) -> Published:
        """Put the policy as it is now behind the engine, under a name of its own, and the former one away."""
        published = self.learner.publish(self.directory / "adapters")
        former, self._serving = self._serving, published
        if former is None or former.hash != published.hash:
            await self.engine.load_adapter(published.hash, published.path)
            if former is not None:
                await self.engine.unload_adapter(former.hash)
                shutil.rmtree(former.path, ignore_errors=True)  # large policies would fill the disk
        return published
