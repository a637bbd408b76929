"""Demonstrations by rejection sampling: what the scripted expert does in the real loop, kept where every check
passed.
"""

from collections.abc import Sequence

import msgspec

from app.engine.tokenizer import ChatTokenizer
from app.sandbox.protocol import Sandbox
from trainer.environment import Scenario
from trainer.environments.office.expert_script import Faults
from trainer.environments.office.office_environment import OfficeEnvironment
from trainer.environments.office.scripted_rollouts import LIMITS, Stage, demonstrate
from trainer.learning.batch import Sample, sample_of

__all__ = ["FAULTS", "LIMITS", "Classroom", "Kept"]

FAULTS = Faults(unprepared=0.08, page=0.08, synonym=0.04, inline=0.02, ignore=0.02)
_CROWDING = 0.6


class Kept(msgspec.Struct, frozen=True):
    """What a round of demonstrations left."""

    samples: list[Sample]
    tried: int


class Classroom:
    """Where the expert works."""

    def __init__(self, tokenizer: ChatTokenizer, sandbox: Sandbox) -> None:
        self._stage = Stage(
            environment=OfficeEnvironment(), tokenizer=tokenizer, sandbox=sandbox, crowding=_CROWDING
        )

    async def demonstrate(self, scenarios: Sequence[Scenario], seed: int) -> Kept:
        """The successful trajectories of the expert over these scenarios, in their order; the same for a seed."""
        outcomes = await demonstrate(self._stage, scenarios, FAULTS, seed)
        return Kept([sample_of(each.trajectory) for each in outcomes if each.verdict.success], len(outcomes))
