"""Readiness by part: of runners by their rows, and of the work of this process."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import select
from structlog.testing import capture_logs

from app.base.loop import Loop, faults_by_part
from app.base.settings import Settings
from app.base.values import hosted
from app.db import runners
from app.db.database import Sessions, open_database
from app.db.disk_space import DiskSpace
from app.db.notify import NotificationListener
from app.engine.dispatch import Occupancy
from app.machine import routes as machine
from app.machine.health import hosted_failures, readiness_checks
from app.releases import store as releases
from app.sandbox.forked_sandbox import ForkedSandbox
from app.tasks.runner import MemoryWatch, Runner, RunnerPresence
from app.web.server import Shutdown
from tests.support.api_app import ApiApp, open_api_app
from tests.support.hosted_project import hosted_entry
from tests.support.ledger_project import LedgerProject, until
from tests.support.rows import project_row, runner_report

NOWHERE = "postgresql://127.0.0.1:9/none"


@pytest.fixture
async def api(committed: Sessions, database_url: str, tmp_path: Path) -> AsyncIterator[ApiApp]:
    settings = Settings(data_dir=tmp_path, database_url=NOWHERE)
    checks = readiness_checks(committed, DiskSpace(committed, settings), Shutdown())
    async with open_api_app(committed, database_url, checks) as opened:
        yield opened


async def not_ready(api: ApiApp) -> dict[str, str]:
    body = (await api.client.get("/readyz")).json()
    faulty = {part: state for part, state in body["components"].items() if state != "ready"}
    assert body["ready"] is not bool(faulty)
    return faulty


async def test_who_has_no_key_learns_that_a_hosted_model_fails_but_not_whose(
    committed: Sessions,
) -> None:
    async with committed.begin() as session:
        project = await project_row(session)
    entry = await hosted_entry(committed, project.id, failure="no more credit")
    assert await hosted_failures(committed) == "", "no release has it"
    async with committed.begin() as session:
        release = await releases.propose(session, project.id, hosted(entry.id))
        await releases.activate(session, release.id)
    assert await hosted_failures(committed) == "hosted models of 1 project fail: `sage doctor` says which, and why"


async def report(api: ApiApp, id: str, **values: object) -> None:
    async with api.sessions.begin() as session:
        await runners.report(session, runner_report(id=id, **values))


async def test_a_part_that_no_runner_has_is_not_ready_and_one_that_some_lack_is_a_warning(api: ApiApp) -> None:
    assert (await not_ready(api)).keys() == {"runners", "claims", "sandbox", "disk", "host"}
    for part in ("claims", "sandbox", "host", "disk"):
        await report(api, "a", error="a reason", faults={part: "a reason"})
        assert await not_ready(api) == dict.fromkeys(("runners", part), "here (pid 7): a reason")
    await report(api, "b", faults={"notifications": "polls", "background": "is slow"})
    assert await not_ready(api) == {}
    warnings = (await api.client.get("/readyz")).json()["warnings"]
    assert warnings == {
        "runners": "here (pid 7): a reason",
        "disk": "here (pid 7): a reason",
        "notifications": "here (pid 7): polls",
        "background": "here (pid 7): is slow",
    }


async def test_a_full_disk_of_the_api_itself_is_not_ready(
    committed: Sessions, database_url: str, tmp_path: Path
) -> None:
    settings = Settings(data_dir=tmp_path, database_url=NOWHERE, min_free_disk_mb=10**9)
    checks = readiness_checks(committed, DiskSpace(committed, settings), Shutdown())
    async with open_api_app(committed, database_url, checks) as api:
        await report(api, "a")
        assert "SAGE_MIN_FREE_DISK_MB" in (await not_ready(api))["disk"]
        assert (await api.client.get("/v1/tasks")).status_code == 200, "reads go on"


async def test_background_work_that_fails_is_not_ready_until_it_works_and_is_counted(api: ApiApp) -> None:
    await report(api, "a", loop_failures=5, loop_restarts=4, dropped_lines=3)
    failing = asyncio.Event()
    failing.set()

    async def tick() -> None:
        if failing.is_set():
            raise ValueError("a defect")

    async with Loop("send things", tick, 0.05) as loop:
        await until(lambda: loop.failures >= 2)
        assert "send things" in (await not_ready(api))["background"]
        failing.clear()
        await until(lambda: loop.fault is None)
        assert await not_ready(api) == {}
        text = (await api.client.get("/metrics")).text
    assert f'sage_loop_failures_total{{loop="send things"}} {float(loop.failed)}' in text
    assert 'sage_loop_restarts_total{loop="send things"} 0.0' in text
    assert 'sage_runner_loop_failures_total{host="here",pid="7"} 5.0' in text
    assert 'sage_runner_loop_restarts_total{host="here",pid="7"} 4.0' in text
    assert 'sage_runner_log_lines_dropped_total{host="here",pid="7"} 3.0' in text


async def test_a_listener_without_a_connection_is_a_fault_until_it_has_one(database_url: str) -> None:
    async with NotificationListener(NOWHERE):
        await until(lambda: "notifications" in faults_by_part())
    async with NotificationListener(database_url):
        await asyncio.sleep(0.5)
        assert faults_by_part() == {}


async def test_a_runner_whose_claims_fail_reports_it(project: LedgerProject, bare_sandbox: ForkedSandbox) -> None:
    async def execute(*_: object) -> None:
        """Never called."""

    memory, busy = MemoryWatch(1 << 40, lambda: None), Occupancy({}, in_flight=0, waiting=0)
    async with (
        open_database(NOWHERE) as away,
        Runner(away.sessions, execute) as runner,
        RunnerPresence(project.sessions, runner, bare_sandbox, memory, lambda: busy),
    ):

        async def is_reported() -> bool:
            async with project.sessions() as session:
                rows = await runners.live(session)
            return any("claim tasks: " in row.faults.get("claims", "") and row.error for row in rows)

        await until(is_reported)


async def test_a_remark_that_cannot_be_made_is_left_out(
    committed: Sessions, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_REMARK_SECONDS", 0.05)

    async def hangs() -> str:
        await asyncio.Event().wait()
        return ""

    async def fails() -> str:
        async with open_database(NOWHERE) as database, database.sessions() as session:
            return str(await session.scalar(select(1)))

    async def says() -> str:
        return "a remark"

    checks = machine.remarks({"slow": hangs, "failing": fails, "made": says})
    async with open_api_app(committed, database_url, checks) as api:
        with capture_logs() as logged:
            answer = await api.client.get("/readyz")
    assert (answer.status_code, answer.json()["warnings"]) == (200, {"made": "a remark"})
    assert set(answer.json()["components"].values()) == {"ready"}
    causes = {each["remark"]: each["cause"] for each in logged if "is left out" in each["event"]}
    assert causes.keys() == {"slow", "failing"}
    assert causes["slow"] == "it took more than 0.05 s"
