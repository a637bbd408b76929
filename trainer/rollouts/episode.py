"""Collects what a policy is judged by and learns from: rollouts in practice worlds, alone or in chains."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import msgspec

from app.agent.hooks import RolloutHooks
from app.agent.rollout_loop import Agent, ResumeState, run_rollout
from app.gateway.gateway import Gateway
from app.records import Offer, Policy, Task, Trajectory
from app.skills.checks import is_wrapper
from app.skills.memory import MemoryLibrary
from app.skills.validate import validate
from trainer.environment import Environment, Scenario, Verdict


class Episode(msgspec.Struct, frozen=True):
    """A trajectory, how well it did, and the skills it left."""

    trajectory: Trajectory
    verdict: Verdict
    made: frozenset[UUID] = frozenset()  # without wrappers of a single API call, which earn nothing


@dataclass(frozen=True)
class EpisodeRunner:
    """An agent and the environment it practises in."""

    agent: Agent
    environment: Environment
    policy: Policy = Policy()  # noqa: RUF009 - frozen

    async def run_task(
        self,
        scenario: Scenario,
        task: Task,
        library: MemoryLibrary | None = None,
        offers: Sequence[Offer] = (),
        *,
        seed: int = 0,
        hooks: RolloutHooks | None = None,
    ) -> Episode:
        """One rollout in a world of its own, verified. The skills it leaves go into `library`."""
        async with self.environment.open(scenario, task) as world:
            calls = self.agent.limits.calls
            gateway = Gateway(world.catalog, world.client, variables=world.task.variables, max_calls=calls)
            resume = ResumeState(seed=seed, now=world.now)
            trajectory = await run_rollout(self.agent, world.task, self.policy, gateway, offers, resume, hooks)
            verdict = await world.verify(trajectory)
            if library is None:
                return Episode(trajectory, verdict)
            drafts = validate(trajectory, world.catalog).kept
            saved = await library.save(drafts, scenario.id)
            earning = (offer for offer, draft in zip(saved, drafts, strict=True) if not is_wrapper(draft.source))
            return Episode(trajectory, verdict, frozenset(offer.skill_id for offer in earning))

    async def run_chain(self, scenario: Scenario, library: MemoryLibrary | None, seed: int = 0) -> list[Episode]:
        """Work through the tasks of a scenario in order, each with the skills that the earlier ones left.

        The library lives and dies with the chain: chains that are compared must not see each other's skills.
        None runs every task without skills.
        """
        episodes = []
        for index, task in enumerate(scenario.tasks):
            offers = await library.find(task.instruction, scenario.id) if library is not None else ()
            episodes.append(await self.run_task(scenario, task, library, offers, seed=seed + index))
        return episodes
