"""What the expert notes before it writes code, so that a small model finds the right fields. Pure."""

from collections.abc import Iterator

from trainer.environments.gym.api_calls import where_rows_are
from trainer.environments.gym.expert_programs import FIELDS, NUMERIC
from trainer.environments.gym.gym_plans import ScenarioPlan
from trainer.environments.gym.task_forms import JOINED, PARAMETERS, WRITING


def note_apps(plan: ScenarioPlan) -> str:
    """Which app has what the task is about, and whom."""
    apis = [plan.main] if plan.joined is None else [plan.joined, plan.main]
    said = ", ".join(f"{api.domain.nouns} are in {api.name}" for api in apis)
    return f"{said[0].upper()}{said[1:]}."


def note_fields(plan: ScenarioPlan, index: int) -> str:
    """Where the rows are, and what each detail of the task is called there."""
    rows = where_rows_are(plan.main)
    first = f"Rows are in {'.'.join(rows)}" if rows else "The answer is the rows"
    return "; ".join([first, *_details(plan, index)]) + "."


def _details(plan: ScenarioPlan, index: int) -> Iterator[str]:
    main, goal, values = plan.main, plan.form.goal, plan.values[index]
    for condition in plan.form.selection:
        value = values[PARAMETERS[condition]]
        if plan.joined is not None and condition in JOINED:
            yield f"{value} is {plan.joined.fields['label']} in {plan.joined.name}"
        else:
            yield f"{value} is {main.fields[FIELDS[condition]]}"
    if goal in NUMERIC:
        yield f"the number is {main.fields['number']}"
    if goal == "who":
        yield f"the name is {main.fields['person']}"
    if goal == "move":
        yield f"{values['target']} is the new {main.fields['label']}"
    elif goal in WRITING:
        yield f"I call {_operations(plan)}"
    if goal == "act_check":
        yield f"{main.domain.initial} is {main.fields['progress']}"


def _operations(plan: ScenarioPlan) -> str:
    main = plan.main
    if main.shape.write == "patch":
        return main.route("update").python
    verbs = plan.verbs if plan.form.goal == "branch" else plan.verbs[:1]
    return " or ".join(main.route("act", verb).python for verb in verbs)
