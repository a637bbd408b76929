"""Which tasks show something about a canary: chance gave them to one release or the other, and their checks can
tell better from worse. Pure.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

import msgspec

from app.db.canaries import CanaryShare, CanaryTask, UsualKind
from app.db.results import UNLABELLED
from app.release.assigned_difference import AssignedValue, is_one_sided
from app.release.constant_checks import ConstantChecks

_ALPHA_PART = 0.2  # of the error of a decision, for calling a kind one-sided although it is not
_MOST_NAMED = 20  # kinds in the evidence


class UncountedTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks by kind that show nothing about the canary, at most 20 kinds each, those with most tasks.

    A kind is one-sided if one release has more of its tasks, or of their scores, than chance explains. `all_of` is
    `tasks` or `scores` if that is so for each of the kinds, or for all of them together: then none of them count.
    """

    one_sided_tasks: dict[str, dict[str, int]] = {}
    one_sided_scores: dict[str, dict[str, int]] = {}
    constant_checks: dict[str, int] = {}  #: scored tasks of kinds whose scores are all the same: no reward counts
    vanished: dict[str, int] = {}  #: earlier tasks of scenarios that did not come during the trial
    all_of: str = ""


def share_at(shares: Sequence[CanaryShare], moment: datetime) -> float:
    """The canary's share of the tasks that began then, from 0 to 1. A claim may have read the share just before it
    was raised and begin just after: too few to matter.
    """
    place = bisect_right(shares, moment, key=lambda each: each.since)
    return shares[max(0, place - 1)].percent / 100


def counted(
    values: Mapping[str, Sequence[AssignedValue]], usual: Mapping[str, UsualKind], alpha: float
) -> tuple[dict[str, Sequence[AssignedValue]], UncountedTraffic]:
    """The values of each metric that count, in the same order.

    Kinds are one-sided by the releases of their tasks alone. Whether the scores of a kind differ depends on the
    scores alone: between equal releases, chance gave them to one or the other all the same.
    """
    tasks = _one_sided(values["errors"], alpha * _ALPHA_PART / 2)
    scores = _one_sided(values["reward"], alpha * _ALPHA_PART / 2)
    found: dict[str, Sequence[AssignedValue]] = {}
    for name, each in values.items():
        without = tasks.keys() | scores.keys() if name == "reward" else tasks.keys()
        found[name] = [value for value in each if value.kind not in without]
    nothing_left = {name: bool(each) and not found[name] for name, each in values.items()}
    found["reward"], constant = _without_constant(found["reward"], usual)
    all_of = ""
    for name, what in (("errors", "tasks"), ("reward", "scores")):
        if nothing_left[name] or is_one_sided(found[name], alpha * _ALPHA_PART / 2):
            all_of = all_of or what
            found = {other: [] if what == "tasks" or other == name else each for other, each in found.items()}
    return found, UncountedTraffic(
        one_sided_tasks=_most(tasks),
        one_sided_scores=_most(scores),
        constant_checks=constant,
        all_of=all_of,
    )


def vanished(usual: Mapping[str, UsualKind], tasks: Iterable[CanaryTask]) -> dict[str, int]:
    """Earlier tasks of the scenarios that did not come again; none before there are tasks."""
    there = {task.kind for task in tasks}
    gone = {k: u.tasks for k, u in usual.items() if there and k not in there and not k.startswith(UNLABELLED)}
    return dict(Counter(gone).most_common(_MOST_NAMED))


def _without_constant(
    rewards: Sequence[AssignedValue], usual: Mapping[str, UsualKind]
) -> tuple[list[AssignedValue], dict[str, int]]:
    """The rewards that count, and the number of those of each kind whose check is constant, of which the first few
    count. Once a score differs, all of its kind do.
    """
    checks = ConstantChecks()
    for kind, each in usual.items():
        if each.scores:
            checks.add(kind, each.same, each.scores)
    waited = []
    for value in rewards:
        waited.append(value.kind in checks)
        if not value.unscored:
            checks.add(value.kind, value.value)
    found = [value for value, late in zip(rewards, waited, strict=True) if not (late and value.kind in checks)]
    constant = Counter(value.kind for value in rewards if value.kind in checks)
    return found, dict(constant.most_common(_MOST_NAMED))


def _one_sided(values: Iterable[AssignedValue], alpha: float) -> dict[str, dict[str, int]]:
    """By kind, the tasks of both releases."""
    kinds: dict[str, list[AssignedValue]] = defaultdict(list)
    for value in values:
        kinds[value.kind].append(value)
    return {
        kind: {"canary": own, "baseline": len(each) - own}
        for kind, each in kinds.items()
        if is_one_sided(each, alpha / len(kinds))
        for own in [sum(value.on_canary for value in each)]
    }


def _most(kinds: Mapping[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    by_size = sorted(kinds.items(), key=lambda each: -sum(each[1].values()))
    return dict(by_size[:_MOST_NAMED])
