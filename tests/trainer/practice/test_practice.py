"""Practice on the double of an API: a task is solved by its program, by nothing less, and by no neighbour's."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from random import Random
from time import process_time

import msgspec
import pytest

from app.apis.double.meanings import Record
from app.apis.double.state import State
from app.base.errors import InvalidError
from app.base.values import Json
from app.sandbox.forked_sandbox import ForkedSandbox
from app.sandbox.protocol import Sandbox
from tests.support import practice_documents
from tests.support.double_documents import DESK
from tests.support.every_row import every_row
from tests.support.practice_rollouts import code_of, execute
from trainer.environment import Scenario, Split, open_environment
from trainer.practice.checks import verdict
from trainer.practice.environments import (
    TASKS,
    Key,
    NothingToPractiseError,
    Plan,
    PracticeEnvironment,
    practice_on,
)
from trainer.practice.forms import Form
from trainer.worlds.generated.crud import CrudKey, plan_of
from trainer.worlds.generated.documents import document_of

DOCUMENTS: dict[str, dict[str, Json]] = {
    "desk": DESK,
    "clients": practice_documents.CLIENTS,
    "sensors": practice_documents.SENSORS,
    "steps": practice_documents.STEPS,
    "press": practice_documents.PRESS,
    "store": practice_documents.STORE,
    "vault": practice_documents.VAULT,
    "locker": practice_documents.LOCKER,
}
SAMPLES = {"vault": practice_documents.VAULT_SAMPLES, "locker": practice_documents.LOCKER_SAMPLES}
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
COUNT = 24


def generated(seed: int) -> dict[str, Json]:
    """The document of an invented API that needs no password."""
    plans = (plan_of(CrudKey("train", "domains", at)) for at in range(100 * seed, 100 * seed + 100))
    return next(document_of(each.main, "http://invented.test") for each in plans if each.main.shape.auth == "open")


@pytest.fixture(scope="module")
def environments() -> dict[str, PracticeEnvironment]:
    every = DOCUMENTS | {f"invented{seed}": generated(seed) for seed in range(3)}
    return {
        name: PracticeEnvironment(practice_on(name, each, SAMPLES.get(name, {}))) for name, each in every.items()
    }


@pytest.fixture(scope="module")
async def sandbox() -> AsyncIterator[Sandbox]:
    async with ForkedSandbox() as opened:
        yield opened


def plan(environment: PracticeEnvironment, scenario: Scenario) -> Plan:
    return environment.place(scenario.tasks[0].variables["world"])[0]


def plans(environment: PracticeEnvironment, split: Split = "train", count: int = COUNT) -> list[Plan]:
    return [plan(environment, each) for each in environment.scenarios(split, count, seed=5)]


async def test_the_program_solves_every_task_and_doing_nothing_none(
    environments: dict[str, PracticeEnvironment], sandbox: Sandbox
) -> None:
    with every_row() as row:
        for name, environment in environments.items():
            for split in SPLITS:
                for scenario in environment.scenarios(split, COUNT // 3, seed=5):
                    own = plan(environment, scenario)
                    with row(f"{name} {split} {own.form.name}"):
                        for index, task in enumerate(scenario.tasks):
                            code = code_of(own, index)
                            done, said = await execute(sandbox, environment, scenario, task, code)
                            assert done.success, (task.instruction, code, said, done.failures)
                        idle, _ = await execute(sandbox, environment, scenario, task, "result = None")
                        assert not idle.success, task.instruction


async def test_the_program_of_a_contrast_solves_hardly_anything(
    environments: dict[str, PracticeEnvironment], sandbox: Sandbox
) -> None:
    """Two numbers, or two flags, may be the same."""
    tried, solved = 0, list[object]()
    with every_row() as row:
        for name, environment in environments.items():
            scenarios = environment.scenarios("train", COUNT, seed=6)
            for scenario, twin in zip(scenarios[::2], scenarios[1::2], strict=True):
                own, other = plan(environment, scenario), plan(environment, twin)
                if len(own.values[0]) != len(other.values[0]) or own.form.name == other.form.name:
                    continue
                tried += 1
                with row(f"{name} {own.form.name} by {other.form.name}"):
                    code = code_of(own, 0, other)
                    found, _ = await execute(sandbox, environment, scenario, scenario.tasks[0], code)
                    if found.success:
                        assert own.form.is_answered or other.form.goal in ("ensure", "check"), (own.form, code)
                        solved.append((scenario.tasks[0].instruction, code))
    assert tried > 20
    assert len(solved) < tried / 10, solved


def spoilt(state: State, rng: Random) -> Iterator[State]:
    """The state with one record more, less, or changed in a field; each of another record."""
    for name, keyed in state.records.items():
        if not keyed:
            continue
        place = rng.choice(sorted(keyed))
        for change in ("lost", "changed", "added"):
            found = state.copy()
            records = found.records[name]
            if change == "lost":
                del records[place]
            elif change == "changed":
                field = rng.choice(sorted(records[place].fields))
                records[place].fields[field] = "something else"
            else:
                records[*place[:-1], "bystander"] = Record("bystander", place[:-1], {"name": "bystander"})
            yield found


def test_no_check_accepts_what_nobody_asked_for(environments: dict[str, PracticeEnvironment]) -> None:
    rng = Random("spoilt")
    with every_row() as row:
        for name, environment in environments.items():
            for own in plans(environment):
                with row(f"{name} {own.form.name}"):
                    goal = own.tasks[0].goal
                    assert own.verify(0, goal.wanted, goal.answer, completed=True).success
                    assert not own.verify(0, goal.wanted, goal.answer, completed=False).success
                    assert not own.verify(0, goal.wanted, "something else", completed=True).success
                    for found in spoilt(goal.wanted, rng):
                        if any(_is_loose(own, found, place) for place in goal.asked):
                            continue
                        assert not own.verify(0, found, goal.answer, completed=True).success


def test_a_key_that_the_task_chooses_is_checked(environments: dict[str, PracticeEnvironment]) -> None:
    practice = environments["vault"].practice
    form = next(each for each in practice._forms if each.name == "rooms.create.id.id")
    own = practice.fitted(Key("train", 1, 0), form)
    assert own is not None
    goal, key = own.tasks[0].goal, str(own.values[0]["id"])
    assert key in own.instruction(0)
    assert own.verify(0, goal.wanted, None, completed=True).success
    other = goal.wanted.copy()
    made = other.records["rooms"].pop((key,))
    other.records["rooms"]["other",] = Record("other", (), {**made.fields, "id": "other"})
    assert not own.verify(0, other, None, completed=True).success


def _is_loose(own: Plan, found: State, place: tuple[str, tuple[str, ...]]) -> bool:
    """Whether a record that the task changes was spoilt only in what the server sets."""
    goal, name = own.tasks[0].goal, place[0]
    wanted, now = goal.wanted.records[name], found.records[name]
    if wanted.keys() != now.keys():
        return False
    differing = {
        (key, field)
        for key in wanted
        for field in wanted[key].fields
        if wanted[key].fields[field] != now[key].fields.get(field)
    }
    before = goal.before.records[name]
    return bool(differing) and all(
        key not in before or before[key].fields.get(field) != wanted[key].fields[field] for key, field in differing
    )


def test_the_splits_share_neither_forms_nor_wordings(environments: dict[str, PracticeEnvironment]) -> None:
    for environment in environments.values():
        made = {split: environment.scenarios(split, COUNT, seed=5) for split in SPLITS}
        for one, other in combinations(SPLITS, 2):
            assert not {each.template for each in made[one]} & {each.template for each in made[other]}
            said = [{task.instruction for each in made[split] for task in each.tasks} for split in (one, other)]
            assert not said[0] & said[1]


def test_a_scenario_has_three_tasks_of_one_form_with_other_details(
    environments: dict[str, PracticeEnvironment],
) -> None:
    every = [own for environment in environments.values() for own in plans(environment) if own.values[0]]
    for own in every:
        assert len(own.values) == TASKS
        assert len({tuple(each) for each in own.values}) == 1
    alike = [
        own.form.name for own in every if len({repr((each.values, each.goal.answer)) for each in own.tasks}) == 1
    ]
    assert len(alike) < 0.05 * len(every), alike


def test_what_a_document_does_not_tell_is_left_out_and_one_without_records_says_what_to_do() -> None:
    empty = PracticeEnvironment(practice_on("status", practice_documents.STATUS))
    with pytest.raises(NothingToPractiseError, match=r"nothing can be practised on status: .*as samples"):
        empty.scenarios("train", 1, seed=1)


def test_the_options_name_a_file_and_one_that_is_missing_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "desk.json"
    file.write_bytes(msgspec.json.encode(DESK))
    plug_in = "trainer.practice.environments:load_environment"
    [scenario] = open_environment(f"{plug_in}?document={file}&name=desk").scenarios("train", 1, seed=3)
    assert len(scenario.tasks) == TASKS
    with pytest.raises(InvalidError, match="cannot be read"):
        open_environment(f"{plug_in}?document={tmp_path / 'none'}")


async def test_lists_and_what_there_is_one_of_are_read_and_changed(
    environments: dict[str, PracticeEnvironment], sandbox: Sandbox
) -> None:
    environment = environments["sensors"]
    practice = environment.practice
    every = [each for forms in practice.forms.values() for each in forms]
    asked = [each for each in every if each.by == "only" or each.kind == "texts"]
    assert {(each.goal, each.collection) for each in asked} == {
        *((goal, "sensors") for goal in ("read", "change", "add", "drop")),
        *((goal, "/settings") for goal in ("count", "read", "change", "add", "drop")),
        ("read", "/health"),
    }
    await every_task_is_solved(asked, "sensors", sandbox)


def of_form(name: str, form: Form) -> PracticeEnvironment:
    """Practice on one of the documents that asks one thing only."""
    environment = PracticeEnvironment(practice_on(name, DOCUMENTS[name]))
    environment.practice.forms = {split: [form] for split in SPLITS}
    return environment


async def every_task_is_solved(
    forms: Iterable[Form], name: str, sandbox: Sandbox, splits: Sequence[Split] = SPLITS
) -> None:
    """And doing nothing solves none."""
    with every_row() as row:
        for form in forms:
            alone = of_form(name, form)
            for split in splits:
                [scenario] = alone.scenarios(split, 1, seed=5)
                with row(f"{split} {form.name}"):
                    for index, task in enumerate(scenario.tasks):
                        code = code_of(plan(alone, scenario), index)
                        done, said = await execute(sandbox, alone, scenario, task, code)
                        assert done.success, (task.instruction, code, said, done.failures)
                    idle, _ = await execute(sandbox, alone, scenario, task, "result = None")
                    assert not idle.success, task.instruction


async def test_fields_of_objects_in_records_are_asked_for(
    environments: dict[str, PracticeEnvironment], sandbox: Sandbox
) -> None:
    practice = environments["clients"].practice
    inner = [each for each in practice._forms if "/" in each.name.removeprefix("/office")]
    one = [each for each in inner if not (each.but or each.also)]  # of few records, hardly any meet two conditions
    plain = [each for each in one if each.where is None or (each.where.test == "is" and not each.key)]
    kinds = {(each.collection, each.goal, each.by): each for each in plain}
    assert {goal for _, goal, _ in kinds} == {
        *("count", "list", "sum", "most", "least", "read", "check"),
        *("create", "change", "add", "drop", "delete"),
    }
    changed = {(each.collection, each.field) for each in inner if each.goal in ("change", "check", "add", "drop")}
    assert ("clients", "alerts/receivers") in changed
    assert ("branches", "hours/public") in changed
    assert not [each for _, each in changed if each.startswith("visits/")], "no operation takes them"
    created = {each.fields[:3] for each in inner if each.goal == "create" and each.collection == "clients"}
    assert created == {("name", "address/street", "address/city")}, "what a new client needs"
    await every_task_is_solved(kinds.values(), "clients", sandbox, ("train",))


async def test_a_change_in_an_object_keeps_its_other_fields(
    environments: dict[str, PracticeEnvironment], sandbox: Sandbox
) -> None:
    every = environments["clients"].practice._forms
    form = next(each for each in every if each.name == "clients.change.alerts/every_hours.id")
    environment = of_form("clients", form)
    [scenario] = environment.scenarios("train", 1, seed=5)
    values = plan(environment, scenario).values[0]
    alone = f"{{'every_hours': {values['new']}}}"
    careless = f"result = apis.clients.update_client(clientId={values['key']}, alerts={alone})"
    done, _ = await execute(sandbox, environment, scenario, scenario.tasks[0], careless)
    assert done.failures == (f"clients {values['key']} is not as the task wants it",)


def test_what_is_set_beside_the_settings_that_were_asked_for_is_noticed(
    environments: dict[str, PracticeEnvironment],
) -> None:
    practice = environments["sensors"].practice
    form = next(each for each in practice.forms["train"] if each.goal == "add" and each.by == "only")
    own = practice.fitted(Key("train", 4, 0), form)
    assert own is not None
    goal = own.tasks[0].goal
    assert verdict(practice.model, goal, goal.wanted, None, completed=True).success
    wanted = goal.wanted.parts["settings"]
    for value in ({**wanted.value, "site": "another"}, {**wanted.value, "receivers": []}):
        found = goal.wanted.copy()
        found.parts["settings"] = msgspec.structs.replace(wanted, value=value)
        assert verdict(practice.model, goal, found, None, completed=True).failures == (
            "settings is not as the task wants it",
        )


_PRINTS = """
from tests.trainer.practice.test_practice import *
made = PracticeEnvironment(practice_on("desk", DESK)).scenarios("train", 12, seed=9)[6:]
print([(each.template, [(task.instruction, str(task.id)) for task in each.tasks]) for each in made])
"""


def test_the_same_seed_gives_the_same_tasks_in_every_process() -> None:
    texts = set()
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", _PRINTS], env=environment, capture_output=True, text=True, check=True
        )
        texts.add(done.stdout)
    assert len(texts) == 1
    later = PracticeEnvironment(practice_on("desk", DESK))
    alone = [each.instruction(1) for each in reversed(plans(later, count=6))]
    assert alone == [
        each.instruction(1)
        for each in reversed(plans(PracticeEnvironment(practice_on("desk", DESK)), count=12)[:6])
    ]


def test_a_hundred_scenarios_are_made_within_twenty_seconds_of_computing() -> None:
    environment = PracticeEnvironment(practice_on("desk", DESK))
    begun = process_time()
    environment.scenarios("train", 100, seed=2)
    assert process_time() - begun < 20
