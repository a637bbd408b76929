"""Live traffic for the demo's office suite: tasks as users send them, each with a check. Pure."""

import secrets
from collections.abc import Sequence
from random import Random
from typing import Any

from trainer.environment import Split
from trainer.worlds.office.scenarios import TASKS, TEMPLATES, Place, Template, templates_of
from trainer.worlds.office.worlds import can_check, check_of


def kinds_of(split: Split, count: int) -> list[Template]:
    """The kinds of tasks in the traffic, deterministic; fewer if fewer can be checked."""
    checkable = [template for template in templates_of(split) if can_check(template)]
    Random("live traffic").shuffle(checkable)
    return checkable[:count]


def draw_traffic(kinds: Sequence[Template], site: int, count: int, seed: int) -> list[Place]:
    """Tasks of all kinds in turn, never the same twice."""
    rng = Random(f"traffic {seed}")
    return [
        Place(
            template=TEMPLATES.index(kinds[number % len(kinds)]),
            seed=rng.randrange(10**9),
            site=site,
            index=rng.randrange(TASKS),
        )
        for number in range(count)
    ]


def submission(place: Place, project: str, *, labels: bool, scored: bool) -> dict[str, Any]:
    """One task in a fresh world. With `labels` its kind is named as its scenario; `scored` gives it a check."""
    return {
        "project": project,
        "instruction": place.instruction,
        "scenario": place.kind.name if labels else None,
        "variables": {"world": place.world(secrets.token_hex(4))},
        "check": check_of(place) if scored else None,
    }
