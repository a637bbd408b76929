"""Checks as a user who knows the right outcome would attach them to a task: code that reads the same APIs. Pure.

Marks such as stars cannot be read through the APIs, so only tasks that ask for an answer or remove items have a
check; the verifier, which sees the world itself, covers all tasks.
"""

from trainer.worlds.office.apps import ACTS
from trainer.worlds.office.items import Item, groups_of, items_of, matches
from trainer.worlds.office.places import Place
from trainer.worlds.office.site import Site
from trainer.worlds.office.task_templates import Template

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
    gone = [max(selected, key=_number)] if kind.verb == "top" else selected
    here = Site.of(place.site).apps[kind.app]
    left = {item.id for item in items} - {item.id for item in gone}
    names = {"login": here.names["login"], "list": here.names["list"]}
    return _LISTED.format(app=kind.app, first_page=here.first_page, left=sorted(left), **names)


def _number(item: Item) -> int:
    return item.number
