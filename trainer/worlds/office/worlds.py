"""The live worlds: initial items, the effect of each operation, and whether a task was done.

A world is created from its id at its first use, isolated, and discarded when old. The verifier sees its final
state.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from random import Random
from typing import Any

import msgspec

from app.apis.double.receiver import RefusedError
from app.base.errors import NotFoundError
from app.base.values import Json
from trainer.environment import Verdict
from trainer.worlds.office.apps import ACTS, APPS, GROUPS, PEOPLE, AppSite, AppSpec, Role, Site
from trainer.worlds.office.scenarios import DEMO, Place, place_of

PAGE_SIZE = 4
PROFILE = {"name": "sam", "city": "oslo"}
_DEMO_ITEMS = 42


class Item(msgspec.Struct):
    """A mail, note, event and so on, with the acts that were done to it."""

    id: int
    person: str
    label: str
    number: int
    done: set[Role] = msgspec.field(default_factory=set)
    prepared: bool = False
    removed: bool = False


def groups_of(place: Place | None) -> dict[str, tuple[str, ...]]:
    """The members of each group. Nobody is in two groups."""
    people = list(place.people if place else PEOPLE)
    if place is not None:
        Random(f"groups {place.key}").shuffle(people)
    return {group: tuple(people[start::6]) for start, group in enumerate(GROUPS)}


def items_of(app: str, place: Place | None) -> list[Item]:
    """The items of one app, in order. None: those of the demo world."""
    if place is None:
        return _demo_items(APPS[app])
    rng = Random(f"items {app} {place.key}")
    items = _any_items(place, app, rng.randint(9, 14), rng)
    if app == place.kind.app:
        _set_task(items, place, rng)
    elif place.kind.selector == "person":  # the same person has an item in every other app
        rng.choice(items).person = place.value
    return items


def matches(item: Item, place: Place, groups: dict[str, tuple[str, ...]]) -> bool:
    """Whether the task's selector selects this item."""
    if place.kind.selector == "group":
        return item.person in groups[place.value]
    if place.kind.selector == "over":
        return item.number > int(place.value)
    return bool(getattr(item, place.kind.field) == place.value)


def _any_items(place: Place, app: str, count: int, rng: Random) -> list[Item]:
    ids = rng.sample(range(100, 1000), count)
    numbers = rng.sample(range(1, 100), count)  # all different: the largest is unique
    return [
        Item(identity, rng.choice(place.people), rng.choice(place.labels(app)), number)
        for identity, number in zip(ids, numbers, strict=True)
    ]


def _set_task(items: list[Item], place: Place, rng: Random) -> None:
    """Put matches on the first page, the last page, and perhaps between; nothing else matches."""
    last = len(items) - 1
    between = rng.sample(range(PAGE_SIZE, last), rng.randint(0, 2))
    chosen = {rng.randrange(PAGE_SIZE), last, *between}
    wanted, others = _pools(place)
    for at, value in zip(sorted(chosen), _spread(wanted, len(chosen), rng), strict=True):
        setattr(items[at], place.kind.field, value)
    rest = [at for at in range(len(items)) if at not in chosen]
    for at, value in zip(rest, _spread(others, len(rest), rng), strict=True):
        setattr(items[at], place.kind.field, value)
    if place.kind.selector == "over":
        items[rng.choice(rest)].number = int(place.value)  # the limit itself does not match
    if place.kind.verb == "top":
        _give_largest_to_other(items, chosen, rest, rng)


def _pools(place: Place) -> tuple[Sequence[Any], Sequence[Any]]:
    """The matching and the other values of the selecting field."""
    kind, value = place.kind, place.value
    if kind.selector == "over":
        limit = int(value)
        return range(limit + 1, 100), range(1, limit)
    if kind.selector == "group":
        members = groups_of(place)[value]
        return members, [person for person in place.people if person not in members]
    return [value], [other for other in place.values(kind.selector) if other != value]


def _spread(pool: Sequence[Any], count: int, rng: Random) -> list[Any]:
    """`count` values of the pool; each occurs once before any occurs twice."""
    drawn: list[Any] = []
    while len(drawn) < count:
        drawn += rng.sample(pool, min(len(pool), count - len(drawn)))
    return drawn


def _give_largest_to_other(items: list[Item], chosen: set[int], rest: list[int], rng: Random) -> None:
    """Give the overall largest number to an item that does not match."""
    largest = max(range(len(items)), key=lambda at: items[at].number)
    if largest in chosen:
        other = rng.choice(rest)
        items[largest].number, items[other].number = items[other].number, items[largest].number


def _demo_items(spec: AppSpec) -> list[Item]:
    rng = Random(f"demo {spec.name}")
    people = _spread(PEOPLE, _DEMO_ITEMS, rng)
    labels = _spread(spec.values, _DEMO_ITEMS, rng)
    numbers = rng.sample(range(1, 100), _DEMO_ITEMS)
    return [Item(101 + at, people[at], labels[at], numbers[at]) for at in range(_DEMO_ITEMS)]


class WorldState:
    """The mutable state of one world. An app's items are created at its first use."""

    def __init__(self, name: str, busy: float = 0.0) -> None:
        self.name = name
        self._busy = busy
        self._log_ins = 0
        self.place: Place | None = None if name == DEMO else place_of(name)
        self.site = self.place.site if self.place else 0
        self.groups = groups_of(self.place)
        self._items: dict[str, list[Item]] = {}
        self._sessions: dict[str, tuple[str, list[Item]]] = {}

    @property
    def touched(self) -> dict[str, list[Item]]:
        """The items of the apps used so far; nothing else can have changed."""
        return self._items

    def items(self, app: str) -> list[Item]:
        if app not in self._items:
            self._items[app] = items_of(app, self.place)
        return self._items[app]

    def leave_text(self, text: str) -> None:
        """Let a record that the task is not about have this text for a person: whoever lists them reads it.

        Raises NotFoundError for a world without a task, such as the demo.
        """
        place = self.place
        if place is None:
            raise NotFoundError(f"world {self.name} has no task whose records could hold a text")
        items = self.items(place.kind.app)
        next(item for item in items if not matches(item, place, self.groups)).person = text

    def is_busy(self) -> bool:
        """Whether this log-in is refused: the same ones in every rollout of a task."""
        if not self._busy:
            return False
        self._log_ins += 1
        task = self.place.world() if self.place else self.name
        return Random(f"busy {task} {self._log_ins}").random() < self._busy

    def password(self, app: str) -> str:
        return _secret(f"password {self.name} {app}")

    def log_in(self, app: str) -> str:
        """The token of a new session. Its pages are fixed now: items removed later leave gaps."""
        token = _secret(f"session {self.name} {app} {len(self._sessions)}")
        listed = [item for item in self.items(app) if not item.removed] if app in APPS else []
        self._sessions[token] = (app, listed)
        return token

    def session(self, app: str, token: str) -> list[Item] | None:
        """The items that the session lists; None if the token belongs to another app."""
        owner, listed = self._sessions.get(token, ("", []))
        return listed if owner == app else None


class Worlds:
    """Worlds by id, at most `capacity`: the least recently used one is discarded, but never the demo.

    `busy` is the share of log-ins that the services refuse at random with 503; the address book refuses none.
    """

    def __init__(self, capacity: int = 20_000, *, busy: float = 0.0) -> None:
        self._capacity = capacity
        self._busy = busy
        self._alive: OrderedDict[str, WorldState] = OrderedDict()
        self._demo = WorldState(DEMO)

    def at(self, site: int, name: str) -> WorldState:
        """The world. Raises NotFoundError if it belongs to another site."""
        world = self.get(name)
        if world.site != site:
            raise NotFoundError(f"world {name} is at site {world.site}, not at {site}")
        return world

    def get(self, name: str) -> WorldState:
        if name == DEMO:
            return self._demo
        world = self._alive.get(name)
        if world is None:
            world = self._alive[name] = WorldState(name, self._busy)
            if len(self._alive) > self._capacity:
                self._alive.popitem(last=False)
        self._alive.move_to_end(name)
        return world

    def forget(self, name: str) -> None:
        """Discard the world; its next use creates it again."""
        if name == DEMO:
            self._demo = WorldState(DEMO)
        self._alive.pop(name, None)


def _secret(text: str) -> str:
    return blake2b(text.encode(), digest_size=8).hexdigest()


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
    return {"id": item.id, **{name: getattr(item, field) for field, name in here.fields.items()}}


def _number(given: Mapping[str, Json], name: str) -> int:
    value = given.get(name)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and value.removeprefix("-").isascii() and value.removeprefix("-").isdigit():
        return int(value[:12])
    raise RefusedError(422, f"{name} is not a number")


def verify(world: WorldState, answer: Json, *, completed: bool = True) -> Verdict:
    """One check for each requested change, one that nothing else changed, and one of the answer.

    Raises NotFoundError for a world without a task, such as the demo.
    """
    place = world.place
    if place is None:
        raise NotFoundError(f"world {world.name} has no task to judge")
    kind = place.kind
    selected = [item for item in world.items(kind.app) if matches(item, place, world.groups)]
    changing = selected if kind.role else []
    if kind.verb == "top":
        changing = [max(selected, key=lambda item: item.number)]
    failures = [
        f"{kind.app} {item.id}: expected {kind.role}, found {sorted(item.done) or 'no change'}"
        for item in changing
        if item.done != {kind.role}
    ]
    allowed = {id(item) for item in changing}
    changed = [(app, item) for app, items in world.touched.items() for item in items if item.done]
    if others := [f"{app} {item.id}" for app, item in changed if id(item) not in allowed]:
        failures.append(f"changed without being asked: {', '.join(others)}")
    if wrong := _wrong_answer(selected, place, answer, completed):
        failures.append(wrong)
    total = len(changing) + 2
    return Verdict(total - len(failures), total, tuple(failures))


def _wrong_answer(selected: list[Item], place: Place, answer: Json, completed: bool) -> str | None:
    if not completed:
        return "the task was not completed"
    if place.kind.role:
        return None if answer in (None, "") else "an answer was given where none was expected"
    expected = len(selected) if place.kind.verb == "count" else sum(item.number for item in selected)
    right = not isinstance(answer, bool) and answer in (expected, str(expected))
    return None if right else f"expected the answer {expected}, got {str(answer)[:60]}"
