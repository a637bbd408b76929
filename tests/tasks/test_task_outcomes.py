"""Failed and empty tasks count, and each way to end says what to do about it: in REST, CLI and console."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from app.base.values import Stop, in_words, what_to_do
from app.db.tables import TaskState
from app.projects import statistics
from app.projects.statistics import TimeBucket
from app.tasks import feedback, queue
from tests.support.api_app import ApiApp
from tests.support.approving import ApprovingProject
from tests.support.console_pages import read_page
from tests.support.every_row import every_row
from tests.support.http_server import served
from tests.support.sage_command import SageCommand

CONCEPTS = Path(__file__).parents[2] / "app/manual/concepts.md"
ENDS: list[tuple[str, dict[str, Any], str]] = [
    ("solved", {"state": TaskState.DONE, "stop": Stop.COMPLETED, "score": 1.0}, "solved"),
    (
        "solved at a limit, says its check",
        {"state": TaskState.DONE, "stop": Stop.TURN_LIMIT, "score": 0.5},
        "solved",
    ),
    ("wrong", {"state": TaskState.DONE, "stop": Stop.COMPLETED, "score": 0.25}, "failed"),
    ("unscored", {"state": TaskState.DONE, "stop": Stop.COMPLETED}, "unscored"),
    ("answered in words", {"state": TaskState.DONE, "stop": Stop.NO_CODE}, "unscored"),
    ("at a limit", {"state": TaskState.DONE, "stop": Stop.TURN_LIMIT}, "failed"),
    ("in doubt", {"state": TaskState.DONE, "stop": Stop.IN_DOUBT}, "failed"),
    ("empty", {"state": TaskState.FAILED, "stop": Stop.NOTHING_DONE}, "failed"),
    ("empty, with a score", {"state": TaskState.FAILED, "stop": Stop.NOTHING_DONE, "score": 0.0}, "failed"),
    ("not executed", {"state": TaskState.FAILED, "failure": "no server"}, "failed"),
]


async def ended(api: ApiApp, instruction: str = "do it", scenario: str | None = None, **outcome: Any) -> UUID:
    task_id = await api.submit(instruction, scenario=scenario)
    async with api.sessions.begin() as session:
        await queue.claim(session, "runner", 30)
        assert await queue.finish(session, task_id, "runner", queue.TaskOutcome(**outcome))
    return task_id


async def test_each_task_counts_once_as_solved_unscored_or_failed(api: ApiApp) -> None:
    since = datetime.now(UTC) - timedelta(days=2)
    before = {"solved": 0, "unscored": 0, "failed": 0}
    with every_row() as row:
        for name, outcome, expected in ENDS:
            with row(name):
                await ended(api, **outcome)
                async with api.sessions() as session:
                    rows = await statistics.over_time(session, api.demo.id, since, TimeBucket.DAY)
                now = {each: sum(getattr(row, each) for row in rows) for each in before}
                assert {each: now[each] - before[each] for each in now if now[each] != before[each]} == {
                    expected: 1
                }
                before = now
    async with api.sessions() as session:
        assert await statistics.count_failed(session, api.demo.id) == before["failed"]
    home = await read_page(api, "/console", "admin")
    assert "Of 10 tasks that ended, 2 were solved, 2 have no score and 6 failed." in home


async def test_home_names_the_kinds_that_fail_and_what_to_do(api: ApiApp) -> None:
    failed = {"state": TaskState.FAILED, "stop": Stop.NOTHING_DONE}
    await ended(api, "note it", "notes", **failed)
    latest = await ended(api, "note it again", "notes", state=TaskState.DONE, stop=Stop.TURN_LIMIT)
    await ended(api, "write to iris", state=TaskState.DONE, stop=Stop.COMPLETED, score=1.0)
    await ended(api, "count", "counts", state=TaskState.DONE, stop=Stop.COMPLETED, score=1.0)
    await ended(api, "count", "counts", state=TaskState.DONE, stop=Stop.COMPLETED, score=1.0)
    await ended(api, "count", "counts", **failed)
    async with api.sessions() as session:
        kinds = await statistics.failing_kinds(session, api.demo.id, 5)
    assert [(each.name, each.failed, each.tasks, each.latest, each.stop) for each in kinds] == [
        ("notes", 2, 2, latest, Stop.TURN_LIMIT)
    ]
    home = await read_page(api, "/console", "admin")
    assert "2 of 2 failed" in home
    assert str(what_to_do(Stop.TURN_LIMIT, None)) in home


async def test_no_score_is_said_to_be_missing_beside_failures(api: ApiApp) -> None:
    await ended(api, state=TaskState.FAILED, stop=Stop.NOTHING_DONE)
    page = await read_page(api, "/console/feedback", "admin")
    assert "No score is missing" not in page
    assert "1 task has failed in the last 30 days" in page


async def test_each_way_to_end_says_the_same_in_rest_cli_and_console(demo: ApprovingProject) -> None:
    api, concepts = demo.api, " ".join(CONCEPTS.read_text("utf-8").split())
    async with served(api) as client:
        shell = SageCommand(api, str(client.base_url))
        with every_row() as row:
            for stop in Stop:
                with row(stop):
                    advice = what_to_do(stop, None)
                    assert advice
                    assert advice in concepts
                    state = TaskState.CANCELLED if stop is Stop.CANCELLED else TaskState.DONE
                    task_id = await ended(api, state=state, stop=stop)
                    assert (await api.client.get(f"/v1/tasks/{task_id}")).json()["what_to_do"] == advice
                    shown = await read_page(api, f"/console/tasks/{task_id}", "admin")
                    assert advice in shown.replace("&#39;", "'")
        assert str(what_to_do(stop, None)) in (await shell.run("tasks", str(task_id))).out


async def test_the_answer_is_in_the_lists_and_beside_the_question(demo: ApprovingProject) -> None:
    api = demo.api
    task_id = await ended(api, "how many mails", state=TaskState.DONE, stop=Stop.COMPLETED, answer={"mails": 3})
    empty = await ended(
        api, "which mails", state=TaskState.FAILED, stop=Stop.NOTHING_DONE, failure="nothing was done"
    )
    lists = [await read_page(api, each, "admin") for each in ("/console/tasks", "/console/feedback", "/console")]
    with every_row() as row:
        for name, text in zip(("tasks", "feedback", "home"), lists, strict=True):
            with row(name):
                assert "{&#34;mails&#34;: 3}" in text or '{"mails": 3}' in text
    assert "nothing was done" in lists[0]
    page = await read_page(api, f"/console/tasks/{task_id}", "admin")
    parts = (">Question<", ">Answer<", 'id="feedback"', 'id="facts"', 'id="timeline"')
    assert sorted(parts, key=page.index) == [*parts], "question and answer come first, and then the score"
    assert "nothing was done" in await read_page(api, f"/console/tasks/{empty}", "admin")
    async with served(api) as client:
        listed = (await SageCommand(api, str(client.base_url)).run("tasks")).out.splitlines()
    assert [line.split(maxsplit=4)[1:3] for line in listed[1:]] == [["failed", "unscored"], ["done", "unscored"]]
    assert '{"mails": 3}' in listed[2]


async def test_a_score_has_the_same_words_everywhere(api: ApiApp) -> None:
    task_id = await ended(api, state=TaskState.DONE, stop=Stop.COMPLETED, turns=1)
    for score in (0.0, 0.5, 1.0):
        async with api.sessions.begin() as session:
            await feedback.add(session, task_id, score)
        pages = [f"/console/tasks/{task_id}", "/console/tasks", "/console"]
        texts = [await read_page(api, each, "admin") for each in pages]
        async with served(api) as client:
            listed = (await SageCommand(api, str(client.base_url)).run("tasks")).out.splitlines()[1]
        assert in_words(score) in listed
        with every_row() as row:
            for page, text in zip(pages, texts, strict=True):
                with row(page, score):
                    assert in_words(score) in text
