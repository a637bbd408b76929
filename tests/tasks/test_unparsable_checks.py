"""Checks of tasks are parsed beside other requests, and before a transaction begins."""

import time
from typing import Any

import pytest

from app.base.errors import DatabaseError
from tests.support.api_app import ApiApp, problem
from tests.support.event_loop import longest_stall
from tests.support.failing_table import failing_table


@pytest.mark.parametrize(
    ("path", "table", "body"),
    [
        ("tasks", "projects", {"tasks": [{"instruction": "tidy up", "check": "score ="}]}),
        ("exams", "projects", {"name": "mine", "tasks": [{"instruction": "tidy up", "check": "score ="}]}),
        ("tasks/{task}/rerun", "tasks", {"check": "score ="}),
    ],
)
async def test_a_check_that_is_not_python_is_refused_before_the_first_query(
    api: ApiApp, path: str, table: str, body: dict[str, Any]
) -> None:
    task = await api.submit()
    with failing_table(api.sessions, table, DatabaseError("it is read")):
        answer = await api.client.post(f"/v1/{path.format(task=task)}", json=body)
    assert (answer.status_code, problem(answer)["error"]) == (400, "InvalidError")
    assert "check: not valid Python, line 1" in answer.text


@pytest.mark.slow
@pytest.mark.parametrize(("path", "more"), [("tasks", {}), ("exams", {"name": "mine"})])
async def test_others_are_served_while_the_checks_of_many_tasks_are_parsed(
    api: ApiApp, path: str, more: dict[str, str]
) -> None:
    checks = [f"score = {number}\n" + "a = 1\n" * 8_000 for number in range(40)]
    sent = [{"instruction": "tidy up", "check": check} for check in checks]
    before = time.perf_counter()
    async with longest_stall() as stalled:
        answer = await api.client.post(f"/v1/{path}", json={**more, "tasks": sent})
    assert answer.is_success
    assert stalled[0] < (time.perf_counter() - before) / 2  # parsed here, nearly all of it
