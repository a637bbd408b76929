"""Checkpoints of a learner: one per round, of which the last is kept."""

from pathlib import Path

from trainer.learning.learner import Learner

_NAME = "learner-{:05}.checkpoint"


class Checkpoints:
    """The checkpoints in one run's directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @property
    def rounds(self) -> int:
        """How many rounds earlier attempts have completed."""
        last = self._last()
        return 0 if last is None else int(last.stem.partition("-")[2])

    def restore(self, learner: Learner) -> int:
        """Restore the learner to the last checkpoint. Returns the number of completed rounds."""
        if (last := self._last()) is not None:
            learner.restore(last)
        return self.rounds

    def save(self, learner: Learner, rounds: int) -> None:
        learner.save(self._directory / _NAME.format(rounds))
        (self._directory / _NAME.format(rounds - 1)).unlink(missing_ok=True)

    def _last(self) -> Path | None:
        return max(self._directory.glob(_NAME.replace("{:05}", "*")), default=None)
