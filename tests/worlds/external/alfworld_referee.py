"""Plays houses here and in TextWorld's PddlEnv, by ALFWorld's own domain and goals, and prints where these differ.

It runs in a Python that has both packages: `alfworld_referee.py GAMES STEPS`.
"""

import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from random import Random

import alfworld
from alfworld.gen import constants, goal_library
from alfworld_host import AlfworldHost, House
from host import Json, RefusedCallError
from textworld.envs.pddl import PddlEnv

Step = tuple[str, dict[str, str]]

_DATA = Path(alfworld.__file__).parent / "data"
_FILES = {"pddl_domain": "alfred.pddl", "grammar": "alfred.twl2"}
_CONTENTS = constants.VAL_RECEPTACLE_OBJECTS
_START = "start"
_CAN_BE = {
    "Pickupable": "pickupable",
    "Cleanable": "cleanable",
    "Heatable": "heatable",
    "Coolable": "coolable",
    "Toggleable": "toggleable",
    "Sliceable": "sliceable",
}
_OPERATIONS = {
    "go_to": "go to {container}",
    "open": "open {container}",
    "close": "close {container}",
    "take": "take {thing} from {container}",
    "move": "move {thing} to {container}",
    "clean": "clean {thing} with {container}",
    "heat": "heat {thing} with {container}",
    "cool": "cool {thing} with {container}",
    "use": "use {thing}",
    "slice": "slice {thing} with {knife}",
}


def problem(house: House) -> str:
    """The house as it is drawn, in PDDL."""
    objects = ["agent1 - agent", f"{_START} - location"]
    facts = [f"(atLocation agent1 {_START})"]
    kinds = {*house.containers.values(), "SinkBasin", "Microwave", "Fridge"}
    things = {*(each.kind for each in house.things.values()), "Knife", "ButterKnife"}
    objects += [f"{kind}Type - rtype" for kind in sorted(kinds)]
    objects += [f"{kind}Type - otype" for kind in sorted(things - kinds)]
    facts += [
        f"(canContain {kind}Type {each}Type)"
        for kind in sorted(kinds)
        for each in sorted(things)
        if each in _CONTENTS.get(kind, ())
    ]
    for name, kind in house.containers.items():
        own = _id(name)
        objects += [f"{own} - receptacle", f"at_{own} - location"]
        facts += [f"(receptacleAtLocation {own} at_{own})", f"(receptacleType {own} {kind}Type)"]
        if kind in constants.OPENABLE_CLASS_SET:
            facts.append(f"(openable {own})")
    for name, thing in house.things.items():
        own, place = _id(name), _id(thing.place)
        objects.append(f"{own} - object")
        facts += [
            f"(inReceptacle {own} {place})",
            f"(objectAtLocation {own} at_{place})",
            f"(objectType {own} {thing.kind}Type)",
        ]
        can_be = {each for each, kinds_of in constants.VAL_ACTION_OBJECTS.items() if thing.kind in kinds_of}
        if "Toggleable" not in can_be:
            can_be.add("Pickupable")
        facts += [f"({_CAN_BE[each]} {own})" for each in sorted(can_be & _CAN_BE.keys())]
    goal = goal_library.gdict[house.kind]["pddl"].format(**house.goal).replace("#", "-")
    listed = "\n  ".join
    return (
        f"(define (problem chore) (:domain alfred)\n(:objects\n  {listed(objects)})\n"
        f"(:init\n  (= (total-cost) 0)\n  {listed(facts)})\n{goal}"
    )


def _id(name: str) -> str:
    return name.replace(" ", "_")


def solution(game: str) -> list[Step]:
    """What its own solution does."""
    house, steps = House(game), list[Step]()

    def recorded(operation: str, act: Callable[..., Json], *values: str) -> Json:
        steps.append((operation, dict(zip(inspect.signature(act).parameters, values, strict=True))))
        return act(*values)

    for operation in _OPERATIONS:
        setattr(house, f"_{operation}", partial(recorded, operation, getattr(house, f"_{operation}")))
    house.solve()
    return steps


def attempts(house: House, rng: Random, steps: int) -> Iterator[Step]:
    """Calls at random, of which most make sense where the agent is."""
    meant = [name for name, each in house.things.items() if each.kind in house.goal.values()]
    for _ in range(steps):
        operation = rng.choice(list(_OPERATIONS))
        carried = [name for name, each in house.things.items() if not each.place]
        here = [name for name, each in house.things.items() if each.place == house.location]
        anywhere = rng.choice(list(house.containers))
        given = {
            "container": rng.choice([house.location or anywhere, anywhere]),
            "thing": rng.choice([*(carried or here), rng.choice(meant), rng.choice(list(house.things))]),
            "knife": rng.choice([*carried, rng.choice(list(house.things))]),
        }
        yield operation, {name: each for name, each in given.items() if f"{{{name}}}" in _OPERATIONS[operation]}


def play(house: House, steps: Iterable[Step]) -> str:
    """What differs; "": nothing."""
    environment = PddlEnv()
    texts = {name: (_DATA / file).read_text() for name, file in _FILES.items()}
    environment.load({**texts, "pddl_problem": problem(house)})
    state = environment.reset()
    for operation, given in steps:
        if operation == "go_to" and given["container"] == house.location:
            continue  # no step there
        command = _OPERATIONS[operation].format(**{name: _id(each) for name, each in given.items()})
        allowed = command in state["admissible_commands"]
        try:
            house.call("house", operation, given)
        except RefusedCallError as error:
            if allowed:
                return f"{house.name}: {command!r} is refused here alone: {error}"
            continue
        if not allowed:
            return f"{house.name}: {command!r} is refused there alone"
        state, _, won = environment.step(command)
        if won != house.reached:
            return f"{house.name}: after {command!r} the goal is reached here: {house.reached}, there: {won}"
    return ""


def main(games: int, steps: int) -> None:
    names = [each["id"] for each in AlfworldHost().tasks() if each["split"] == "test"]
    rng, differences, reached = Random(0), list[str](), 0
    for name in rng.sample(names, games):
        house = House(name)
        differences += filter(None, [play(house, solution(name))])
        reached += house.reached
        other = House(name)
        differences += filter(None, [play(other, attempts(other, rng, steps))])
    json.dump({"games": games, "reached": reached, "differences": differences}, sys.stdout)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
