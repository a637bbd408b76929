"""A run reads samples of the real API of its project, where that is wanted, and keeps nothing of anybody."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from uuid import UUID, uuid4

import httpx
import msgspec
import pytest

from app.apis import store as apis
from app.apis.documents.reader import DocumentReader
from app.base.errors import NotFoundError
from app.base.run_settings import RunKind, RunSettings
from app.base.settings import Settings
from app.base.values import Json
from app.db.database import Sessions
from app.db.tables import PracticeSource
from app.projects import store as projects
from app.projects.settings import ProjectSettings
from app.releases import tools
from app.runs.practice import RealApi, read_real_api
from tests.support.desk_api import TOKEN, Desk, desk_document, serving_desk
from tests.support.training_project import ProgressRecorder
from trainer.practice.api import keep_samples, read_samples
from trainer.practice.environments import Key, practice_on
from trainer.run_job import Job
from trainer.runs.practice import sample_api

Served = tuple[Desk, str]


@pytest.fixture
def served() -> Iterator[Served]:
    desk = Desk()
    with serving_desk(desk) as url:
        yield desk, url


async def put(sessions: Sessions, url: str, practice: PracticeSource = PracticeSource.READ) -> UUID:
    """The id of a project with the desk."""
    async with sessions.begin() as session:
        project = await projects.create(session, "demo")
        document = desk_document(url)
        await apis.put(
            session,
            project.id,
            "desk",
            source="upload",
            document=document,
            digest="d1",
            token=TOKEN,
            practice=practice,
        )
        return project.id


def job(project_id: UUID) -> Job:
    return Job(
        id=uuid4(),
        project_id=project_id,
        project="demo",
        settings=RunSettings(),
        directory=Path(),
        deployment=Settings(allow_private_hosts=True),
    )


async def test_samples_are_read_with_the_projects_credentials_and_nothing_is_changed(
    committed: Sessions, served: Served
) -> None:
    desk, url = served
    samples = await read_samples(job(await put(committed, url)), committed, "desk")
    assert desk.calls == ["GET /cards", "GET /notes", "GET /cards/1", "GET /cards/2", "GET /cards/3"]
    assert desk.tokens == {f"Bearer {TOKEN}"}
    kept = msgspec.msgpack.encode(samples).decode(errors="replace")
    assert "Anna" not in kept
    assert "Bob" not in kept
    assert_learned(samples, url)


def assert_learned(samples: Mapping[str, Json], url: str) -> None:
    """Practice on them has records like the real ones."""
    practice = practice_on("desk", desk_document(url), samples)
    double = practice.world(Key("train", 1, 0))
    states = {each.fields.get("state") for each in double.state.records["cards"].values()}
    assert states <= {"open", "closed"}
    assert "notes" in practice.model.collections
    assert practice.seen.left_out(practice.model.collections["cards"], lists=True) == {"paused", "owner"}


async def test_what_the_document_promises_and_the_real_server_lacks_is_stored(
    committed: Sessions, served: Served
) -> None:
    _, url = served
    project_id = await put(committed, url)
    await read_samples(job(project_id), committed, "desk")
    async with committed() as session:
        comparison = apis.comparison_of(await apis.get(session, project_id, "desk", document=False))
    assert comparison is not None
    assert comparison.calls == 5
    assert comparison.differences == [
        "GET /cards: the real server leaves out paused, owner of records of the list",
        "GET /cards/{id}: the real server leaves out paused",
    ]
    assert comparison.skipped == []


async def test_nothing_is_read_unless_that_is_wanted(committed: Sessions, served: Served) -> None:
    desk, url = served
    project_id = await put(committed, url, PracticeSource.DOCUMENT)
    assert await read_samples(job(project_id), committed, "desk") == {}
    assert desk.calls == []
    with pytest.raises(NotFoundError):
        await read_samples(job(project_id), committed, "other")


async def skipped(sessions: Sessions, project_id: UUID) -> list[str]:
    """What was not read, and why."""
    async with sessions() as session:
        comparison = apis.comparison_of(await apis.get(session, project_id, "desk", document=False))
    assert comparison is not None
    return comparison.skipped


async def test_calls_that_fail_are_told_and_a_pause_that_the_server_asks_for_ends_them(
    committed: Sessions, served: Served
) -> None:
    desk, url = served
    project_id = await put(committed, url)
    del desk.answers["/cards/2"]
    assert len(await read_samples(job(project_id), committed, "desk")) == 3
    assert await skipped(committed, project_id) == [
        "GET /cards/{id} was not read: the server answers with status 404"
    ]
    desk.pauses, desk.calls = 1, []
    assert await read_samples(job(project_id), committed, "desk") == {}
    assert desk.calls == ["GET /cards"]
    assert "asks for a pause" in (await skipped(committed, project_id))[0]


def contents(directory: Path) -> list[bytes]:
    return [each.read_bytes() for each in directory.iterdir()]


async def test_samples_are_kept_once_the_server_has_answered(
    committed: Sessions, served: Served, tmp_path: Path
) -> None:
    desk, url = served
    run = msgspec.structs.replace(job(await put(committed, url)), directory=tmp_path)
    desk.pauses = 1
    await keep_samples(run, committed, "desk")
    assert contents(tmp_path) == []
    await keep_samples(run, committed, "desk")
    [kept] = contents(tmp_path)
    assert_learned(msgspec.msgpack.decode(kept), url)
    calls = len(desk.calls)
    await keep_samples(run, committed, "desk")
    assert len(desk.calls) == calls


async def test_practice_exams_and_rollouts_on_an_api_have_its_samples(
    committed: Sessions, served: Served, tmp_path: Path
) -> None:
    _, url = served
    project_id = await put(committed, url)
    for kind in (RunKind.PRACTICE, RunKind.EXAM, RunKind.ROLLOUT):
        for environment, files in (("practice?api=desk", {"samples.msgpack"}), ("gym", set[str]())):
            if kind is RunKind.PRACTICE and not files:
                continue
            directory = tmp_path / kind / environment.partition("?")[0]
            directory.mkdir(parents=True)
            settings = RunSettings(kind=kind, environment=environment)
            run = msgspec.structs.replace(job(project_id), directory=directory, settings=settings)
            await sample_api(run, ProgressRecorder(), committed)
            own = {"hours.json"} if kind is RunKind.PRACTICE else set()
            assert {each.name for each in directory.iterdir()} == files | own, (kind, environment)


async def test_the_time_for_calls_begins_with_the_first_one(committed: Sessions, served: Served) -> None:
    desk, url = served
    project_id = await put(committed, url)
    async with committed() as session:
        row = await apis.get(session, project_id, "desk", document=False)
        document = await tools.api_document(session, row)
    async with httpx.AsyncClient() as client, DocumentReader() as reader:
        real = RealApi(
            sessions=committed,
            client=client,
            reader=reader,
            project_id=project_id,
            document=document,
            rules=ProjectSettings().approvals,
            seconds=1e-6,
            call_seconds=30,
        )
        assert len((await read_real_api(real))()) == 1
    assert desk.calls == ["GET /cards"]
    assert "the time for it was over" in (await skipped(committed, project_id))[0]


async def test_a_server_that_is_down_leaves_what_the_document_says(committed: Sessions) -> None:
    with serving_desk(Desk()) as url:
        pass
    project_id = await put(committed, url)
    assert await read_samples(job(project_id), committed, "desk") == {}
    assert "GET /cards was not read: " in (await skipped(committed, project_id))[0]
