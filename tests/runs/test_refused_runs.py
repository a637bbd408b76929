"""A run that could learn from nothing is refused when it is asked for, with what there is and what it needs."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import func, select

from app.base.errors import InvalidError
from app.base.run_settings import RunSettings
from app.base.values import ScoreSource, hosted
from app.db import tables
from app.db.database import Sessions
from app.db.tables import RunState, TaskState
from app.releases import store as releases
from app.runs import store as runs
from app.runs.experience import check_experience
from tests.support.api_app import ApiApp, open_api_app, problem
from tests.support.console_pages import post_form
from tests.support.every_row import every_row
from tests.support.hosted_project import hosted_entry
from tests.support.http_server import served
from tests.support.sage_command import SageCommand
from tests.support.served_scores import serve_scored

LITTLE = "too little to learn from: "
AT_ZERO = f"{LITTLE}0 of 3 tasks with a score were sampled at temperature 1, and the run needs 2: let"


@pytest.fixture
async def api(committed: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url) as opened:
        yield opened


async def refusal(api: ApiApp, project: tables.Project, **settings: Any) -> str:
    """Why a run of the project is refused; "" where it is not."""
    body = {"project": project.name, "settings": settings}
    answer = await api.client.post("/v1/training-runs", json=body)
    return "" if answer.status_code == 202 else str(problem(answer)["detail"])


_GREEDY = {"temperature": 0.0}
_JUDGED = {"score_source": ScoreSource.JUDGE, "judged_by": "strict"}
_CANCELLED = {"state": TaskState.CANCELLED, "stop": None}
_Served = list[tuple[tuple[float | None, ...], dict[str, Any]]]
_CASES: list[tuple[str, _Served, str]] = [
    ("logged", [], "no task ended in the window, and the run needs 2: submit"),
    ("logged", [((None, None), {})], "0 of 2 tasks that ended have a score to learn from"),
    ("logged", [((1.0, None), {})], "1 of 2 tasks that ended have a score to learn from"),
    ("logged", [((1.0, 0.0), _CANCELLED)], "0 of 2 tasks that ended have a score to learn from"),
    ("logged", [((1.0, 0.0), _JUDGED)], "0 of 2 tasks that ended have a score to learn from"),
    (
        "logged",
        [((1.0, 0.0), _GREEDY)],
        "0 of 2 tasks with a score were sampled at temperature 1",
    ),
    ("logged", [((1.0,), {}), ((0.0,), {"temperature": 0.7})], "1 of 2 tasks with a score were sampled"),
    ("logged", [((1.0, 0.0), {}), ((1.0,) * 3, _GREEDY)], ""),
    ("sft", [((0.5, None), {})], "0 of 2 tasks that ended were solved, and the run needs 1: wait"),
    ("sft", [((1.0,), _GREEDY)], ""),
]


async def test_a_run_on_served_tasks_says_how_many_there_are_and_how_many_it_needs(api: ApiApp) -> None:
    with every_row() as row:
        for number, (kind, served_tasks, expected) in enumerate(_CASES):
            project = await api.project(f"project-{number}")
            async with api.sessions.begin() as session:
                for scores, columns in served_tasks:
                    await serve_scored(session, project.id, *scores, **columns)
            with row(kind, served_tasks):
                found = await refusal(api, project, kind=kind)
                assert found.startswith(LITTLE + expected) if expected else found == ""
                async with api.sessions() as session:
                    queued = (await session.scalars(select(tables.TrainingRun.project_id))).all()
                assert (project.id in queued) is (expected == "")


async def test_tasks_that_the_serving_weights_have_learned_from_are_not_counted_again(api: ApiApp) -> None:
    async with api.sessions.begin() as session:
        await serve_scored(session, api.demo.id, 1.0, 0.0)
        run = await runs.create(session, api.demo.id, RunSettings())
        run.state, run.started_at = RunState.DONE, await session.scalar(select(func.clock_timestamp()))
        release = await releases.propose(session, api.demo.id, "f00d", run.id)
        await releases.activate(session, release.id)
    found = await refusal(api, api.demo)
    assert found.startswith(
        f"{LITTLE}0 of 2 tasks with a score are new to the weights that serve, and the run needs 2"
    )
    assert await refusal(api, api.demo, since="2020-01-01T00:00:00Z") == ""


async def test_tasks_that_a_judge_may_score_count(api: ApiApp) -> None:
    async with api.sessions.begin() as session:
        await serve_scored(session, api.demo.id, None, None)
        await check_experience(session, api.demo, RunSettings(), judged=True)
        with pytest.raises(InvalidError, match="0 of 2 tasks that ended have a score to learn from"):
            await check_experience(session, api.demo, RunSettings(), judged=False)


async def test_only_the_window_that_a_run_names_counts(api: ApiApp) -> None:
    async with api.sessions.begin() as session:
        await serve_scored(session, api.demo.id, 1.0, 0.0)
    assert (await refusal(api, api.demo, until="2020-01-01T00:00:00Z")).startswith(f"{LITTLE}no task ended")
    assert await refusal(api, api.demo) == ""


async def test_runs_that_learn_from_elsewhere_need_no_served_task(api: ApiApp) -> None:
    assert await refusal(api, api.demo, kind="rollout", environment="office") == ""
    assert await refusal(api, api.demo, kind="exam", environment="office") == ""


async def test_the_command_and_the_console_refuse_it_with_the_same_words(api: ApiApp) -> None:
    async with api.sessions.begin() as session:
        await serve_scored(session, api.demo.id, 1.0, 0.0, 1.0, temperature=0.0)
    async with served(api) as client:
        ended = await SageCommand(api, str(client.base_url)).run("train")
    assert (ended.code, ended.out) == (6, "")
    assert AT_ZERO in ended.err
    text = await post_form(api, "/console/runs/new", {"kind": "logged"}, "admin", status=400)
    assert AT_ZERO in text


async def test_tasks_of_a_hosted_model_are_for_runs_that_imitate(api: ApiApp) -> None:
    project = await api.project("hosted")
    entry = await hosted_entry(api.sessions, project.id)
    async with api.sessions.begin() as session:
        release = await releases.propose(session, project.id, hosted(entry.id))
        await releases.activate(session, release.id)
        await serve_scored(session, project.id, 1.0, 0.0)
    found = await refusal(api, project, kind="logged")
    assert found.startswith(
        f"{LITTLE}0 of 2 tasks with a score were done by the model servers' model, and the run"
    )
    assert "queue a run of kind sft" in found
    assert await refusal(api, project, kind="sft") == ""
