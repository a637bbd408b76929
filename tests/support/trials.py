"""Tasks of canaries and of active releases, evenly mixed, for tests of decisions."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from app.releases.canary import CanaryDecision, CanaryRules, decide
from app.releases.trials_store import CanaryShare, CanaryTask, TypicalCost, UsualKind

START = datetime(2026, 1, 1, tzinfo=UTC)
HALF = [CanaryShare(50.0, START)]


class Arm(msgspec.Struct, frozen=True):
    """Shares of the tasks that succeed, and of those that are errors. Without `scored` there are no scores."""

    success: float = 0.5
    errors: float = 0.0
    tokens: int = 300
    scored: bool = True


def evenly(count: int, share: float) -> Iterator[float]:
    """
    >>> list(evenly(4, 0.5))
    [0.0, 1.0, 0.0, 1.0]
    """
    for place in range(count):
        yield float(int((place + 1) * share + 1e-9) - int(place * share + 1e-9))


def trial(canary: Arm, active: Arm, count: int, kind: str = "mail") -> list[CanaryTask]:
    """So many tasks of each, in turns, with one score a minute."""
    columns = [
        [*zip(evenly(count, arm.success), evenly(count, arm.errors), strict=True)] for arm in (canary, active)
    ]
    found = []
    for place in range(2 * count):
        own = place % 2 == 0
        arm, (success, error) = (canary if own else active), columns[0 if own else 1][place // 2]
        at = START + timedelta(minutes=place)
        score = success if arm.scored else None
        found.append(CanaryTask(kind, own, at, score, at if arm.scored else None, error, 2, arm.tokens))
    return found


def judged(
    tasks: Sequence[CanaryTask],
    rules: CanaryRules | None = None,
    shares: Sequence[CanaryShare] = HALF,
    usual: Mapping[str, UsualKind] | None = None,
) -> CanaryDecision:
    return decide(tasks, shares, usual or {}, TypicalCost(4, 500), rules)
