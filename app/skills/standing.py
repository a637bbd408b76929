"""The rule by which a skill leaves quarantine and probation on evidence. Pure.

A skill moves up once all of these hold:

1. It never attempted a call beyond its manifest.
2. It was replayed on recorded calls at least once, and every replay made the same calls and returned.
3. The task that wrote it has a score of at least 0.5. Here and in 4, good scores that the key which submitted that
   task gave itself do not count: those of checks, verifiers, other keys and people at the console do.
4. It returned in at least 3 tasks with a score of at least 0.5, not counting the one that wrote it. From
   quarantine: tasks of its own principal, since it is offered to no others. From probation: tasks of at least 2
   other principals, or any tasks if the project has no other principal. If several keys submit tasks, all
   principals that this key names are one.
5. Of its latest tasks, those that were offered it do not succeed more seldom than those from which chance withheld
   it; a difference that chance explains in one of five cases is none. While few were withheld: of the scored tasks
   of its scenario since it was written, the share of successes among those that used it is at least as high as
   among the others, if there are any.
"""

from collections.abc import Iterator

import msgspec

from app.base.values import GOOD
from app.db.skill_evidence import Outcomes, SkillEvidence
from app.db.tables import NEXT_SKILL_STATE, SkillState
from app.projects.settings import SkillPolicy
from app.skills.chance import chance_of_so_few

USES = 3
PRINCIPALS = 2
_CHANCE = 0.2


class Standing(msgspec.Struct, frozen=True):
    """The state that a skill has earned, and what it lacks for it."""

    state: SkillState
    missing: tuple[str, ...] = ()

    @property
    def earned(self) -> bool:
        return not self.missing


def standing(state: SkillState, principal: str, evidence: SkillEvidence, policy: SkillPolicy) -> Standing:
    """The next state of a skill, and what is missing for it. Its present state if there is no next one."""
    goal = NEXT_SKILL_STATE.get(state)
    if goal is None:
        return Standing(state, ("it has no next state",))
    if policy == "review":
        return Standing(goal, ("a person's approval",))
    return Standing(goal, tuple(_missing(state, principal, evidence)))


def _missing(state: SkillState, principal: str, evidence: SkillEvidence) -> Iterator[str]:
    if evidence.violations:
        yield "a person's approval, because it attempted calls beyond its manifest"
    if evidence.replays_failed:
        yield "a person's approval, because a replay went another way"
    elif not evidence.replays_matched:
        yield "a replay"
    if evidence.maker_score is None:
        yield "a score of the task that wrote it, by others than its key"
    elif evidence.maker_score < GOOD:
        yield "a good score of the task that wrote it"
    yield from _missing_uses(state, principal, evidence)
    if _is_worse(evidence):
        yield "an outcome no worse than without it"


def is_worse(offered: Outcomes, withheld: Outcomes) -> bool:
    """Whether tasks that are offered it succeed more seldom, by more than chance explains in one of five cases."""
    return chance_of_so_few(offered, withheld) < _CHANCE


def _is_worse(evidence: SkillEvidence) -> bool:
    if evidence.is_randomized:
        return is_worse(evidence.offered, evidence.withheld)
    with_it, without_it = evidence.with_it.rate, evidence.without_it.rate
    return with_it is not None and without_it is not None and with_it < without_it


def _missing_uses(state: SkillState, principal: str, evidence: SkillEvidence) -> Iterator[str]:
    good = {who: each.successes for who, each in evidence.uses.items() if each.successes}
    if state is SkillState.QUARANTINED:
        good = {who: count for who, count in good.items() if who == principal}
    elif evidence.others:
        good.pop(principal, None)
        if len(good) < PRINCIPALS:
            yield f"{PRINCIPALS - len(good)} more principals that used it successfully"
    if (count := sum(good.values())) < USES:
        yield f"{USES - count} more successful uses"
