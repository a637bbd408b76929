"""Runs of the kinds `rollout` and `logged`: policy-gradient updates, one per step.

`rollout` is SAGE: each step rolls out groups of chains. `logged` learns from served tasks with scores. The
metrics of a step, and the warnings derived from them, are the first sign of a run going wrong: rewards without
spread, functions that are no longer written, logprobs of the engine that differ from the trainer's.
"""

import shutil
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TypeAlias

import msgspec
import structlog

from app.base.run_settings import RunSettings
from app.base.values import Json, Policy
from app.skills.in_memory_library import GrownSkill
from trainer.engines.servers import sleep_during_updates
from trainer.environment import Environment
from trainer.evaluation.local import task_result
from trainer.evaluation.metrics import TaskResult
from trainer.experience import LoggedExperience
from trainer.learning.adapter import PublishedAdapter, TrainingOutput
from trainer.learning.learner import Checkpoints, Learner
from trainer.rollouts.episode import EpisodeRunner, RolloutStack, open_stack
from trainer.rollouts.groups import ChainRollout, Crowd, CrowdSkill, GroupCollector, draw_chains
from trainer.rollouts.memories import open_memory
from trainer.run_job import Job, RunProgress
from trainer.runs.start import probe_prompt
from trainer.sage.advantages import AdvantagedRollout, ScoredRollout, compute_advantages

log = structlog.get_logger(__name__)

_LOW_WRITE_RATE = 0.2


def experience_metrics(rollouts: Sequence[AdvantagedRollout]) -> dict[str, Json]:
    """Rewards, the fraction of rollouts that are trained on, those left out for a flaw, and staleness; nothing
    without rollouts.
    """
    if not rollouts:
        return {}
    scored = [each.rollout for each in rollouts]
    flaws = [each.trajectory.flaw for each in scored]
    metrics: dict[str, Json] = {
        "outcome": fmean(each.score for each in scored),
        "skill_bonus": fmean(each.bonus for each in scored),
        "trained_fraction": fmean(
            each.has_signal and not flaw for each, flaw in zip(rollouts, flaws, strict=True)
        ),
        "empty": flaws.count("empty"),
        "generated_tokens": fmean(each.trajectory.generated_tokens for each in scored),
        "turns": fmean(len(each.trajectory.turns) for each in scored),
        "staleness": {str(age): count for age, count in sorted(Counter(s.staleness for s in scored).items())},
    }
    for position in sorted({each.position for each in scored}):
        metrics[f"reward_{position + 1}"] = fmean(each.reward for each in scored if each.position == position)
    offered = [each for each in scored if each.trajectory.offered]
    if offered:
        metrics["skill_usage"] = fmean(any(each.trajectory.used()) for each in offered)
    return metrics


def task_metrics(results: Sequence[TaskResult]) -> dict[str, Json]:
    """Metrics of fresh rollouts only: the share of successes among those whose result is known, the number of the
    others, and the rate at which functions are written.
    """
    known = [result.success for result in results if result.known]
    unaided = [result for result in results if not result.used]
    return {
        **({"success": fmean(known)} if known else {}),
        **({"unknown": len(results) - len(known)} if len(known) < len(results) else {}),
        **({"write_rate": fmean(result.wrote > 0 for result in unaided)} if unaided else {}),
    }


def warnings_of(metrics: dict[str, Json]) -> list[str]:
    """What is wrong with a step, in full sentences."""
    warnings = []
    if metrics.get("unknown"):
        warnings.append(
            f"{metrics['unknown']} rollouts were left out: it cannot be told whether they succeeded. They asked "
            "for what is not recorded, tried to write where trials only read, or met a server that is down"
        )
    if metrics.get("failed_rollouts"):
        warnings.append(
            f"{metrics['failed_rollouts']} rollouts were left out: the environment could not set up or verify "
            "their worlds. The log of the worker says why"
        )
    if metrics.get("no_signal"):
        warnings.append(
            "no learning signal in this step: all rollouts of each group have the same reward. If this goes on, "
            "the tasks are too easy or too hard for this policy, or the reward does not separate good from bad"
        )
    if metrics.get("empty"):
        warnings.append(
            f"{metrics['empty']} rollouts were dropped: the policy sampled nothing before the context was full "
            "or the time was up"
        )
    if metrics.get("write_rate", 1.0) < _LOW_WRITE_RATE:
        warnings.append(f"functions are rarely written ({metrics['write_rate']:.0%} of tasks)")
    return warnings


async def report_step(progress: RunProgress, index: int, total: int, metrics: dict[str, Json]) -> None:
    """Log the step and write it to the row, with its warnings. Raises what `progress` raises."""
    warnings = warnings_of(metrics)
    for warning in warnings:
        log.warning(warning, step=index)
    log.info("step", step=index, **metrics)
    await progress.step(index, total, metrics | ({"warnings": warnings} if warnings else {}))


UpdateContext = Callable[[], AbstractContextManager[None]]
"""Makes the context that an update runs in."""


def update_policy(
    learner: Learner, rollouts: Sequence[ScoredRollout], updating: UpdateContext = nullcontext
) -> dict[str, Json]:
    """Update the policy once. Returns the metrics of the rollouts and of the update."""
    started = time.perf_counter()
    advantaged = compute_advantages(rollouts, normalize=learner.settings.normalise)
    with updating():
        stats = learner.update(advantaged)
    seconds, metrics = time.perf_counter() - started, experience_metrics(advantaged)
    if stats is None:
        return metrics | {"no_signal": True}
    speed = {"update_seconds": seconds, "update_tokens_per_second": stats.read_tokens / seconds}
    return {**metrics, **msgspec.to_builtins(stats), **speed}


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
    return TrainingOutput(_published(job, learner))


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
    crowded: bool = True  # offer skills of other scenarios, too
    may_go_on: Callable[[], bool] = lambda: True  # asked before each step
    seen: Seen | None = None
    _served: PublishedAdapter | None = field(default=None, init=False)

    async def run(self, report: Callable[[TrainingStep], Awaitable[None]]) -> PublishedAdapter:
        """Run the remaining steps, from the last checkpoint on."""
        checkpoints, kept = Checkpoints(self.directory), self.directory / "crowd.msgpack"
        grown = (CrowdSkill(each.indexed.scenario, each.indexed.offer, each.manifest) for each in self.grown)
        crowd = Crowd.restore(kept, grown)
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
        post_hoc = self.settings.extraction == "post_hoc"
        runner = EpisodeRunner(agent, environment, policy_now, crowd.manifests, self.guard_written, post_hoc)
        return GroupCollector(
            runner,
            self.settings,
            self.stack.new_library,
            crowd=crowd if self.crowded else None,
            new_memory=open_memory(self.settings.memory),
            report=self.rolled_out,
        )

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
    speed = {"rollout_seconds": seconds, "rollout_tokens_per_second": tokens / seconds}
    return task_metrics(results) | speed


async def train_on_logged(
    job: Job, progress: RunProgress, learner: Learner, logged: LoggedExperience
) -> TrainingOutput:
    """Train on the logged experience, step by step.

    A retry ends with the same weights. Raises what `progress` raises.
    """
    checkpoints = Checkpoints(job.directory)
    for index in range(checkpoints.restore(learner) + 1, len(logged.steps) + 1):
        metrics = update_policy(learner, logged.steps[index - 1]) | {"kept_fraction": logged.data.fraction}
        checkpoints.save(learner, index)
        await report_step(progress, index, len(logged.steps), metrics)
    return TrainingOutput(_published(job, learner), msgspec.to_builtins(logged.data))


def _published(job: Job, learner: Learner) -> PublishedAdapter:
    deployment = job.deployment
    return learner.publish(deployment.adapters_dir, probe_prompt(deployment), base=deployment.served_model)
