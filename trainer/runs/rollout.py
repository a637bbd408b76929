"""A run of kind `rollout`: SAGE. Each step rolls out groups of chains and updates the policy once."""

import shutil
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import msgspec

from app.records import Json, Policy
from app.run_settings import RunSettings
from app.skills.in_memory_library import GrownSkill
from trainer.engines.sleep import sleep_during_updates
from trainer.environment import Environment
from trainer.evaluation.local import task_result
from trainer.learning.checkpoints import Checkpoints
from trainer.learning.learner import Learner
from trainer.learning.publishing import PublishedAdapter, TrainingOutput
from trainer.rollouts.crowd import Crowd, CrowdSkill
from trainer.rollouts.episode import EpisodeRunner
from trainer.rollouts.groups import ChainRollout, GroupCollector, draw_chains
from trainer.rollouts.stack import RolloutStack, open_stack
from trainer.run_job import Job, RunProgress
from trainer.runs.policy_update import UpdateContext, update_policy
from trainer.runs.probe_prompt import probe_prompt
from trainer.runs.report import report_step
from trainer.runs.step_metrics import task_metrics

Seen: TypeAlias = Callable[[int, Sequence[ChainRollout]], object]
"""Is told the rollouts of each step, from 1; of one that is repeated since its attempt was killed, once more."""


async def train_on_rollouts(
    job: Job,
    progress: RunProgress,
    learner: Learner,
    environment: Environment,
    grown: Sequence[GrownSkill],
    *,
    may_go_on: Callable[[], bool] = lambda: True,
    seen: Seen | None = None,
) -> TrainingOutput:
    """`grown` are the skills of the project, which crowd those that fit. Raises what `progress` raises."""
    settings = job.settings
    async with open_stack(environment, settings.retrieval, job.deployment) as stack:
        run = RolloutTraining(
            stack,
            learner,
            settings,
            job.directory,
            grown,
            updating=partial(sleep_during_updates, job.deployment),
            rolled_out=partial(progress.part, "rollouts"),
            guard_written=True,
            may_go_on=may_go_on,
            seen=seen,
        )

        async def report(step: TrainingStep) -> None:
            await report_step(progress, step.index, settings.steps, step.metrics)

        await run.run(report)
    deployment = job.deployment
    return TrainingOutput(
        learner.publish(deployment.adapters_dir, probe_prompt(deployment), base=deployment.served_model)
    )


class TrainingStep(msgspec.Struct, frozen=True):
    """A finished step."""

    index: int  # from 1
    metrics: dict[str, Json]
    adapter: PublishedAdapter  # the policy after it


@dataclass
class RolloutTraining:
    """The training loop. Each step's adapter is in `directory`/adapters until the next step."""

    stack: RolloutStack
    learner: Learner
    settings: RunSettings
    directory: Path
    grown: Sequence[GrownSkill] = ()
    updating: UpdateContext = nullcontext  # entered for each update
    rolled_out: Callable[[int, int], object] | None = None  # is told how many chains of a step are done
    guard_written: bool = False  # hold the skills of its rollouts to their manifests
    may_go_on: Callable[[], bool] = lambda: True  # asked before each step
    seen: Seen | None = None
    _served: PublishedAdapter | None = field(default=None, init=False)

    async def run(self, report: Callable[[TrainingStep], Awaitable[None]]) -> PublishedAdapter:
        """Run the remaining steps, from the last checkpoint on."""
        checkpoints, kept = Checkpoints(self.directory), self.directory / "crowd.msgpack"
        crowd = Crowd.restore(kept, map(_crowd_skill, self.grown))
        done = checkpoints.restore(self.learner)
        policy = await self._serve_latest()
        for index in range(done + 1, self.settings.steps + 1):
            if not self.may_go_on():
                break
            began = time.perf_counter()
            chains = draw_chains(self.stack.environment, "train", self.settings, index)
            rollouts, failed = await self._collector(policy, crowd).collect(chains, index)
            collected = time.perf_counter()
            scored = [rollout for chain in rollouts for rollout in chain.scored]
            metrics = {
                **update_policy(self.learner, scored, self.updating),
                **_rollout_metrics(rollouts, collected - began),
                **({"failed_rollouts": failed} if failed else {}),
            }
            crowd.add(_written(rollouts))
            crowd.save(kept)
            if self.seen is not None:
                self.seen(index, rollouts)
            policy = await self._serve_latest()
            checkpoints.save(self.learner, index)
            await report(TrainingStep(index, metrics, policy))
        return policy

    def _collector(self, policy: PublishedAdapter, crowd: Crowd) -> GroupCollector:
        agent = replace(self.stack.agent, temperature=1.0)  # engines report logprobs for no other temperature
        environment, policy_now = self.stack.environment, Policy(policy.hash)
        runner = EpisodeRunner(agent, environment, policy_now, crowd.manifests, self.guard_written)
        return GroupCollector(runner, self.settings, self.stack.new_library, crowd=crowd, report=self.rolled_out)

    async def _serve_latest(self) -> PublishedAdapter:
        """Load the current policy into the engine under a name of its own, and unload the one before it."""
        published = self.learner.publish(self.directory / "adapters")
        former, self._served = self._served, published
        if former is None or former.hash != published.hash:
            await self.stack.engine.load_adapter(published.hash, published.path)
            if former is not None:
                await self.stack.engine.unload_adapter(former.hash)
                shutil.rmtree(former.path, ignore_errors=True)  # of a large policy they would fill the disk
        return published


def _crowd_skill(grown: GrownSkill) -> CrowdSkill:
    return CrowdSkill(grown.indexed.scenario, grown.indexed.offer, grown.manifest)


def _written(rollouts: Sequence[ChainRollout]) -> Iterator[CrowdSkill]:
    """The skills of the successes."""
    for chain in rollouts:
        for episode in chain.episodes:
            if episode.verdict.success:
                for offer in episode.made:
                    yield CrowdSkill(chain.scenario.label, offer, episode.manifests.get(offer.name))


def _rollout_metrics(rollouts: Sequence[ChainRollout], seconds: float) -> dict[str, Json]:
    results = [task_result(each.scenario, episode) for each in rollouts for episode in each.episodes]
    tokens = sum(result.tokens for result in results)
    return {
        **task_metrics(results),
        "rollout_seconds": seconds,
        "rollout_tokens_per_second": tokens / seconds,
    }
