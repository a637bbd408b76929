"""A run of kind `rollout`: SAGE on fresh rollouts. Each step rolls out groups of chains and learns from them
once.
"""

import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from app.agent.rollout_loop import Agent
from app.records import Json, Policy
from app.run_settings import RunSettings
from trainer.environment import Environment
from trainer.evaluation.local import task_result
from trainer.learning.checkpoints import Checkpoints
from trainer.learning.publishing import PublishedAdapter
from trainer.learning.update import Learner
from trainer.rollouts.episode import EpisodeRunner
from trainer.rollouts.groups import ChainRollout, GroupCollector, draw_chains
from trainer.rollouts.protocols import AdapterEngine, LibraryFactory
from trainer.runs.step_metrics import experience_metrics, task_metrics, update_metrics
from trainer.sage.advantages import compute_advantages


class StepDone(msgspec.Struct, frozen=True):
    """One finished step."""

    index: int  # from 1
    metrics: dict[str, Json]
    adapter: PublishedAdapter  # the policy after it


@dataclass
class RolloutRun:
    """A policy that learns by doing. The adapter of each step lies in `directory`/adapters until the next one."""

    agent: Agent  # its engine is `engine`; its temperature 1, because other samples would need other logprobs
    engine: AdapterEngine
    environment: Environment
    learner: Learner
    settings: RunSettings
    directory: Path
    new_library: LibraryFactory
    at_once: int = 128  # chains in flight, as in `GroupCollector`
    updating: Callable[[], AbstractContextManager[None]] = nullcontext  # held around each update
    _served: PublishedAdapter | None = field(default=None, init=False)

    async def run(self, report: Callable[[StepDone], Awaitable[None]]) -> PublishedAdapter:
        """All steps that are still to be done; resumes from the last checkpoint after an interruption."""
        checkpoints = Checkpoints(self.directory)
        done = checkpoints.restore(self.learner)
        policy = await self._serve_latest()
        for index in range(done + 1, self.settings.steps + 1):
            began = time.perf_counter()
            chains = draw_chains(self.environment, "train", self.settings, index)
            rollouts = await self._collector(policy).collect(chains, index)
            rolled_out = time.perf_counter()
            advantaged = compute_advantages(
                [scored for each in rollouts for scored in each.scored], normalise=self.settings.normalise
            )
            with self.updating():
                figures = self.learner.update(advantaged)
            metrics = {
                **experience_metrics(advantaged),
                **update_metrics(figures, time.perf_counter() - rolled_out),
                **_rollout_metrics(rollouts, rolled_out - began),
            }
            policy = await self._serve_latest()
            checkpoints.save(self.learner, index)
            await report(StepDone(index, metrics, policy))
        return policy

    def _collector(self, policy: PublishedAdapter) -> GroupCollector:
        runner = EpisodeRunner(self.agent, self.environment, Policy(policy.hash))
        return GroupCollector(runner, self.settings, self.new_library, self.at_once)

    async def _serve_latest(self) -> PublishedAdapter:
        """Load the policy as it is now into the engine under a name of its own, and unload the one before it."""
        published = self.learner.publish(self.directory / "adapters")
        former, self._served = self._served, published
        if former is None or former.hash != published.hash:
            await self.engine.load_adapter(published.hash, published.path)
            if former is not None:
                await self.engine.unload_adapter(former.hash)
                shutil.rmtree(former.path, ignore_errors=True)  # those of large policies would fill the disk
        return published


def _rollout_metrics(rollouts: Sequence[ChainRollout], seconds: float) -> dict[str, Json]:
    results = [task_result(each.scenario, episode) for each in rollouts for episode in each.episodes]
    tokens = sum(result.tokens for result in results)
    return {
        **task_metrics(results),
        "rollout_seconds": seconds,
        "rollout_tokens_per_second": tokens / seconds,
    }
