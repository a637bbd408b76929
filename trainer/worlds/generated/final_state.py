"""Verify a task of the gym by the final state of its world and by the answer; the program is never looked at."""

from app.records import Json
from trainer.environment import Verdict
from trainer.worlds.generated.gym_items import GymItem, initial_items, selected
from trainer.worlds.generated.gym_plans import ScenarioPlan
from trainer.worlds.generated.gym_worlds import GymState


def expected_answer(plan: ScenarioPlan, index: int) -> str | int | None:
    """What the task asks for; None if it asks for nothing."""
    items = initial_items(plan, index)[plan.main.name]
    chosen = selected(plan, index, items)
    match plan.form.goal:
        case "count" | "act_count":
            return len(chosen)
        case "total":
            return sum(item.number for item in chosen)
        case "peak":
            return max(item.number for item in chosen)
        case "who":
            return max(chosen, key=lambda item: item.number).person
        case "act_check":
            return len(items) - len(chosen)
    return None


def verify_state(state: GymState, answer: Json, *, completed: bool) -> Verdict:
    """One check for each item that the task changes, one that nothing else changed, one of the answer."""
    plan, index = state.plan, state.index
    start, wanted = _facts(initial_items(plan, index)), _facts(_wanted(plan, index))
    found = _facts(state.items)
    changing = [place for place in wanted if wanted[place] != start[place]]
    failures = [f"{_name(place)}: expected {wanted[place]}, found {found[place]}" for place in changing
                if found[place] != wanted[place]]  # fmt: skip
    others = [_name(place) for place in found if place not in changing and found[place] != start[place]]
    if others:
        failures.append(f"changed without being asked: {', '.join(others)}")
    if wrong := wrong_answer(expected_answer(plan, index), answer, completed=completed):
        failures.append(wrong)
    total = len(changing) + 2
    return Verdict(total - len(failures), total, tuple(failures))


def _wanted(plan: ScenarioPlan, index: int) -> dict[str, list[GymItem]]:
    """The items as they should be at the end."""
    items = initial_items(plan, index)
    chosen = selected(plan, index, items[plan.main.name])
    first, second = (verb.done for verb in plan.verbs)
    goal, values = plan.form.goal, plan.values[index]
    if goal == "act_top":
        chosen = [max(chosen, key=lambda item: item.number)]
    elif goal == "branch" and len(chosen) <= int(values["threshold"]):
        first = second
    for item in chosen:
        if goal == "move":
            item.label = str(values["target"])
        elif goal in ("act", "act_top", "act_count", "act_check", "branch"):
            item.state = first
    return items


def _facts(items: dict[str, list[GymItem]]) -> dict[tuple[str, int | str], tuple[str, str]]:
    """Of each item by its app and id: what a task may change."""
    return {(app, item.id): (item.state, item.label) for app, listed in items.items() for item in listed}


def _name(place: tuple[str, int | str]) -> str:
    return f"{place[0]} {place[1]}"


def wrong_answer(expected: str | int | None, answer: Json, *, completed: bool) -> str | None:
    """What is wrong with an answer, if anything; `expected` is None where none is asked for."""
    if not completed:
        return "the task was not completed"
    if expected is None:
        return None if answer in (None, "") else "an answer was given where none was expected"
    right = not isinstance(answer, bool) and str(answer).strip() == str(expected)
    return None if right else f"expected the answer {expected}, got {str(answer)[:60]}"
