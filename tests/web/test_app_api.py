"""Health, metrics, and how the application reports failures."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import update

from app.apis import store as apis
from app.apis.documents.reader import DocumentReader
from app.base.errors import EngineError
from app.base.run_settings import RunSettings
from app.db import runners, tables
from app.db.database import Sessions, open_database
from app.db.migrate import check_schema
from app.db.notify import NotificationListener
from app.db.queries import from_now
from app.machine.health import RunnerError, check_runners
from app.processes.api import create_app
from app.processes.dependencies import Dependencies
from app.projects import store as projects
from app.releases.adapter_store import AdapterDirectory
from app.releases.promotion import Promoter
from app.runs import store as runs
from app.runs.datasets import DatasetStore
from tests.support.api_app import (
    BASE_ALONE,
    BUSY,
    ApiApp,
    StubSkillSearch,
    WakeRecorder,
    asgi_client,
    open_api_app,
    problem,
    running,
)
from tests.support.recording_swapper import RecordingSwapper
from tests.support.rows import runner_report
from tests.support.single_connection import single_connection


async def answers() -> None:
    """A component that is ready."""


async def is_down() -> None:
    raise EngineError("the engine at http://e:1 is unreachable: start it, or correct ENGINE_URLS.")


async def limps() -> str:
    return "one of two is out"


async def breaks() -> None:
    raise ZeroDivisionError("a secret detail")


@pytest.fixture
async def api(committed: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url, {"database": answers, "engine": is_down}) as opened:
        yield opened


async def test_health_needs_no_key_and_readiness_names_what_is_not_ready(api: ApiApp) -> None:
    del api.client.headers["Authorization"]
    assert (await api.client.get("/healthz")).json() == {"status": "up"}
    assert (await api.client.get("/livez")).json() == {"status": "up"}
    answer = await api.client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["ready"] is False
    assert answer.json()["components"]["database"] == "ready"
    assert "ENGINE_URLS" in answer.json()["components"]["engine"]


async def test_it_is_ready_when_all_components_are(committed: Sessions, database_url: str) -> None:
    async with open_api_app(committed, database_url, {"database": answers}) as api:
        answer = await api.client.get("/readyz")
    assert (answer.status_code, answer.json()) == (
        200,
        {"ready": True, "components": {"database": "ready"}, "warnings": {}},
    )


async def test_a_ready_component_may_have_a_warning(committed: Sessions, database_url: str) -> None:
    async with open_api_app(committed, database_url, {"engine": limps}) as api:
        answer = await api.client.get("/readyz")
    assert (answer.status_code, answer.json()["warnings"]) == (200, {"engine": "one of two is out"})


async def test_metrics_count_requests_by_route_and_tasks_by_state(api: ApiApp) -> None:
    task_id = await api.submit()
    await api.client.get(f"/v1/tasks/{task_id}")
    text = (await api.client.get("/metrics")).text
    assert 'sage_tasks{state="accepted"} 1.0' in text
    age = float(text.partition("\nsage_task_queue_age_seconds ")[2].split()[0])
    assert 0 < age < 60
    assert 'sage_model_servers{state="out"} 1.0' in text
    assert str(task_id) not in text  # one series per route, not per task
    assert 'path="/v1/tasks/{task_id}"' in text


async def test_metrics_sum_up_what_the_runners_report(api: ApiApp) -> None:
    async with api.sessions.begin() as session:
        await runners.report(session, runner_report(id="a", in_flight=3, waiting=1))
        await runners.report(session, runner_report(id="a", in_flight=2, waiting=4))
        await runners.report(session, runner_report(id="b", pid=8, waiting=2, error="no forks"))
    text = (await api.client.get("/metrics")).text
    assert 'sage_runners{state="working"} 1.0' in text
    assert 'sage_runners{state="faulty"} 1.0' in text
    assert 'sage_runner_tasks{host="here",pid="7"} 2.0' in text
    assert 'sage_generations{state="waiting"} 6.0' in text
    starts = int(float(text.partition("\nsage_runner_starts_total ")[2].split()[0]))
    assert starts >= 2


async def test_a_runner_in_a_container_that_was_started_anew_counts_once(api: ApiApp) -> None:
    async with api.sessions.begin() as session:
        await runners.report(session, runner_report(id="a", pid_space="before", in_flight=3))
        await runners.report(session, runner_report(id="b", pid_space="after", in_flight=2))
    assert 'sage_runner_tasks{host="here",pid="7"} 2.0' in (await api.client.get("/metrics")).text


async def test_metrics_show_the_progress_of_running_runs(api: ApiApp) -> None:
    async with api.sessions.begin() as session:
        for each in ("demo", "other"):
            project = api.demo if each == "demo" else await projects.create(session, each)
            await runs.create(session, project.id, RunSettings())
        claimed = await runs.claim(session, "worker", 30)
        assert claimed is not None
    async with api.sessions.begin() as session:
        await runs.append_step(session, claimed.id, "worker", 1, {"loss": 1.0}, total=5)
    text = (await api.client.get("/metrics")).text
    assert 'sage_training_runs{state="running"} 1.0' in text
    assert 'sage_training_runs{state="queued"} 1.0' in text
    assert 'sage_training_run_steps{state="done"} 1.0' in text
    assert 'sage_training_run_steps{state="planned"} 5.0' in text


async def test_an_administrator_of_all_projects_lists_the_runners(api: ApiApp) -> None:
    async with api.sessions.begin() as session:
        await runners.report(session, runner_report(id="a", sandbox="seccomp"))
    [listed] = (await api.client.get("/v1/runners")).json()
    assert (listed["id"], listed["host"], listed["sandbox"], listed["error"]) == ("a", "here", "seccomp", None)
    for key in (await api.key("tasks"), await api.key("admin", project_id=api.demo.id)):
        assert (await api.client.get("/v1/runners", headers=key)).status_code == 403


async def test_the_server_is_ready_only_with_a_live_runner_whose_sandbox_works(api: ApiApp) -> None:
    async def told() -> str:
        try:
            return await check_runners(api.sessions)
        except RunnerError as error:
            return f"not ready: {error}"

    assert "start one with `sage runner`" in await told()
    async with api.sessions.begin() as session:
        await runners.report(session, runner_report(id="a", error="no forks"))
    assert await told() == "not ready: here (pid 7): no forks"
    async with api.sessions.begin() as session:
        await runners.report(session, runner_report(id="b"))
    assert await told() == "here (pid 7): no forks"
    async with api.sessions.begin() as session:
        await session.execute(update(tables.RunnerProcess).values(seen_at=from_now(-60)))
    assert "start one with `sage runner`" in await told()


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/v1/tasks", "DELETE, GET, OPTIONS, POST"),
        ("/v1/apis/mail", "DELETE, GET, OPTIONS, PATCH"),
        ("/v1/skills/search", "GET, OPTIONS"),
    ],
)
async def test_a_refused_method_and_options_name_those_of_the_path(api: ApiApp, path: str, methods: str) -> None:
    refused = await api.client.request("PROPFIND", path)
    assert problem(refused)["error"] == "MethodNotAllowedError"
    assert methods in str(problem(refused)["detail"])
    assert refused.headers["Allow"] == methods
    asked = await api.client.options(path)
    assert (asked.status_code, asked.headers["Allow"]) == (204, methods)


async def test_unknown_routes_and_methods_are_reported_as_problems(api: ApiApp) -> None:
    assert problem(await api.client.get("/v1/nothing"))["error"] == "NotFoundError"
    assert problem(await api.client.put("/v1/tasks"))["error"] == "MethodNotAllowedError"


async def test_an_unexpected_error_reveals_no_details(committed: Sessions, database_url: str) -> None:
    async with open_api_app(committed, database_url, {"engine": breaks}) as api:
        answer = await api.client.get("/readyz")
    assert answer.status_code == 500
    assert problem(answer)["error"] == "InternalError"
    assert "secret" not in answer.text


async def test_an_unavailable_database_is_a_503() -> None:
    nowhere = "postgresql://127.0.0.1:9/none"

    @asynccontextmanager
    async def open_dependencies() -> AsyncIterator[Dependencies]:
        async with open_database(nowhere) as database, httpx.AsyncClient() as outside:
            yield Dependencies(
                sessions=database.sessions,
                listener=NotificationListener(nowhere),
                library=StubSkillSearch(),
                promoter=Promoter(database.sessions, RecordingSwapper(), "prompt"),
                first_release=BASE_ALONE,
                adapters=AdapterDirectory(Path("adapters")),
                notify_workers=WakeRecorder().notify_workers,
                http_client=outside,
                document_reader=DocumentReader(),
                readiness_checks={"database": lambda: check_schema(database.engine)},
                occupancy=lambda: BUSY,
                datasets=DatasetStore(Path("data/datasets")),
            )

    app = create_app(open_dependencies)
    async with running(app), asgi_client(app, {"Authorization": "Bearer sage_x"}) as client:
        answer = await client.get("/v1/tasks")
        assert (answer.status_code, problem(answer)["error"]) == (503, "DatabaseError")
        readiness = (await client.get("/readyz")).json()
    assert "refused" in readiness["components"]["database"]


async def test_a_request_that_gets_no_database_connection_is_a_503(committed: Sessions, database_url: str) -> None:
    del committed  # it empties the tables
    async with single_connection(database_url) as database, open_api_app(database.sessions, database_url) as api:
        async with database.starved():
            answer = await api.client.get("/v1/tasks")
            assert (answer.status_code, problem(answer)["error"]) == (503, "DatabaseError")
        assert (await api.client.get("/v1/tasks")).status_code == 200


@pytest.mark.parametrize(
    ("method", "body"), [("GET", None), ("PATCH", {"bind": {}}), ("PATCH", {"bind": {"q": "secret:q"}})]
)
async def test_requests_that_wait_for_a_document_to_be_read_hold_no_connection(
    committed: Sessions, database_url: str, method: str, body: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    del committed  # it empties the tables
    arrived, read = asyncio.Event(), DocumentReader._read

    async def arriving(self: DocumentReader, *given: Any) -> Any:
        arrived.set()
        return await read(self, *given)

    monkeypatch.setattr(DocumentReader, "_read", arriving)
    async with (
        single_connection(database_url) as database,
        open_api_app(database.sessions, database_url, document_reader=DocumentReader(at_once=0)) as api,
    ):
        async with database.sessions.begin() as session:
            await apis.put(session, api.demo.id, "mail", source="upload", document={}, digest="d")
        waiting = asyncio.create_task(api.client.request(method, "/v1/apis/mail", json=body))
        await arrived.wait()
        assert not waiting.done()
        assert (await api.client.get("/v1/tasks")).status_code == 200
        waiting.cancel()
        await asyncio.wait([waiting])


async def test_a_response_has_a_request_id(api: ApiApp) -> None:
    assert (await api.client.get("/healthz", headers={"X-Request-ID": "abc-1"})).headers["x-request-id"] == "abc-1"
    made_up = (await api.client.get("/healthz", headers={"X-Request-ID": "a b\tc"})).headers["x-request-id"]
    assert len(made_up) == 32
