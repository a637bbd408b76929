"""Evaluation over REST: the real server and demo APIs, with the scripted expert as the policy."""

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
from app.db import tables
from app.db.database import Sessions
from tests.support.evaluated_server import SCENARIOS, SITES, TOKEN, EvaluatedServer, open_evaluated_server
from tests.support.listening_app import listening_app
from trainer.commands import evaluate
from trainer.evaluation.metrics import TaskResult, measure
from trainer.evaluation.over_rest import EvaluationError, evaluate_server
from trainer.worlds.demo import make_token, read_token

pytestmark = pytest.mark.slow  # whole evaluations


class StopError(Exception):
    """Stops an evaluation."""


@pytest.fixture
async def evaluated(committed: Sessions, database_url: str, tmp_path: Path) -> AsyncIterator[EvaluatedServer]:
    async with open_evaluated_server(committed, database_url, tmp_path / "model") as opened:
        yield opened


def ignore(_: int) -> None:
    """A report that is not needed."""


async def projects(evaluated: EvaluatedServer) -> list[str]:
    async with evaluated.sessions() as session:
        return list(await session.scalars(select(tables.Project.name)))


class Seen:
    """All projects and scores that were ever in the database."""

    def __init__(self) -> None:
        self.projects: set[str] = set()
        self.scores: dict[UUID, float] = {}

    async def watch(self, evaluated: EvaluatedServer) -> None:
        while True:
            self.projects.update(await projects(evaluated))
            async with evaluated.sessions() as session:
                for row in await session.scalars(select(tables.Feedback)):
                    self.scores[row.task_id] = row.score
            await asyncio.sleep(0.02)


def by_place(results: list[TaskResult]) -> list[list[TaskResult]]:
    """The first, second and third tasks of the scenarios."""
    return [results[place::3] for place in range(3)]


async def test_the_expert_passes_and_uses_its_skills(evaluated: EvaluatedServer) -> None:
    done: list[int] = []
    results = await evaluate_server(evaluated.evaluation, done.append)
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
    assert await projects(evaluated) == []


async def test_without_the_library_no_skill_is_offered(evaluated: EvaluatedServer) -> None:
    results = await evaluate_server(msgspec.structs.replace(evaluated.evaluation, library=False), ignore)
    assert measure(results).tgc.mean == 100
    assert {(each.turns, each.offered, each.used, each.library) for each in results} == {(3, 0, 0, None)}


async def test_every_site_is_a_project_and_each_task_gets_its_score(
    evaluated: EvaluatedServer,
) -> None:
    seen = Seen()
    watching = asyncio.create_task(seen.watch(evaluated))
    await evaluate_server(evaluated.evaluation, ignore)
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
    assert len(seen.projects) == SITES
    assert {name[:5] for name in seen.projects} == {"eval-"}
    assert len(seen.scores) >= 2 * SCENARIOS  # the last ones may be deleted before they are seen
    assert set(seen.scores.values()) == {1.0}


async def test_projects_are_deleted_when_the_evaluation_is_interrupted(evaluated: EvaluatedServer) -> None:
    def stop(_: int) -> None:
        raise StopError

    with pytest.raises(StopError):
        await evaluate_server(evaluated.evaluation, stop)
    assert await projects(evaluated) == []


async def test_projects_are_deleted_when_the_demo_apis_refuse(evaluated: EvaluatedServer) -> None:
    with pytest.raises(EvaluationError, match=r"http://.* refuses: the admin token is"):
        await evaluate_server(msgspec.structs.replace(evaluated.evaluation, admin_token="wrong"), ignore)
    assert await projects(evaluated) == []


async def test_another_server_at_the_address_is_reported(evaluated: EvaluatedServer) -> None:
    async def page(scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG001
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"<html>Welcome</html>"})

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await page(scope, receive, send)

    async with listening_app(app) as url:
        with pytest.raises(EvaluationError, match="does not answer in JSON: check --url"):
            await evaluate_server(msgspec.structs.replace(evaluated.evaluation, server=url), ignore)


async def sage_eval(evaluated: EvaluatedServer, data: Path, **changed: str) -> tuple[int, str, str]:
    """The exit status, standard output and standard error."""
    (data / "demo.token").write_text(TOKEN)
    given = {
        "key": evaluated.evaluation.key,
        "url": evaluated.evaluation.server,
        "services": evaluated.evaluation.services,
    } | changed
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


async def failing(evaluated: EvaluatedServer, data: Path, **changed: str) -> str:
    """The one line of the command's error, after the progress bar."""
    status, out, err = await sage_eval(evaluated, data, **changed)
    assert (status, out) == (5 if "does not answer" in err else 6, ""), err
    lines = [line for line in err.replace("\r", "\n").splitlines() if line and "task/s" not in line]
    assert len(lines) == 1, err
    return lines[0]


async def test_a_wrong_key_is_one_clear_line(evaluated: EvaluatedServer, tmp_path: Path) -> None:
    line = await failing(evaluated, tmp_path, key="sage_wrong")
    assert line.startswith(f"Error: {evaluated.evaluation.server} refuses: ")
    assert "key" in line


async def test_a_key_without_admin_rights_is_one_clear_line(evaluated: EvaluatedServer, tmp_path: Path) -> None:
    line = await failing(evaluated, tmp_path, key=evaluated.tasks_key)
    assert " refuses: " in line
    assert "admin" in line


async def test_a_missing_server_is_one_clear_line(evaluated: EvaluatedServer, tmp_path: Path) -> None:
    line = await failing(evaluated, tmp_path, url="http://127.0.0.1:9")
    assert line.startswith("Error: http://127.0.0.1:9 does not answer: ")


async def test_missing_demo_apis_are_one_clear_line(evaluated: EvaluatedServer, tmp_path: Path) -> None:
    line = await failing(evaluated, tmp_path, services="http://127.0.0.1:9")
    assert "http://127.0.0.1:9" in line
    assert await projects(evaluated) == []


@pytest.mark.slow
async def test_the_command_reports_both_passes_and_writes_results(
    evaluated: EvaluatedServer, tmp_path: Path
) -> None:
    out = tmp_path / "figures" / "all.json"
    status, out_text, err = await sage_eval(evaluated, tmp_path, json=str(out))
    assert status == 0, err
    lines = out_text.splitlines()
    assert lines[0] == f"| {SCENARIOS} scenarios, {3 * SCENARIOS} tasks | library on | library off |"
    assert lines[2] == "| TGC, % | 100.0 [15.8, 100.0] | 100.0 [15.8, 100.0] |"
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
