"""What each task of a chain earned: SAGE's skill-integrated reward, and the two it is compared with. Pure.

arXiv 2512.17102, section 3.3. A use counts only if the sandbox executed it and it returned.
"""

import ast
from collections.abc import Sequence
from uuid import UUID

import msgspec

from app.agent.action import code_of
from app.records import Stop, Trajectory
from app.run_settings import RewardRule

NO_CODE = -1.0  # for a task that ended because the policy wrote no code


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """One task of a chain, as the reward sees it."""

    score: float  # in [0, 1]
    success: bool
    no_code: bool = False
    made: frozenset[UUID] = frozenset()  # skills it left that may earn: no wrappers of one API
    used: frozenset[UUID] = frozenset()  # offered skills that were executed and returned
    named: frozenset[UUID] = frozenset()  # offered skills that its code calls and does not redefine


class Reward(msgspec.Struct, frozen=True):
    score: float  # the verifier's, or NO_CODE
    bonus: float = 0.0

    @property
    def total(self) -> float:
        return self.score + self.bonus


def link(trajectory: Trajectory, score: float, *, success: bool, made: frozenset[UUID]) -> Link:
    """What the reward needs to know of a rollout and the skills it left."""
    return Link(
        score=score,
        success=success,
        no_code=trajectory.stop is Stop.NO_CODE,
        made=made,
        used=frozenset(offer.skill_id for offer in trajectory.used()),
        named=_named(trajectory),
    )


def rewards(chain: Sequence[Link], rule: RewardRule = "skill", *, name_only: bool = False) -> list[Reward]:
    """One reward per position, in the chain's order.

    Under "skill", a success earns 1 more, and never more than 1, if it used a skill that an earlier task of the
    chain made, or made one that a later success used. Under "chain", it earns 1 more if all tasks succeeded.
    """
    if rule == "outcome":
        earned = [False] * len(chain)
    elif rule == "chain":
        earned = [len(chain) > 1 and all(each.success for each in chain)] * len(chain)
    else:
        edges = [
            (maker, user)
            for user in range(len(chain))
            for maker in range(user)
            if chain[user].success and chain[maker].made & (chain[user].named if name_only else chain[user].used)
        ]
        ends = {end for edge in edges for end in edge}
        earned = [each.success and position in ends for position, each in enumerate(chain)]
    return [
        Reward(NO_CODE) if each.no_code else Reward(each.score, float(bonus))
        for each, bonus in zip(chain, earned, strict=True)
    ]


def _named(trajectory: Trajectory) -> frozenset[UUID]:
    if not trajectory.offered:
        return frozenset()
    called: set[str] = set()
    defined: set[str] = set()
    for turn in trajectory.turns:
        for node in ast.walk(_tree(turn.text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                called.add(node.func.id)
            elif isinstance(node, ast.FunctionDef):
                defined.add(node.name)
    return frozenset(offer.skill_id for offer in trajectory.offered if offer.name in called - defined)


def _tree(text: str) -> ast.AST:
    try:
        return ast.parse(code_of(text) or "")
    except (SyntaxError, ValueError):
        return ast.Module([], [])
