"""Tasks as a project of 200 tasks a day would have them, to try the rules of canaries on."""

from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import msgspec
import numpy as np

from app.releases.trials_store import CanaryTask, UsualKind

START = datetime(2026, 1, 1, tzinfo=UTC)
PER_DAY = 200
_KINDS = 30
_BEFORE = 5_000  # tasks before the canary


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """What is different about a canary, and about the project's feedback."""

    gain: float = 0.0  # of success; 0.7 on average without it
    told: float = 0.5  # share of the failures that are errors; of the successes, 3 %
    tokens: float = 1.0  # times those of the release before
    feedback: float = 0.1  # share of the tasks that get a score, up to a day later
    favour: float = 1.0  # times that share, for tasks of the canary


class Traffic:
    """One project: kinds with rates of success, costs and frequencies of their own."""

    def __init__(self, rng: np.random.Generator, case: Case) -> None:
        self._rng, self._case = rng, case
        self._rates: list[float] = rng.uniform(0.45, 0.95, _KINDS).tolist()
        self._turns: list[int] = rng.integers(2, 9, _KINDS).tolist()
        self._mix: list[float] = rng.dirichlet(np.full(_KINDS, 3.0)).cumsum()[:-1].tolist()

    def usual(self) -> dict[str, UsualKind]:
        """Of the tasks before the canary."""
        past = defaultdict[str, list[CanaryTask]](list)
        for _ in range(_BEFORE):
            task = self._task(False, START)
            past[task.kind].append(task)
        return {kind: _summed(tasks) for kind, tasks in past.items()}

    def tasks(self, share: float, day: float, until: float) -> Iterator[CanaryTask]:
        """Those that begin between two times, in days, with this share for the canary."""
        count = round((until - day) * PER_DAY)
        for place in range(count):
            moment = START + timedelta(days=day + (until - day) * place / count)
            yield self._task(bool(self._rng.random() < share), moment)

    def _task(self, on_canary: bool, moment: datetime) -> CanaryTask:
        case, chance = self._case, self._rng.random(7).tolist()
        kind = bisect(self._mix, chance[0])
        success = chance[1] < self._rates[kind] + case.gain * on_canary
        error = chance[2] < (0.03 if success else case.told)
        turns = self._turns[kind] + int(3 * chance[3]) + 2 * (not success)
        tokens = int(turns * (60 + 80 * chance[4]) * (case.tokens if on_canary else 1))
        scored = chance[5] < case.feedback * (case.favour if on_canary else 1)
        return CanaryTask(
            kind=f"kind {kind}",
            on_canary=on_canary,
            started_at=moment,
            reward=float(success) if scored else None,
            scored_at=moment + timedelta(days=chance[6]) if scored else None,
            error=float(error),
            turns=turns,
            tokens=tokens,
        )


def known_by(tasks: list[CanaryTask], moment: datetime) -> list[CanaryTask]:
    """The tasks without the scores that came later."""
    return [
        task if task.scored_at is None or task.scored_at < moment else task._replace(reward=None, scored_at=None)
        for task in tasks
    ]


def _summed(tasks: list[CanaryTask]) -> UsualKind:
    rewards = [task.reward for task in tasks if task.reward is not None]
    same = rewards[0] if len(set(rewards)) == 1 else None
    return UsualKind(len(tasks), len(rewards), sum(rewards), sum(task.error for task in tasks), len(rewards), same)
