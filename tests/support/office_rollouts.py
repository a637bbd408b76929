"""Rollouts in the office environment with a scripted policy: real services, gateway and sandbox."""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from app.agent.action import extract_code
from app.agent.prompts import Compact
from app.apis.calls.gateway import Gateway
from app.base.values import Json, Offer, Policy, Stop, Task, Trajectory
from app.sandbox.protocol import Function, Sandbox, SessionLimits
from trainer.environment import Scenario, Verdict
from trainer.worlds.office.environment import OfficeEnvironment, OfficeWorld

MAX_TURNS = 8


class Player(Protocol):
    """Returns the policy's next message, given all observations so far."""

    def next_turn(self, observations: list[str]) -> str: ...


class Played(msgspec.Struct, frozen=True):
    """The outcome of one rollout."""

    verdict: Verdict
    messages: list[str]
    observations: list[str]
    calls: int

    @property
    def text(self) -> str:
        return "\n".join([*self.messages, *self.observations])


class Office:
    """The environment and a sandbox."""

    def __init__(self, sandbox: Sandbox, environment: OfficeEnvironment | None = None) -> None:
        self.environment = environment or OfficeEnvironment()
        self._sandbox = sandbox

    async def play(
        self,
        scenario: Scenario,
        task: Task,
        player: Callable[[OfficeWorld], Player],
        offers: Sequence[Offer] = (),
    ) -> Played:
        """One rollout in a new world and a new session with the offered skills."""
        async with self.environment.open(scenario, task) as world:
            gateway = Gateway(world.catalog, world.client, variables=world.task.variables)
            skills = [Function(offer.name, offer.source) for offer in offers]
            session = await self._sandbox.open(
                gateway.names(), gateway, SessionLimits(), prelude=skills, now=world.now
            )
            chosen, messages, seen = player(world), list[str](), list[str]()
            while not gateway.completed and len(messages) < MAX_TURNS:
                messages.append(chosen.next_turn(seen))
                observation = await session.run(extract_code(messages[-1]) or "")
                seen.append(Compact().observation(observation))
            await session.close()
            verdict = await world.verify(ended(world.task, gateway.answer, completed=gateway.completed))
            return Played(verdict, messages, seen, len(gateway.take_calls()))


def ended(task: Task, answer: Json = None, *, completed: bool = True) -> Trajectory:
    """A trajectory without turns."""
    stop = Stop.COMPLETED if completed else Stop.TURN_LIMIT
    return Trajectory(task=task, policy=Policy(), profile="compact", turns=(), stop=stop, answer=answer)
