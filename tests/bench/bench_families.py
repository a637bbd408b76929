"""How well the kinds of unlabelled tasks are inferred: of the pairs that are compared, how many are of one kind
(precision), and of the pairs of one kind, how many are compared (recall). By instructions alone, and with what the
tasks called.

    python tests/bench/bench_families.py

Six tasks of each kind of the office. Four in ten failed: half of these stopped early, some called another
operation.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations
from random import Random
from typing import NamedTuple
from uuid import UUID

from app.base.values import Task
from trainer.rewards import Conduct, infer_scenarios
from trainer.worlds.office import solution
from trainer.worlds.office.apps import Site
from trainer.worlds.office.scenarios import TEMPLATES, Place, Variety

_EACH = 6  # tasks of a kind
_SOLVED, _EARLY, _WRONG = 0.6, 0.5, 0.7
_CALL = re.compile(r"apis\.(\w+\.\w+)")


class LabelledTask(NamedTuple):
    kind: int
    task: Task
    conduct: Conduct


class PairFigures(NamedTuple):
    """Shares of pairs; `mixed` is the precision of pairs of a solved task and a failed one."""

    precision: float
    recall: float
    mixed: float


def labelled_tasks(seed: int, variety: Variety = "") -> list[LabelledTask]:
    """Of all kinds, in random order."""
    rng, site = Random(f"families {seed}"), Site.of(0)
    every = [frozenset(_CALL.findall(solution.function(template, site))) for template in TEMPLATES]
    known = sorted(frozenset().union(*every))
    found = []
    for kind, operations in enumerate(every):
        for number in range(_EACH):
            place = Place(template=kind, seed=rng.randrange(10**9), site=0, index=number % 3, variety=variety)
            task = Task(UUID(int=rng.getrandbits(128)), place.instruction)
            found.append(LabelledTask(kind, task, _conduct(operations, known, rng)))
    rng.shuffle(found)
    return found


def _conduct(operations: frozenset[str], known: Sequence[str], rng: Random) -> Conduct:
    if rng.random() < _SOLVED:
        return Conduct(operations)
    how, some = rng.random(), sorted(operations)
    if how < _EARLY:
        return Conduct(frozenset(rng.sample(some, max(1, len(some) - rng.choice((1, 2))))), solved=False)
    if how < _WRONG:
        gone = rng.choice(some)
        app = gone.partition(".")[0]
        other = rng.choice([each for each in known if each.startswith(f"{app}.")])
        return Conduct(operations - {gone} | {other}, solved=False)
    return Conduct(operations, solved=False)


def measure_pairs(tasks: Sequence[LabelledTask], *, by_conduct: bool) -> PairFigures:
    conduct = {each.task.id: each.conduct for each in tasks} if by_conduct else None
    families: dict[str, list[LabelledTask]] = defaultdict(list)
    for each, key in zip(tasks, infer_scenarios([each.task for each in tasks], None, conduct), strict=True):
        families[key].append(each)
    pairs = [pair for family in families.values() for pair in combinations(family, 2)]
    right = [one.kind == other.kind for one, other in pairs]
    mixed = [one.kind == other.kind for one, other in pairs if one.conduct.solved != other.conduct.solved]
    of_one_kind = len(TEMPLATES) * _EACH * (_EACH - 1) / 2
    return PairFigures(sum(right) / len(pairs), sum(right) / of_one_kind, sum(mixed) / len(mixed))


def main() -> None:
    print(f"{len(TEMPLATES)} kinds, {_EACH} tasks of each, five draws")
    wordings: dict[str, Variety] = {"fixed wording": "", "free wording": "-w"}
    for title, variety in wordings.items():
        drawn = [labelled_tasks(seed, variety) for seed in range(5)]
        for how in (False, True):
            figures = [measure_pairs(tasks, by_conduct=how) for tasks in drawn]
            lowest = min(each.precision for each in figures)
            mean = PairFigures(*(sum(each) / len(each) for each in zip(*figures, strict=True)))
            print(
                f"{title}, {'with calls' if how else 'instructions alone'}: precision {mean.precision:.3f} "
                f"(lowest {lowest:.3f}), of mixed pairs {mean.mixed:.3f}, recall {mean.recall:.3f}"
            )


if __name__ == "__main__":
    main()
