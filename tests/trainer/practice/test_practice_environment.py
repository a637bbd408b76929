"""The environment `practice?api=NAME`: an API of the project, as the active release has it, on its double."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from app.apis import store as apis
from app.apis.documents.protocols import parse_document
from app.apis.naming import keys_of
from app.apis.presentation import OperationOverride, Presentation
from app.base.errors import InvalidError
from app.base.values import Json
from app.db.database import Sessions
from tests.support.double_documents import DESK
from tests.support.every_row import every_row
from tests.support.practice_documents import SENSORS
from tests.support.practised_project import practised_project
from tests.support.training_project import ProgressRecorder, TrainingProject
from trainer.environment import open_environment
from trainer.practice.environments import NothingToPractiseError, Practice, PracticeEnvironment, practice_on
from trainer.practice.programs import write_program
from trainer.runs.environment import RunEnvironment, open_run_environment


@pytest.fixture
async def project(committed: Sessions, database_url: str, tmp_path: Path) -> TrainingProject:
    return await practised_project(committed, database_url, tmp_path)


@asynccontextmanager
async def opened(
    project: TrainingProject, environment: str, samples: dict[str, Json] | None = None
) -> AsyncIterator[RunEnvironment]:
    job = await project.job(kind="rollout", environment=environment)
    if samples is not None:
        (job.directory / "samples.msgpack").write_bytes(msgspec.msgpack.encode(samples))
    async with open_run_environment(job, project.sessions, ProgressRecorder()) as found:
        assert found is not None
        yield found


async def test_a_run_practises_on_an_api_of_its_project(project: TrainingProject) -> None:
    async with opened(project, "practice?api=sensors") as found:
        [scenario] = found.environment.scenarios("train", 1, 0)
        async with found.environment.open(scenario, scenario.tasks[0]) as world:
            assert set(world.catalog.apps) == {"sensors"}
            assert "sensors_list" in world.catalog.apps["sensors"].operations
        assert (found.own, found.examined) == (True, "test")


async def test_samples_in_the_directory_of_a_run_show_what_records_have(project: TrainingProject) -> None:
    seen = {"sensors_list": {"s1": {"id": "s1", "label": "Hall of mirrors"}, "s2": {"id": "s2", "label": "Attic"}}}
    for samples, fields in ((None, set()), (seen, {"sensors"})):
        async with opened(project, "practice?api=sensors", samples) as found:
            assert isinstance(found.environment, PracticeEnvironment)
            assert found.environment.practice.seen.lists.keys() == fields


async def test_it_follows_the_document_that_the_active_release_has(project: TrainingProject) -> None:
    async with project.sessions.begin() as session:
        renamed = {**SENSORS, "paths": {f"/v2{path}": each for path, each in SENSORS["paths"].items()}}
        await apis.put(session, project.project_id, "sensors", source="upload", document=renamed, digest="v2")
    async with opened(project, "practice?api=sensors") as found:
        assert isinstance(found.environment, PracticeEnvironment)
        operations = found.environment.practice.model.app.operations
        assert operations["sensors_list"].path == "/v2/sensors"


async def present_sensors(project: TrainingProject, overrides: dict[str, OperationOverride]) -> None:
    async with project.sessions.begin() as session:
        await apis.put(
            session,
            project.project_id,
            "sensors",
            source="upload",
            document=SENSORS,
            digest="sensors",
            server="http://sensors.test",
            presentation=msgspec.to_builtins(Presentation(overrides=overrides)),
        )


async def test_the_agent_is_shown_the_api_as_its_tasks_are(project: TrainingProject) -> None:
    hidden = OperationOverride(place="DELETE /sensors/{sensor}", was="sensors_drop", hidden=True)
    named = OperationOverride(place="GET /sensors", was="sensors_list", name="all_of_them")
    document = parse_document("sensors", SENSORS, server="http://sensors.test")
    keys = dict(zip(document.operations, keys_of(list(document.operations.values())), strict=True))
    overrides = {keys["sensors_drop"]: hidden, keys["sensors_list"]: named}
    await present_sensors(project, overrides)
    seen = {"sensors_list": {"s1": {"id": "s1", "label": "Hall of mirrors"}}}
    async with opened(project, "practice?api=sensors", seen) as found:
        assert isinstance(found.environment, PracticeEnvironment)
        assert found.environment.practice.seen.lists.keys() == {"sensors"}
        for scenario in found.environment.scenarios("train", 12, 0):
            async with found.environment.open(scenario, scenario.tasks[0]) as world:
                shown = world.catalog.apps["sensors"].operations
                assert "all_of_them" in shown
                assert not {"sensors_drop", "sensors_list"} & set(shown)
                assert "sensors_list" not in write_program(world.plan.writing).function
                assert ".delete." not in f".{scenario.template}."


async def test_samples_are_of_the_operations_that_the_document_calls_so(project: TrainingProject) -> None:
    document = parse_document("sensors", SENSORS, server="http://sensors.test")
    keys = dict(zip(document.operations, keys_of(list(document.operations.values())), strict=True))
    swapped = {"sensors_list": "sensors_show", "sensors_show": "sensors_list"}
    overrides = {keys[was]: OperationOverride(place="", was=was, name=name) for was, name in swapped.items()}
    await present_sensors(project, overrides)
    seen = {"sensors_list": {"s1": {"id": "s1", "label": "Hall of mirrors"}}}
    async with opened(project, "practice?api=sensors", seen) as found:
        assert isinstance(found.environment, PracticeEnvironment)
        assert found.environment.practice.seen.lists.keys() == {"sensors"}
        assert not found.environment.practice.seen.items


async def test_what_cannot_be_practised_says_why_and_what_to_do(project: TrainingProject) -> None:
    refused: dict[str, tuple[type[InvalidError], str]] = {
        "practice?api=sensor": (InvalidError, "has no API sensor: it has ping, sensors, store, tools"),
        "practice?api=tools": (InvalidError, "tools is an MCP server, and only what has an OpenAPI"),
        "practice?api=ping": (NothingToPractiseError, "nothing can be practised on ping: .*Give a document"),
        "practice": (InvalidError, r"practice needs the option api: practice\?api="),
        "practice?api=Sensors": (InvalidError, "does not match"),
        "practice?document=/etc/passwd": (InvalidError, "practice has no option document"),
    }
    with every_row() as row:
        for environment, (error, message) in refused.items():
            with row(environment), pytest.raises(error, match=message):
                async with opened(project, environment):
                    pass


def test_outside_of_a_project_there_is_nothing_to_practise() -> None:
    with pytest.raises(InvalidError, match="an API belongs to a project"):
        open_environment("practice?api=sensors").scenarios("train", 1, 0)


async def test_what_the_gateway_fills_in_is_neither_shown_nor_asked_for() -> None:
    bind: dict[str, Json] = {"create_note": {"title": "secret:t"}}
    free, bound = practice_on("desk", DESK), practice_on("desk", DESK, bind=bind)

    def goals(practice: Practice) -> set[str]:
        forms = [each for every in practice.forms.values() for each in every if each.collection == "notes"]
        return {each.goal for each in forms}

    assert goals(free) - goals(bound) == {"create"}
    environment = PracticeEnvironment(bound)
    [scenario] = environment.scenarios("train", 1, 0)
    async with environment.open(scenario, scenario.tasks[0]) as world:
        made = world.catalog.apps["desk"].operations["create_note"]
        assert "title" not in {each.name for each in made.parameters}
        gateway = world.open_gateway(9)
        folder = (await gateway.answer_call("desk.create_folder", [], {"name": "Bound"})).value["id"]
        answer = await gateway.answer_call("desk.create_note", [], {"folder_id": folder})
    assert answer.status in (200, 201)
