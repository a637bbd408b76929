"""The form of a task: a goal, for the items that a selection selects. Held-out forms recombine trained ones."""

from collections import Counter
from functools import cache
from random import Random
from typing import Literal, TypeAlias, get_args

import msgspec

from trainer.worlds.generated.pools import Pool

Goal: TypeAlias = Literal[
    "count", "total", "peak", "who", "act", "act_top", "act_count", "move", "act_check", "branch"
]
Condition: TypeAlias = Literal["person", "label", "over", "under", "before", "member", "other"]
Parameter: TypeAlias = Literal["person", "label", "over", "under", "before", "group", "target", "threshold"]

GOALS: tuple[Goal, ...] = get_args(Goal)
WRITING: frozenset[Goal] = frozenset({"act", "act_top", "act_count", "move", "act_check", "branch"})
ACTING: frozenset[Goal] = WRITING - {"move"}
"""Goals whose programs change states, in the way of the API's shape."""
ANSWERED: frozenset[Goal] = frozenset({"count", "total", "peak", "who", "act_count", "act_check"})
JOINED: frozenset[Condition] = frozenset({"member", "other"})
SELECTIONS: tuple[tuple[Condition, ...], ...] = (
    ("person",), ("label",), ("over",), ("under",), ("before",), ("member",), ("other",),
    ("person", "label"), ("label", "over"), ("person", "over"), ("label", "before"), ("member", "label"),
    ("person", "before"), ("label", "under"),
)  # fmt: skip

PARAMETERS: dict[Condition, Parameter] = {
    "person": "person", "label": "label", "over": "over", "under": "under", "before": "before",
    "member": "group", "other": "group",
}  # fmt: skip

_HELD_OUT: tuple[tuple[Pool, int], ...] = (("test", 28), ("validation", 12))
_SIMPLE_WEIGHT = 3
_JOINED_WEIGHT = 2  # in lessons, since two apps are hard
_TAUGHT_AT_LEAST = 4  # forms of training with each goal, and with each selection


class TaskForm(msgspec.Struct, frozen=True):
    """All tasks of a scenario have the same form; their values differ."""

    goal: Goal
    selection: tuple[Condition, ...]

    @property
    def name(self) -> str:
        return f"{self.goal}.{'_'.join(self.selection)}"

    @property
    def is_simple(self) -> bool:
        """One condition, which a row decides by itself."""
        return len(self.selection) == 1 and self.joined is None

    @property
    def joined(self) -> Condition | None:
        """The condition that another app decides, if any."""
        return next((each for each in self.selection if each in JOINED), None)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The details in which the tasks of a scenario differ."""
        own: list[Parameter] = [PARAMETERS[each] for each in self.selection]
        own += ["target"] if self.goal == "move" else ["threshold"] if self.goal == "branch" else []
        return tuple(own)


def _is_meaningful(form: TaskForm) -> bool:
    """The highest number of those over a limit needs no limit; whose it is, is no question about one person."""
    ranked = form.goal in ("peak", "who", "act_top")
    if ranked and ("over" in form.selection or "under" in form.selection):
        return False
    return not (form.goal == "who" and "person" in form.selection)


FORMS: tuple[TaskForm, ...] = tuple(
    form for goal in GOALS for selection in SELECTIONS if _is_meaningful(form := TaskForm(goal, selection))
)


@cache
def forms_of(pool: Pool) -> tuple[TaskForm, ...]:
    order = list(FORMS)
    Random("gym forms").shuffle(order)
    taught = Counter(part for form in order for part in _parts(form))
    pools: dict[Pool, tuple[TaskForm, ...]] = {}
    for name, count in _HELD_OUT:
        chosen: list[TaskForm] = []
        for form in order:
            if len(chosen) < count and all(taught[part] > _TAUGHT_AT_LEAST for part in _parts(form)):
                chosen.append(form)
                taught.subtract(_parts(form))
        pools[name] = tuple(chosen)
        order = [form for form in order if form not in chosen]
    pools["train"] = tuple(order)
    return pools[pool]


def draw_form(pool: Pool, rng: Random, *, lesson: bool = False) -> TaskForm:
    """Simple forms are drawn more often than their number, as people ask."""
    forms, joined = forms_of(pool), _JOINED_WEIGHT if lesson else 1
    weights = [_SIMPLE_WEIGHT if form.is_simple else joined if form.joined else 1 for form in forms]
    return rng.choices(forms, weights)[0]


def _parts(form: TaskForm) -> list[str]:
    return [form.goal, "_".join(form.selection)]
