"""An exam over REST: the real server, the real demo APIs, and in the policy's place the expert."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from click.testing import CliRunner
from sqlalchemy import select

from app.cli import main
from app.db import models
from app.db.database import Sessions
from tests.exam_hall import SCENARIOS, SITES, TOKEN, Hall, open_hall, serving
from trainer.cli.evaluate import evaluate
from trainer.demo.admin_token import make_token, read_token
from trainer.evaluation.metrics import TaskResult, measure
from trainer.evaluation.over_rest import ExamError, sit


class StopError(Exception):
    """Somebody has seen enough."""


@pytest.fixture
async def hall(committed: Sessions, database_url: str, tmp_path: Path) -> AsyncIterator[Hall]:
    async with open_hall(committed, database_url, tmp_path / "model") as opened:
        yield opened


def ignore(_: int) -> None:
    """Nobody counts."""


async def projects(hall: Hall) -> list[str]:
    async with hall.sessions() as session:
        return list(await session.scalars(select(models.Project.name)))


class Seen:
    """What was in the database at one time or another."""

    def __init__(self) -> None:
        self.projects: set[str] = set()
        self.scores: dict[UUID, float] = {}

    async def watch(self, hall: Hall) -> None:
        while True:
            self.projects.update(await projects(hall))
            async with hall.sessions() as session:
                for row in await session.scalars(select(models.Feedback)):
                    self.scores[row.task_id] = row.score
            await asyncio.sleep(0.02)


def by_place(results: list[TaskResult]) -> list[list[TaskResult]]:
    """First tasks, second tasks, third tasks."""
    return [results[place::3] for place in range(3)]


async def test_the_expert_passes_and_uses_its_skills(hall: Hall) -> None:
    done: list[int] = []
    results = await sit(hall.exam, done.append)
    assert sum(done) == len(results) == 3 * SCENARIOS
    assert len({each.scenario for each in results}) == SCENARIOS
    assert {each.stop for each in results} == {"completed"}
    found = measure(results)
    assert (found.tgc.mean, found.sgc.mean) == (100, 100)
    first, second, third = by_place(results)
    assert [(each.turns, each.used, each.wrote) for each in first] == [(3, 0, 1)] * SCENARIOS
    assert [(each.turns, each.used) for each in second + third] == [(2, 1)] * (2 * SCENARIOS)
    assert {each.library for each in results} == {1}
    assert all(len(each.names) == each.used for each in results)
    assert all(each.offered and each.tokens for each in second + third)
    assert await projects(hall) == []


async def test_without_the_library_no_skill_is_offered(hall: Hall) -> None:
    results = await sit(msgspec.structs.replace(hall.exam, library=False), ignore)
    assert measure(results).tgc.mean == 100
    assert {(each.turns, each.offered, each.used, each.library) for each in results} == {(3, 0, 0, None)}


async def test_every_site_is_a_project_and_the_server_hears_how_well_each_task_was_done(hall: Hall) -> None:
    seen = Seen()
    watching = asyncio.create_task(seen.watch(hall))
    await sit(hall.exam, ignore)
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
    assert len(seen.projects) == SITES
    assert {name[:5] for name in seen.projects} == {"exam-"}
    assert len(seen.scores) >= 2 * SCENARIOS  # the last ones may be removed before they are seen
    assert set(seen.scores.values()) == {1.0}


async def test_projects_are_removed_when_the_exam_is_broken_off(hall: Hall) -> None:
    def stop(_: int) -> None:
        raise StopError

    with pytest.raises(StopError):
        await sit(hall.exam, stop)
    assert await projects(hall) == []


async def test_projects_are_removed_when_the_demo_apis_refuse(hall: Hall) -> None:
    with pytest.raises(ExamError, match=r"GET http://.*/admin/apps answers 401: the admin token is"):
        await sit(msgspec.structs.replace(hall.exam, admin_token="wrong"), ignore)
    assert await projects(hall) == []


async def test_a_stranger_at_the_servers_address_is_told_apart(hall: Hall) -> None:
    async def page(scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG001
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"<html>Welcome</html>"})

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await page(scope, receive, send)

    async with serving(app) as url:
        with pytest.raises(ExamError, match="does not answer in JSON: is that the right address"):
            await sit(msgspec.structs.replace(hall.exam, server=url), ignore)


async def sage_eval(hall: Hall, data: Path, **changed: str) -> tuple[int, str, str]:
    """The exit status, what it reports, and the rest that it says."""
    (data / "demo.token").write_text(TOKEN)
    given = {"key": hall.exam.key, "url": hall.exam.server, "services": hall.exam.services} | changed
    options = [text for name, value in given.items() for text in (f"--{name}", value)]
    counts = ["--scenarios", str(SCENARIOS), "--sites", str(SITES)]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "app.cli", "eval", *options, *counts),
        env={**os.environ, "SAGE_DATA_DIR": str(data)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def failing(hall: Hall, data: Path, **changed: str) -> str:
    """What the command says in its one line, after the progress bar."""
    status, out, err = await sage_eval(hall, data, **changed)
    assert (status, out) == (1, ""), err
    lines = [line for line in err.replace("\r", "\n").splitlines() if line and "task/s" not in line]
    assert len(lines) == 1, err
    return lines[0]


async def test_a_wrong_key_is_one_clear_line(hall: Hall, tmp_path: Path) -> None:
    line = await failing(hall, tmp_path, key="sage_wrong")
    assert line.startswith(f"Error: POST {hall.exam.server}/v1/projects answers 401: ")
    assert "key" in line


async def test_a_key_that_may_make_no_projects_is_one_clear_line(hall: Hall, tmp_path: Path) -> None:
    line = await failing(hall, tmp_path, key=hall.tasks_key)
    assert "answers 403: " in line
    assert "admin" in line


async def test_a_server_that_is_not_there_is_one_clear_line(hall: Hall, tmp_path: Path) -> None:
    line = await failing(hall, tmp_path, url="http://127.0.0.1:9")
    assert line.startswith("Error: http://127.0.0.1:9 does not answer: ")


async def test_demo_apis_that_are_not_there_are_one_clear_line(hall: Hall, tmp_path: Path) -> None:
    line = await failing(hall, tmp_path, services="http://127.0.0.1:9")
    assert "http://127.0.0.1:9" in line
    assert await projects(hall) == []


async def test_the_command_reports_both_sittings_and_writes_all_results(hall: Hall, tmp_path: Path) -> None:
    out = tmp_path / "figures" / "all.json"
    status, said, err = await sage_eval(hall, tmp_path, json=str(out))
    assert status == 0, err
    lines = said.splitlines()
    assert lines[0] == f"| {SCENARIOS} scenarios, {3 * SCENARIOS} tasks | library on | library off |"
    assert lines[2] == "| TGC, % | 100.0 [100.0, 100.0] | 100.0 [100.0, 100.0] |"
    assert lines[-1].endswith("tasks/s, 16 at once")
    written = msgspec.json.decode(out.read_bytes())
    assert len(written["library off"]["results"]) == 3 * SCENARIOS
    assert written["library on"]["metrics"]["skill_usage"]["mean"] == 100


def test_scenarios_that_cannot_be_spread_are_refused(tmp_path: Path) -> None:
    options = ["--key", "x", "--scenarios", "5", "--sites", "2"]
    ended = CliRunner().invoke(main, ["eval", *options], env={"SAGE_DATA_DIR": str(tmp_path)})
    assert ended.exit_code == 2
    assert "5 scenarios cannot be spread evenly over 2 sites" in ended.output


def test_without_demo_apis_the_command_says_what_to_start(tmp_path: Path) -> None:
    ended = CliRunner().invoke(main, ["eval", "--key", "x"], env={"SAGE_DATA_DIR": str(tmp_path)})
    assert ended.exit_code == 1
    assert ended.output.startswith(f"Error: {tmp_path / 'demo.token'} cannot be read: start `sage up`")


def test_the_demo_apis_are_looked_for_where_the_settings_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAGE_DEMO_PORT", "8123")
    assert evaluate.make_context("eval", ["--key", "x"]).params["services"] == "http://127.0.0.1:8123"


def test_the_token_is_made_once_and_is_its_owners_alone(tmp_path: Path) -> None:
    token = make_token(tmp_path / "data")
    assert len(token) == 32
    assert make_token(tmp_path / "data") == token == read_token(tmp_path / "data")
    assert (tmp_path / "data" / "demo.token").stat().st_mode & 0o777 == 0o600
