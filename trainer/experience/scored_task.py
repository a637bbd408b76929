"""A served task with its score: one unit of logged experience."""

from datetime import datetime
from uuid import UUID

import msgspec

from app.records import Stop, Trajectory
from app.score_source import SOLVED
from trainer.experience.drop_reasons import DropReason


class ScoredTask(msgspec.Struct, frozen=True, kw_only=True):
    """A served task, its trajectory and its score."""

    trajectory: Trajectory
    score: float  # in [0, 1]
    began: datetime
    release: int  # number of the release that sampled it
    staleness: int  # releases between that one and the active one
    unusable: DropReason | None = None  # why it is not learned from, although the skills it used still count

    @property
    def id(self) -> UUID:
        return self.trajectory.task.id

    @property
    def success(self) -> bool:
        return self.score >= SOLVED and self.trajectory.stop is not Stop.NO_CODE

    @property
    def position(self) -> int:
        """0 if the policy was offered no skills, 1 if it was: the two are never compared with each other."""
        return 1 if self.trajectory.offered else 0
