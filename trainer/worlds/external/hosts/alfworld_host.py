"""ALFWorld: chores in the package's 120 rooms, by its affordances and goals.

The package's own games are data that have to be downloaded; these are drawn from what it brings: which containers
and things a room has, what may be put where, what can be cleaned, heated or cooled, and the six kinds of goals.
Actions have the preconditions and effects of its PDDL domain. The test rooms are the package's, and in no other
split.
"""

import itertools
import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

from host import Json, RefusedCallError, serve

os.environ.setdefault("ALFWORLD_DATA", tempfile.gettempdir())  # else it makes a directory in the home directory

import alfworld
from alfworld.gen import constants, goal_library

KINDS = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
_LAYOUTS = Path(alfworld.__file__).parent / "gen" / "layouts"
_SETS = 4  # scenarios of a kind in a room
_TASKS = 3  # of a scenario
_VALIDATION = 6  # of the training rooms one in so many
_FURNITURE = frozenset(constants.STATIC_RECEPTACLES) - {"Sink", "Bathtub", "PaintingHanger"}
_CONTENTS = constants.VAL_RECEPTACLE_OBJECTS
_TREATMENTS = {  # of a thing: what can be treated so, in what
    "clean": ("Cleanable", "SinkBasin"),
    "heat": ("Heatable", "Microwave"),
    "cool": ("Coolable", "Fridge"),
}
_TREATED = {"clean": "clean", "heat": "hot", "cool": "cool"}
_KNIVES = ("Knife", "ButterKnife")


class Thing:
    """Something that can be carried, or a lamp."""

    def __init__(self, name: str, kind: str, place: str) -> None:
        self.name, self.kind = name, kind
        self.place = place  # the name of its container; "": it is carried
        self.states = set[str]()


class House:
    """A room, what is in it, and the agent. A drawn one is the same for the same name."""

    now = ""

    def __init__(self, name: str) -> None:
        self.name = name
        self.kind, room, _, _ = name.split(" ")
        rng = Random(name)
        self.room = int(room)
        self.containers = dict(_named(_furniture(self.room, rng)))
        self.things: dict[str, Thing] = {}
        self.goal = self._furnish(rng)
        self.opened = set[str]()
        self.location = ""

    # What is drawn

    def _furnish(self, rng: Random) -> dict[str, str]:
        """Put things into the containers. The goal: the kinds of things that it is about."""
        present = _types(self.room)
        kinds = {kind: name for name, kind in reversed(self.containers.items())}
        placed = [
            kind
            for kind in present
            if kind not in kinds and any(kind in _CONTENTS.get(each, ()) for each in kinds)
        ]
        goals = [
            {"obj": kind, "recep": recep} for kind in placed for recep in kinds if self._fits(kind, recep, kinds)
        ]
        if self.kind == "look_at_obj_in_light":
            lamps = sorted(_lamps(present))
            goals = [{"obj": kind, "toggle": lamp} for kind in placed for lamp in lamps if kind not in lamps]
        goal = rng.choice(goals)
        for kind in placed:
            count = rng.randint(2 if kind == goal["obj"] and "two" in self.kind else 1, 3)
            allowed = [name for name, each in self.containers.items() if kind in _CONTENTS.get(each, ())]
            unsolved = [name for name in allowed if self.containers[name] != goal.get("recep")]
            for number in range(1, count + 1):
                places = unsolved if kind == goal["obj"] and unsolved else allowed
                name = f"{kind.lower()} {number}"
                self.things[name] = Thing(name, kind, rng.choice(places))
        for kind in _lamps(present):
            stands = [
                name for name, each in self.containers.items() if each in ("Desk", "SideTable", "Dresser", "Shelf")
            ]
            name = f"{kind.lower()} 1"
            self.things[name] = Thing(name, kind, rng.choice(stands or list(self.containers)))
        return goal

    def _fits(self, kind: str, recep: str, kinds: dict[str, str]) -> bool:
        """Whether things of a kind can be treated and placed so here, and need not be there already."""
        if kind not in _CONTENTS.get(recep, ()) or not any(
            kind in _CONTENTS.get(each, ()) for each in kinds if each != recep
        ):
            return False
        treatment = self.treatment
        if not treatment:
            return True
        can_be, where = _TREATMENTS[treatment]
        return kind in constants.VAL_ACTION_OBJECTS[can_be] and where in kinds

    @property
    def treatment(self) -> str:
        found = re.match(r"pick_(clean|heat|cool)_", self.kind)
        return found[1] if found else ""

    # What is asked

    @property
    def instruction(self) -> str:
        templates: list[str] = goal_library.gdict[self.kind]["templates"]
        words = {name: kind.lower() for name, kind in self.goal.items()}
        return Random(self.name).choice(templates).format(**words) + "."

    @property
    def reached(self) -> bool:
        """The goal of the package for this kind."""
        meant = [each for each in self.things.values() if each.kind == self.goal["obj"]]
        if self.kind == "look_at_obj_in_light":
            lit = [
                each for each in self.things.values() if each.kind == self.goal["toggle"] and "on" in each.states
            ]
            here = any(each.place == self.location for each in lit)
            return here and any(not each.place for each in meant)
        placed = [each for each in meant if self.containers.get(each.place) == self.goal["recep"]]
        if self.treatment:
            return any(_TREATED[self.treatment] in each.states for each in placed)
        if self.kind == "pick_two_obj_and_place":
            return any(count > 1 for count in Counter(each.place for each in placed).values())
        return bool(placed)

    # What the agent can do

    def call(self, app: str, operation: str, arguments: dict[str, Json]) -> Json:  # noqa: ARG002  there is one
        given = {name: self._known(value) for name, value in arguments.items()}
        return getattr(self, f"_{operation}")(**given)

    def _known(self, name: Json) -> str:
        if name not in self.containers and name not in self.things:
            raise RefusedCallError(f"there is no {name!r} here")
        return str(name)

    def _look(self) -> Json:
        return {"location": self.location or "the middle of the room", "containers": list(self.containers)}

    def _inventory(self) -> Json:
        return [each.name for each in self.things.values() if not each.place]

    def _go_to(self, container: str) -> Json:
        self._container(container)
        self.location = container
        return self._seen(container)

    def _examine(self, name: str) -> Json:
        if name in self.containers:
            self._at(name)
            return self._seen(name)
        thing = self.things[name]
        if thing.place:
            self._at(thing.place)
            self._accessible(thing.place)
        return {"name": name, "states": sorted(thing.states)}

    def _open(self, container: str) -> Json:
        self._at(container)
        if not self._openable(container):
            raise RefusedCallError(f"{container} cannot be opened")
        if container in self.opened:
            raise RefusedCallError(f"{container} is open already")
        self.opened.add(container)
        return self._seen(container)

    def _close(self, container: str) -> Json:
        self._at(container)
        if container not in self.opened:
            raise RefusedCallError(f"{container} is not open")
        self.opened.remove(container)
        return self._seen(container)

    def _take(self, thing: str, container: str) -> Json:
        self._at(container)
        self._accessible(container)
        taken = self._thing(thing)
        if taken.place != container:
            raise RefusedCallError(f"{thing} is not in or on {container}")
        if taken.kind in constants.VAL_ACTION_OBJECTS["Toggleable"]:
            raise RefusedCallError(f"{thing} cannot be picked up")
        if carried := self._inventory():
            raise RefusedCallError(f"you carry {carried[0]} already")
        taken.place = ""
        return {"carried": thing}

    def _move(self, thing: str, container: str) -> Json:
        self._at(container)
        self._accessible(container)
        moved = self._carried(thing)
        if moved.kind not in _CONTENTS.get(self.containers[container], ()):
            raise RefusedCallError(f"{thing} does not belong in or on {container}")
        moved.place = container
        return self._seen(container)

    def _clean(self, thing: str, container: str) -> Json:
        return self._treat("clean", thing, container)

    def _heat(self, thing: str, container: str) -> Json:
        return self._treat("heat", thing, container)

    def _cool(self, thing: str, container: str) -> Json:
        return self._treat("cool", thing, container)

    def _treat(self, how: str, thing: str, container: str) -> Json:
        self._at(container)
        treated = self._carried(thing)
        can_be, where = _TREATMENTS[how]
        if self.containers[container] != where or treated.kind not in constants.VAL_ACTION_OBJECTS[can_be]:
            raise RefusedCallError(f"{container} does not {how} {thing}")
        treated.states -= {"hot", "cool"} if how != "clean" else set()
        treated.states.add(_TREATED[how])
        return {"name": thing, "states": sorted(treated.states)}

    def _use(self, thing: str) -> Json:
        lamp = self._thing(thing)
        self._at(lamp.place)
        if lamp.kind not in constants.VAL_ACTION_OBJECTS["Toggleable"]:
            raise RefusedCallError(f"{thing} has no switch")
        lamp.states.add("on")
        return {"name": thing, "states": sorted(lamp.states)}

    def _slice(self, thing: str, knife: str) -> Json:
        sliced, tool = self._thing(thing), self._carried(knife)
        self._at(sliced.place)
        if tool.kind not in _KNIVES or sliced.kind not in constants.VAL_ACTION_OBJECTS["Sliceable"]:
            raise RefusedCallError(f"{knife} does not slice {thing}")
        sliced.states.add("sliced")
        return {"name": thing, "states": sorted(sliced.states)}

    def _thing(self, name: str) -> Thing:
        if name not in self.things:
            raise RefusedCallError(f"{name} is no thing to take or to use")
        return self.things[name]

    def _carried(self, name: str) -> Thing:
        if self._thing(name).place:
            raise RefusedCallError(f"you do not carry {name}")
        return self.things[name]

    def _container(self, name: str) -> str:
        if name not in self.containers:
            raise RefusedCallError(f"{name} is nothing to go to")
        return name

    def _at(self, container: str) -> None:
        if self._container(container) != self.location:
            raise RefusedCallError(f"you are not at {container}: go there first")

    def _openable(self, container: str) -> bool:
        return self.containers[container] in constants.OPENABLE_CLASS_SET

    def _accessible(self, container: str) -> None:
        if self._openable(container) and container not in self.opened:
            raise RefusedCallError(f"{container} is closed: open it first")

    def _seen(self, container: str) -> Json:
        closed = self._openable(container) and container not in self.opened
        inside = [each.name for each in self.things.values() if each.place == container]
        return {"location": container, "closed": closed, "things": [] if closed else inside}

    # How it is judged

    def verify(self, answer: Json, completed: bool) -> dict[str, Json]:  # noqa: ARG002  the goal asks for none
        failures = [] if self.reached else [f"not so: {self.instruction}"]
        return {"passed": 1 - len(failures), "total": 1, "failures": failures}

    def solve(self) -> Json:
        """Search container after container, as an agent has to."""
        for _ in range(2 if self.kind == "pick_two_obj_and_place" else 1):
            thing = self._found(self.goal["obj"])
            self._take(thing.name, thing.place)
            if self.treatment:
                where = _TREATMENTS[self.treatment][1]
                container = next(name for name, kind in self.containers.items() if kind == where)
                self._go_to(container)
                getattr(self, f"_{self.treatment}")(thing.name, container)
            if "toggle" in self.goal:
                lamp = self._found(self.goal["toggle"])
                self._use(lamp.name)
                return None
            target = next(name for name, kind in self.containers.items() if kind == self.goal["recep"])
            self._enter(target)
            self._move(thing.name, target)
        return None

    def _found(self, kind: str) -> Thing:
        for container, type_of in self.containers.items():
            if type_of == self.goal.get("recep"):
                continue
            for name in self._enter(container):
                if self.things[name].kind == kind:
                    return self.things[name]
        raise RefusedCallError(f"there is no {kind} to be found")

    def _enter(self, container: str) -> list[str]:
        seen = self._go_to(container)
        return list((self._open(container) if seen["closed"] else seen)["things"])

    def program(self) -> dict[str, Json]:
        name = _PROGRAM_NAMES[self.kind]
        return {
            "app": "house",
            "name": name,
            "function": _program(name, self.kind, self.treatment),
            "careless": _program(name, self.kind, self.treatment, careless="two" not in self.kind),
            "call": f"print({name}({', '.join(repr(kind.lower()) for kind in self.goal.values())}))",
        }

    def close(self) -> None:
        pass


_PROGRAM_NAMES = {
    "pick_and_place_simple": "put_thing",
    "look_at_obj_in_light": "look_at_thing",
    "pick_clean_then_place_in_recep": "put_clean_thing",
    "pick_heat_then_place_in_recep": "put_hot_thing",
    "pick_cool_then_place_in_recep": "put_cool_thing",
    "pick_two_obj_and_place": "put_two_things",
}
_OPEN = ("if seen['closed']:", "    seen = apis.house.open(container=name)")


def _program(name: str, kind: str, treatment: str, careless: bool = False) -> str:
    """Search container after container, as an agent has to. A careless one opens none while it searches."""
    lamp = kind == "look_at_obj_in_light"
    other = "lamp" if lamp else "place"
    lines = [
        "names = apis.house.look()['containers']",
        *_search("thing", "found", skipped="" if lamp else "place", careless=careless),
        "apis.house.take(thing=found[0], container=name)",
    ]
    if treatment:
        lines += [
            f"spot = [each for each in names if each.startswith('{_TREATMENTS[treatment][1].lower()} ')][0]",
            "apis.house.go_to(container=spot)",
            f"apis.house.{treatment}(thing=found[0], container=spot)",
        ]
    if lamp:
        lines += [*_search("lamp", "lamps", careless=False), "return apis.house.use(thing=lamps[0])['states']"]
    else:
        lines += [
            "goal = [each for each in names if each.startswith(place + ' ')][0]",
            "if apis.house.go_to(container=goal)['closed']:",
            "    apis.house.open(container=goal)",
            "apis.house.move(thing=found[0], container=goal)",
        ]
    if kind == "pick_two_obj_and_place":
        lines = [lines[0], "for _ in range(2):", *(f"    {line}" for line in lines[1:])]
    if not lamp:
        lines.append("return goal")
    return "\n".join([f"def {name}(thing: str, {other}: str):", *(f"    {line}" for line in lines)])


def _search(what: str, found: str, *, skipped: str = "", careless: bool) -> list[str]:
    """Find things of a kind, in other containers than those of a kind to skip."""
    skip = [f"if name.startswith({skipped} + ' '):", "    continue"] if skipped else []
    return [
        "for name in names:",
        *(f"    {line}" for line in skip),
        "    seen = apis.house.go_to(container=name)",
        *(() if careless else (f"    {line}" for line in _OPEN)),
        f"    {found} = [each for each in seen['things'] if each.startswith({what} + ' ')]",
        f"    if {found}:",
        "        break",
    ]


def _types(room: int) -> list[str]:
    return sorted(set(json.loads((_LAYOUTS / f"FloorPlan{room}-objects.json").read_text())))


def _furniture(room: int, rng: Random) -> list[str]:
    """The kinds of all containers: as many as the plan of the room knows, and one of each other that is there."""
    planned = json.loads((_LAYOUTS / f"FloorPlan{room}-openable.json").read_text())
    counts = Counter(each.partition("|")[0] for each in planned)
    kinds = sorted(_FURNITURE.intersection({*counts, *_types(room)}))
    found = [kind for kind in kinds for _ in range(max(1, counts[kind]))]
    rng.shuffle(found)
    return found


def _named(kinds: list[str]) -> Iterator[tuple[str, str]]:
    numbers = {kind: itertools.count(1) for kind in kinds}
    for kind in kinds:
        yield f"{kind.lower()} {next(numbers[kind])}", kind


def _lamps(kinds: list[str]) -> set[str]:
    return set(constants.VAL_ACTION_OBJECTS["Toggleable"]).intersection(kinds)


def _tool(name: str, description: str, *parameters: str, safe: bool = False) -> dict[str, Json]:
    return {
        "name": name,
        "description": description,
        "parameters": {
            "type": "object",
            "properties": {each: {"type": "string", "description": _MEANT[each]} for each in parameters},
            "required": list(parameters),
        },
        "returns": _RETURNS.get(name, _STATES),
        "safe": safe,
    }


_MEANT = {
    "container": "such as 'cabinet 1'",
    "thing": "such as 'apple 2'",
    "knife": "a knife that is carried",
    "name": "of a container or a thing",
}
_NAMES = {"type": "array", "items": {"type": "string"}}
_TEXT = {"type": "string"}
_STATES = {"type": "object", "properties": {"name": _TEXT, "states": _NAMES}}
_SEEN = {"type": "object", "properties": {"location": _TEXT, "closed": {"type": "boolean"}, "things": _NAMES}}
_RETURNS = {
    "look": {"type": "object", "properties": {"location": _TEXT, "containers": _NAMES}},
    **dict.fromkeys(("go_to", "open", "close", "move"), _SEEN),
    "inventory": _NAMES,
    "take": {"type": "object", "properties": {"carried": _TEXT}},
}
_TOOLS = (
    _tool("look", "Where you are, and all containers of the room.", safe=True),
    _tool("inventory", "What you carry: one thing at most.", safe=True),
    _tool(
        "examine",
        "See what is in or on a container where you are, or in which state a thing is.",
        "name",
        safe=True,
    ),
    _tool("go_to", "Go to a container, and see what is in or on it.", "container"),
    _tool("open", "Open the container where you are, and see what is in it.", "container"),
    _tool("close", "Close the container where you are.", "container"),
    _tool("take", "Take a thing out of the container where you are.", "thing", "container"),
    _tool("move", "Put the thing that you carry into or onto the container where you are.", "thing", "container"),
    _tool("clean", "Clean the thing that you carry in the sinkbasin where you are.", "thing", "container"),
    _tool("heat", "Heat the thing that you carry with the microwave where you are.", "thing", "container"),
    _tool("cool", "Cool the thing that you carry with the fridge where you are.", "thing", "container"),
    _tool("use", "Turn on the lamp where you are.", "thing"),
    _tool("slice", "Slice a thing where you are with the knife that you carry.", "thing", "knife"),
)


class AlfworldHost:
    """Scenarios ask for one kind of chore in one room, each task for another one."""

    def __init__(self) -> None:
        self._houses = {name: split for split, room in _rooms() for name in _names(room)}

    def tasks(self) -> list[dict[str, Json]]:
        return [
            {
                "id": name,
                "instruction": House(name).instruction,
                "split": split,
                "family": name.rsplit(" ", 1)[0],
                "apps": "house",
            }
            for name, split in self._houses.items()
        ]

    def apps(self, key: str) -> list[dict[str, Json]]:
        return [{"name": key, "description": "The room in which you are.", "operations": list(_TOOLS)}]

    def open(self, task: str) -> House:
        return House(task)


def _rooms() -> Iterator[tuple[str, int]]:
    for number, room in enumerate(sorted(constants.TRAIN_SCENE_NUMBERS)):
        yield ("train" if number % _VALIDATION else "validation"), room
    for room in constants.TEST_SCENE_NUMBERS:
        yield "test", room


def _names(room: int) -> Iterator[str]:
    """Those with a goal that the room allows."""
    place = next(name for name, rooms in constants.SCENE_TYPE.items() if room in rooms)
    for kind, number, task in itertools.product(KINDS, range(_SETS), range(_TASKS)):
        if place in constants.GOALS_VALID[kind]:
            name = f"{kind} {room} {number} {task}"
            try:
                House(name)
            except IndexError:  # nothing to choose a goal from
                continue
            yield name


if __name__ == "__main__":
    serve(AlfworldHost)
