"""Demonstrations by rejection sampling: rollouts of the scripted expert, kept if every check passed."""

from collections.abc import Sequence

import msgspec

from app.engine.tokenizer import ChatTokenizer
from app.sandbox.protocol import Sandbox
from trainer.environment import Scenario
from trainer.learning.batch import Sample, samples_of
from trainer.worlds.office.expert_script import Faults
from trainer.worlds.office.office_environment import OfficeEnvironment
from trainer.worlds.office.scripted_rollouts import LIMITS, ScriptRunner, demonstrate

__all__ = ["FAULTS", "LIMITS", "Demonstrations", "Demonstrator"]

FAULTS = Faults(unprepared=0.08, page=0.08, synonym=0.04, inline=0.02, ignore=0.02)
_CROWDING = 0.6


class Demonstrations(msgspec.Struct, frozen=True):
    """Samples of successful rollouts, and how many rollouts there were."""

    samples: list[Sample]
    tried: int


class Demonstrator:
    """Runs the scripted expert and records its turns in a tokenizer."""

    def __init__(self, tokenizer: ChatTokenizer, sandbox: Sandbox) -> None:
        self._runner = ScriptRunner(
            environment=OfficeEnvironment(), tokenizer=tokenizer, sandbox=sandbox, crowding=_CROWDING
        )

    async def demonstrate(self, scenarios: Sequence[Scenario], seed: int) -> Demonstrations:
        """The expert's successful trajectories over these scenarios, in order; the same for the same seed."""
        outcomes = await demonstrate(self._runner, scenarios, FAULTS, seed)
        solved = [each.trajectory for each in outcomes if each.verdict.success]
        return Demonstrations([sample for each in solved for sample in samples_of(each)], len(outcomes))
