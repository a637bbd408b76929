"""Live traffic for the demo's office suite: tasks as users send them, each with a check. Pure."""

import secrets
from collections.abc import Sequence
from random import Random
from typing import Any

from trainer.environment import Split
from trainer.worlds.office.apps import ACTS, Site
from trainer.worlds.office.scenarios import TASKS, TEMPLATES, Place, Template, templates_of
from trainer.worlds.office.worlds import groups_of, items_of, matches

_LISTED = """\
def ask(operation, **given):  # again, where the service is busy
    for _ in range(20):
        try:
            return operation(**given)
        except Exception as error:
            last = error
    raise last

password = ask(apis.supervisor.show_passwords)["{app}"]
token = ask(apis.{app}.{login}, password=password)["access_token"]
left, page = set(), {first_page}
while rows := ask(apis.{app}.{list}, access_token=token, page=page):
    left |= {{row["id"] for row in rows}}
    page += 1
score = float(left == set({left}) and answer in (None, ""))
"""
_ANSWERED = 'score = float(str(answer) == "{expected}")\n'


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


def can_check(template: Template) -> bool:
    return template.role is None or template.spec.acts[ACTS.index(template.role)].removes


def check_of(place: Place) -> str:
    """Python that sets `score` to 1 if the task was solved, otherwise to 0. Only for templates that `can_check`
    allows.
    """
    items, kind = items_of(place.kind.app, place), place.kind
    selected = [item for item in items if matches(item, place, groups_of(place))]
    if kind.role is None:
        expected = len(selected) if kind.verb == "count" else sum(item.number for item in selected)
        return _ANSWERED.format(expected=expected)
    gone = [max(selected, key=lambda item: item.number)] if kind.verb == "top" else selected
    here = Site.of(place.site).apps[kind.app]
    left = {item.id for item in items} - {item.id for item in gone}
    names = {"login": here.names["login"], "list": here.names["list"]}
    return _LISTED.format(app=kind.app, first_page=here.first_page, left=sorted(left), **names)
