"""The live worlds: each is created from its id at its first use, isolated, and discarded when old."""

from collections import OrderedDict
from hashlib import blake2b
from random import Random

from app.errors import NotFoundError
from trainer.worlds.office.apps import APPS
from trainer.worlds.office.items import Item, groups_of, items_of, matches
from trainer.worlds.office.places import DEMO, Place, place_of


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
