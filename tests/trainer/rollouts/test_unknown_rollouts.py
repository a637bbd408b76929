"""Rollouts of which nobody can tell whether they succeeded: real sandbox and office, a scripted policy."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import cycle
from pathlib import Path

from app.base.run_settings import RunKind, RunSettings
from app.base.values import Policy, Task, Trajectory
from app.sandbox.forked_sandbox import ForkedSandbox
from app.skills.in_memory_library import InMemoryLibrary
from tests.support.evaluated_server import ExpertPolicy
from tests.trainer.rollouts.test_chain_rollouts import ScriptedRunner, sandbox, scenarios
from trainer.environment import Scenario, Verdict
from trainer.rollouts.episode import EpisodeRunner, scenario_chain
from trainer.rollouts.groups import GroupCollector
from trainer.sage.reward import ChainStep, Reward, skill_value
from trainer.worlds.office.environment import OfficeEnvironment, OfficeWorld

__all__ = ["sandbox", "scenarios"]

REWARDED: list[Sequence[ChainStep]] = []


def recording(chain: Sequence[ChainStep]) -> list[Reward]:
    """The default rule, which keeps what it saw."""
    REWARDED.append(chain)
    return skill_value(chain)


class DoubtfulWorld(OfficeWorld):
    async def verify(self, trajectory: Trajectory) -> Verdict:
        if any(trajectory.used()):
            return Verdict(0, 1, known=False)
        return await super().verify(trajectory)


class DoubtfulOffice(OfficeEnvironment):
    """Nobody can tell whether a task succeeded that used a skill."""

    @asynccontextmanager
    async def open(self, scenario: Scenario, task: Task) -> AsyncIterator[OfficeWorld]:
        async with super().open(scenario, task) as world:
            yield DoubtfulWorld(world.task, world._worlds, world.client)


async def test_they_are_neither_a_failure_of_the_skill_nor_learned_from(
    sandbox: ForkedSandbox,
    scenarios: Sequence[Scenario],
    tmp_path: Path,
) -> None:
    scripted = ScriptedRunner(sandbox, tmp_path, ExpertPolicy(scenarios))
    runner = EpisodeRunner(scripted.episode_runner.agent, DoubtfulOffice(), Policy("wise"))
    settings = RunSettings(kind=RunKind.ROLLOUT, group=4, pairs=1, reward=f"{__name__}:recording")
    limits = cycle([3, 0])  # every other chain is offered no skills, and does well without
    collector = GroupCollector(runner, settings, lambda: InMemoryLibrary(limit=next(limits)))
    rollouts, _ = await collector.collect([scenario_chain(scenarios[0], 2)], seed=1)
    seconds = [chain[1] for chain in REWARDED if chain[1].known or not chain[1].success]
    assert [(step.known, step.score, bool(step.used)) for step in seconds] == [
        (False, 0, True),
        (True, 1, False),
    ] * 2
    assert {step.use_value for step in seconds} == {None}, "nobody knows how the tasks did that used a skill"
    assert [[each.position for each in rollout.scored] for rollout in rollouts] == [[], [0, 1]] * 2, (
        "nor is it known whether the first task earned a bonus"
    )
