"""Convert a trajectory to the input of the reward: the offered skills that it executed, and called by name."""

import ast
from uuid import UUID

from app.agent.action import extract_code
from app.records import Stop, Trajectory
from app.untrusted.syntax_tree import syntax_tree
from trainer.sage.reward import ChainStep


def chain_step(
    trajectory: Trajectory, score: float, *, success: bool, creditable: frozenset[UUID], known: bool = True
) -> ChainStep:
    """The step of a chain; `score` is the verifier's, in [0, 1]; `creditable` are the skills it made that can earn
    a bonus; `known` is False if the verifier cannot tell. One that ended without code is no success, whatever the
    verifier says: neither it nor the maker of its skills earns a bonus.
    """
    no_code = trajectory.stop is Stop.NO_CODE
    return ChainStep(
        score=score,
        success=success and not no_code,
        no_code=no_code,
        creditable=creditable,
        used=frozenset(offer.skill_id for offer in trajectory.used()),
        called_by_name=_called_by_name(trajectory),
        known=known,
    )


def _called_by_name(trajectory: Trajectory) -> frozenset[UUID]:
    if not trajectory.offered:
        return frozenset()
    called: set[str] = set()
    defined: set[str] = set()
    for turn in trajectory.turns:
        tree = _parse(turn.full_text)
        if tree is None:
            return frozenset()
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                called.add(node.func.id)
            elif isinstance(node, ast.FunctionDef):
                defined.add(node.name)
    return frozenset(offer.skill_id for offer in trajectory.offered if offer.name in called - defined)


def _parse(text: str) -> ast.AST | None:
    """The code of a turn; None if it is too deep to be parsed, and so may define and call anything."""
    try:
        return syntax_tree(extract_code(text) or "")
    except (SyntaxError, ValueError):
        return ast.Module([], [])
    except (RecursionError, MemoryError):
        return None
