"""The effect of each operation on a world, by the rules of its site. Of HTTP only the status codes."""

from collections.abc import Mapping

from app.records import Json
from trainer.worlds.office.apps import ACTS, APPS, GROUPS, Role
from trainer.worlds.office.items import PAGE_SIZE, Item
from trainer.worlds.office.site import AppSite, Site
from trainer.worlds.office.worlds import WorldState

PROFILE = {"name": "sam", "city": "oslo"}


class RefusedError(Exception):
    """The service refuses the call. The message is short and names the remedy."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def perform(site: Site, world: WorldState, target: tuple[str, str], token: str, given: Mapping[str, Json]) -> Json:
    """The result of the operation `target` = (app, operation). Raises RefusedError."""
    app, operation = target
    if app == "supervisor":
        return _supervise(world, operation)
    if app == "contacts":
        return _look_up_members(site, world, operation, token, given)
    if app not in APPS:
        raise RefusedError(404, f"no app {app}")
    here = site.apps[app]
    role = here.role(operation)
    if role is None:
        raise RefusedError(404, f"no operation {operation} in {app}")
    if role == "login":
        return _log_in(world, app, given)
    return _use(here, world, role, token, given)


def method_of(site: Site, app: str, operation: str) -> str:
    """POST for operations that change something, GET for the others."""
    if app == "supervisor" or (app == "contacts" and operation != site.contacts_login):
        return "GET"
    reads = app in APPS and site.apps[app].role(operation) in {"list", "show"}
    return "GET" if reads else "POST"


def _supervise(world: WorldState, operation: str) -> Json:
    if operation == "show_profile":
        return PROFILE
    if operation == "show_passwords":
        return {app: world.password(app) for app in (*APPS, "contacts")}
    raise RefusedError(404, f"no operation {operation} in supervisor")


def _look_up_members(site: Site, world: WorldState, operation: str, token: str, given: Mapping[str, Json]) -> Json:
    if operation == site.contacts_login:
        return _log_in(world, "contacts", given)
    if operation != site.members:
        raise RefusedError(404, f"no operation {operation} in contacts")
    _session(world, "contacts", token)
    group = given.get("group")
    if group not in GROUPS:
        raise RefusedError(404, f"no group {group}")
    return [{site.member: name} for name in world.groups[group]]


def _log_in(world: WorldState, app: str, given: Mapping[str, Json]) -> Json:
    if given.get("password") != world.password(app):
        raise RefusedError(401, "wrong password")
    if app != "contacts" and world.is_busy():  # or tasks with two log-ins would mostly fail
        raise RefusedError(503, "busy, call again")
    return {"access_token": world.log_in(app)}


def _session(world: WorldState, app: str, token: str) -> list[Item]:
    listed = world.session(app, token)
    if listed is None:
        raise RefusedError(401, "wrong access_token")
    return listed


def _use(here: AppSite, world: WorldState, role: Role, token: str, given: Mapping[str, Json]) -> Json:
    app = here.spec.name
    listed = _session(world, app, token)
    if role == "list":
        return _page(here, listed, _number(given, "page"))
    item = _item(here, world, _number(given, "id"))
    if role == "show":
        return _as_json(here, item)
    if role == "prepare":
        item.prepared = True
        return None
    return _act(here, item, role)


def _page(here: AppSite, listed: list[Item], page: int) -> Json:
    if page < here.first_page:
        raise RefusedError(422, f"pages start at {here.first_page}")
    start = (page - here.first_page) * PAGE_SIZE
    rows = [_as_json(here, item) for item in listed[start : start + PAGE_SIZE] if not item.removed]
    for row in rows:
        del row[here.fields[here.hidden]]
    return rows


def _act(here: AppSite, item: Item, role: Role) -> None:
    if role == here.guarded and not item.prepared:
        raise RefusedError(409, f"call {here.names['prepare']} first")
    item.done.add(role)
    item.removed = item.removed or here.spec.acts[ACTS.index(role)].removes


def _item(here: AppSite, world: WorldState, identity: int) -> Item:
    for item in world.items(here.spec.name):
        if item.id == identity and not item.removed:
            return item
    raise RefusedError(404, f"no {here.spec.noun} {identity}")


def _as_json(here: AppSite, item: Item) -> dict[str, Json]:
    fields = here.fields
    return {
        "id": item.id,
        fields["person"]: item.person,
        fields["label"]: item.label,
        fields["number"]: item.number,
    }


def _number(given: Mapping[str, Json], name: str) -> int:
    value = given.get(name)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and value.removeprefix("-").isascii() and value.removeprefix("-").isdigit():
        return int(value[:12])
    raise RefusedError(422, f"{name} is not a number")
