"""Runs one rollout in the real sandbox against a live API, with a scripted policy."""

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from app.agent.prompts import Compact, Profile
from app.agent.rollout import Agent, ResumeState, RolloutHooks, RolloutLimits, run_rollout
from app.base.values import Offer, Policy, Task, Trajectory
from app.engine.tokenizer import ChatTokenizer
from app.sandbox.forked_sandbox import ForkedSandbox
from app.sandbox.protocol import SessionLimits
from tests.support.ledger import Ledger
from tests.support.scripted_engine import Answer, ScriptedEngine

TASK = Task(uuid4(), "write hello into the ledger")
WRITE = 'print(apis.ledger.add_entry(text="hello")["id"])'
DONE = "apis.supervisor.complete_task()"
QUICK = SessionLimits(cpu_seconds=0.5, wall_seconds=6.0)


class Bench:
    """The parts of a rollout. `ledger` and `engine` record what it did."""

    def __init__(self, sandbox: ForkedSandbox, tokenizer: ChatTokenizer) -> None:
        self.sandbox = sandbox
        self.tokenizer = tokenizer
        self.ledger = Ledger()
        self.engine = ScriptedEngine(tokenizer)
        self.profile: Profile = Compact()

    async def run(
        self,
        *answers: Answer,
        limits: RolloutLimits | None = None,
        offers: Sequence[Offer] = (),
        resume: ResumeState | None = None,
        hooks: RolloutHooks | None = None,
        **rules: Any,
    ) -> Trajectory:
        self.engine = ScriptedEngine(self.tokenizer, *answers)
        agent = Agent(self.engine, self.tokenizer, self.profile, self.sandbox, limits or RolloutLimits(), 0.7)
        async with self.ledger.client() as client:
            gateway = self.ledger.gateway(client, **rules)
            policy = Policy("base")
            return await run_rollout(agent, TASK, policy, gateway, offers, resume, hooks)
