"""The instruction of a task in plain English, drawn from the frames and phrases of its pool."""

from trainer.worlds.generated.domains import plural
from trainer.worlds.generated.gym_plans import ScenarioPlan
from trainer.worlds.generated.phrases import CONDITIONS, FRAMES
from trainer.worlds.generated.task_forms import PARAMETERS, Condition


def instruction_of(plan: ScenarioPlan, index: int) -> str:
    """The same for the same task. The tasks of a scenario may be worded differently."""
    rng, pool = plan.key.random(f"wording {index}"), plan.key.pool("phrasings")
    domain, values, (first, second) = plan.main.domain, plan.values[index], plan.verbs
    words = {
        "noun": domain.noun, "nouns": domain.nouns, "person": domain.person, "label": domain.label,
        "number": domain.number, "initial": domain.initial, "when": _when(domain.date),
        "act": first.base, "Act": first.base.capitalize(), "acted": first.done,
        "act2": second.base, "Act2": second.base.capitalize(),
        "target": values.get("target", ""), "threshold": values.get("threshold", ""),
    }  # fmt: skip
    if plan.joined:
        other = plan.joined.domain
        words |= {"group": other.label, "noun2": other.noun, "nouns2": plural(other.noun)}
    phrases = [
        rng.choice(CONDITIONS[pool][each]).format(v=_value(plan, index, each), **words)
        for each in plan.form.selection
    ]
    words["conditions"] = " and ".join(phrases)
    words["them"] = f"{domain.nouns} {words['conditions']}"
    return rng.choice(FRAMES[pool][plan.form.goal]).format(**words)


def _value(plan: ScenarioPlan, index: int, condition: Condition) -> str | int:
    return plan.values[index][PARAMETERS[condition]]


def _when(date: str) -> str:
    """
    >>> _when("opened on"), _when("due date")
    ('opened', 'with due date')
    """
    return date.rpartition(" ")[0] if date.endswith((" on", " at")) else f"with {date}"
