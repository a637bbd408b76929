"""What practice asks more often."""

from collections import Counter
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest

from app.apis.double.model import read_model
from app.apis.naming import keys_of
from app.apis.presentation import AS_WRITTEN, OperationOverride, Presentation
from app.base.values import Call, Json, Policy, Stop, Trajectory
from app.db.database import Sessions
from tests.support.double_documents import DESK
from tests.support.every_row import every_row
from tests.support.practice_documents import SENSORS, VAULT, VAULT_SAMPLES
from tests.support.practised_project import practised_project
from trainer.environment import Split, Verdict
from trainer.practice.environments import Mix, Plan, PracticeEnvironment, RealTask, kind_of_form, practice_on
from trainer.rollouts.episode import Episode
from trainer.rollouts.groups import ChainRollout
from trainer.runs.practice import Steering

COUNT = 400


@pytest.fixture(scope="module")
def environment() -> PracticeEnvironment:
    return PracticeEnvironment(practice_on("desk", DESK))


def plans(environment: PracticeEnvironment, mix: Mix, split: Split = "train", count: int = COUNT) -> list[Plan]:
    environment.mix = mix
    scenarios = environment.scenarios(split, count, seed=3)[::2]  # the others are contrasts of these
    return [environment.place(each.tasks[0].variables["world"])[0] for each in scenarios]


def call(api: str, **arguments: Json) -> Call:
    return Call(seq=0, turn=0, api=f"desk.{api}", arguments=arguments)


def operation(environment: PracticeEnvironment, role: str, collection: str) -> str:
    made = environment.practice.model.operations.values()
    return next(each.operation.name for each in made if (each.role, each.collection) == (role, collection))


def test_what_people_ask_for_is_asked_several_times_as_often_and_what_failed_more_so(
    environment: PracticeEnvironment,
) -> None:
    model = environment.practice.model
    collection = next(name for name in model.collections if environment.practice.every[name].one("delete"))
    delete, read = operation(environment, "delete", collection), operation(environment, "list", collection)
    deleted = RealTask((call(read), call(delete, id=str(uuid4()))), failed=True)
    only_read = RealTask((call(read),))
    mix = Mix.of(model, [deleted, only_read, RealTask((call("no_such_operation"),))])
    assert mix.asked == {f"{collection}.delete": 2 / 3, f"{collection}.read": 1 / 3}

    def share(mix: Mix) -> float:
        forms = [each.form for each in plans(environment, mix)]
        return sum(each.goal == "delete" and each.collection == collection for each in forms) / len(forms)

    assert share(Mix.of(model, [deleted])) > 1.5 * share(Mix())


def test_a_field_that_people_write_counts_by_itself(environment: PracticeEnvironment) -> None:
    model, every = environment.practice.model, environment.practice.every
    name, reach = next((name, each) for name, each in every.items() if each.write and len(each.settable) > 1)
    made = reach.write
    assert made is not None
    field, other = list(reach.settable)[:2]
    argument = next(each.name for each in made.operation.parameters if each.wire_name == field)
    mix = Mix.of(model, [RealTask((call(made.operation.name, **{argument: "x"}),))])
    assert mix.asked == {f"{name}.change": 1, f"{name}.change.{field}": 1}
    assert f"{name}.change.{other}" not in mix.asked


def test_calls_are_known_by_the_names_that_tasks_are_shown() -> None:
    model = read_model("sensors", SENSORS, server="http://sensors.test")
    readable = Presentation(naming="readable")
    key = next(iter(keys_of(list(model.app.operations.values()))))
    named = Presentation(
        overrides={key: OperationOverride(place="GET /sensors", was="sensors_list", name="all_of")}
    )
    rows = [
        (readable, "list_sensors", True),
        (readable, "sensors_list", True),  # by an earlier task
        (named, "all_of", True),
        (named, "sensors_list", True),
        (AS_WRITTEN, "sensors_list", True),
        (AS_WRITTEN, "list_sensors", False),
    ]
    with every_row() as row:
        for presentation, name, known in rows:
            with row(f"{presentation.naming} {name}"):
                task = RealTask((msgspec.structs.replace(call(name), api=f"sensors.{name}"),))
                assert (Mix.of(model, [task], presentation).asked == {"sensors.read": 1}) is known


def test_a_call_counts_for_the_records_of_the_place_that_its_arguments_name() -> None:
    model = read_model("vault", VAULT, samples=VAULT_SAMPLES)
    made = next(
        each for each in model.typed if each.role == "list" and each.collection.endswith("cellar/shelf_sets/wines")
    )
    path = {each.wire_name: each.name for each in made.operation.parameters}
    place = {path[name]: key for name, key in made.pinned.items()}
    for key, collection in ((None, made.collection), ("elsewhere", "rooms/shelf_sets/records")):
        arguments = place if key is None else dict.fromkeys(place, key)
        found = Mix.of(model, [RealTask((call(made.operation.name, **arguments),))]).asked
        assert found == {f"{collection}.read": 1.0}


def test_what_is_always_solved_or_never_is_asked_less_and_not_forgotten(environment: PracticeEnvironment) -> None:
    before = Counter(kind_of_form(each.form) for each in plans(environment, Mix()))
    most = before.most_common(1)[0][0]
    for solved in (0, 40):
        mix = Mix()
        mix.note({most: (solved, 40)})
        after = Counter(kind_of_form(each.form) for each in plans(environment, mix))
        assert 0 < after[most] < before[most]
        assert sum(after.values()) == sum(before.values())


def test_later_rounds_count_more(environment: PracticeEnvironment) -> None:
    form, mix = plans(environment, Mix(), count=1)[0].form, Mix()
    mix.note({kind_of_form(form): (10, 10)})
    solved = mix.weight(form)
    for _ in range(4):
        mix.note({kind_of_form(form): (5, 10)})
    assert mix.weight(form) > 2 * solved


def rolled_out(environment: PracticeEnvironment, *successes: bool) -> ChainRollout:
    [scenario] = environment.scenarios("train", 1, seed=3)
    task = scenario.tasks[0]
    done = Trajectory(task=task, policy=Policy("base"), profile="brief", turns=(), stop=Stop.COMPLETED)
    return ChainRollout(scenario, tuple(Episode(done, Verdict(int(each), 1)) for each in successes), ())


async def test_a_step_that_is_repeated_counts_once_and_is_drawn_as_before(
    committed: Sessions, database_url: str, tmp_path: Path
) -> None:
    project = await practised_project(committed, database_url, tmp_path)

    async def attempt() -> tuple[Steering, PracticeEnvironment]:
        environment = PracticeEnvironment(practice_on("sensors", SENSORS))
        steering = Steering(tmp_path, environment)
        await steering.begin(committed, project.project_id)
        return steering, environment

    steering, environment = await attempt()
    first, second = rolled_out(environment, True, False), rolled_out(environment, True)
    steering.note(1, [first])
    after_first = msgspec.to_builtins(environment.mix)
    steering, environment = await attempt()  # killed before the checkpoint of the first step
    assert environment.mix == Mix()
    steering.note(1, [first])
    assert msgspec.to_builtins(environment.mix) == after_first
    (tmp_path / "learner-00001.checkpoint").touch()
    steering.note(2, [second])
    after_second = msgspec.to_builtins(environment.mix)
    steering, environment = await attempt()  # before that of the second
    assert msgspec.to_builtins(environment.mix) == after_first
    steering.note(2, [second])
    assert msgspec.to_builtins(environment.mix) == after_second != after_first
    (tmp_path / "learner-00002.checkpoint").touch()
    assert msgspec.to_builtins((await attempt())[1].mix) == after_second


def test_exams_ask_for_all_alike_and_a_mix_can_be_stored(environment: PracticeEnvironment) -> None:
    mix = Mix(asked={"notes.delete": 1.0})
    mix.note({kind_of_form(each.form): (9, 9) for each in plans(environment, Mix(), "test", 6)})
    for split in ("validation", "test"):
        names = [each.key for each in plans(environment, Mix(), split, 60)]
        assert [each.key for each in plans(environment, mix, split, 60)] == names
    assert msgspec.json.decode(msgspec.json.encode(mix), type=Mix) == mix
