"""Errors and tracebacks in the log may quote any value; they quote no secret of the task."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog
from sqlalchemy.exc import OperationalError

from app.base.log import configure_logging
from app.tasks.shadows import ShadowRunner
from tests.support.ledger_project import LedgerProject, until
from tests.support.scripted_engine import Answer, ScriptedEngine
from tests.tasks.test_shadow import DONE, READ, ask, propose, served

PASSWORD = "tr0ub4dor-and-3"
VARIABLES = {"password": PASSWORD}
ERRORS = {
    "a task failed on an internal error": ValueError(f"{PASSWORD} is odd"),
    "a task was dropped, it will be resumed": OperationalError("SELECT", {}, Exception(f"{PASSWORD} is cut off")),
}


class BreakingEngine(ScriptedEngine):
    """Raises an error because of another one that quotes the same secret in another spelling."""

    def __init__(self, project: LedgerProject, error: Exception) -> None:
        super().__init__(project.tokenizer)
        self._error = error

    async def _next(self, prompt: str) -> Answer:  # noqa: ARG002  it breaks on any
        raise self._error from KeyError(PASSWORD.upper())


@pytest.fixture
def logged(capfd: pytest.CaptureFixture[str]) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """What a server has logged so far."""
    before, lines = structlog.get_config(), list[str]()
    configure_logging("info")

    def read() -> list[dict[str, Any]]:
        lines.extend(line for line in capfd.readouterr().out.splitlines() if line.startswith("{"))
        return [json.loads(line) for line in lines]

    yield read
    structlog.configure(**before)


def _is_there(read: Callable[[], list[dict[str, Any]]], event: str) -> Callable[[], bool]:
    return lambda: any(line["event"] == event for line in read())


@pytest.mark.parametrize("event", ERRORS)
async def test_the_error_of_a_task_is_logged_without_its_secrets(
    project: LedgerProject, logged: Callable[[], list[dict[str, Any]]], event: str
) -> None:
    async with project.runner(BreakingEngine(project, ERRORS[event])):
        task_id = await project.submit("look", variables=VARIABLES)
        await until(_is_there(logged, event))
    [line, *_] = [each for each in logged() if each["event"] == event]
    assert line["task"] == str(task_id)
    assert line["level"] == "error"
    assert f"{type(ERRORS[event]).__name__}" in line["exception"], "the traceback is there"
    assert line["exception"].count("***") == 2
    assert PASSWORD not in json.dumps(logged()).lower()


async def test_the_error_of_a_shadow_is_logged_without_its_secrets(
    project: LedgerProject, logged: Callable[[], list[dict[str, Any]]]
) -> None:
    await served(project, READ, DONE, variables=VARIABLES)
    await ask(project, await propose(project), 1)
    executor = project.executor(BreakingEngine(project, ValueError(PASSWORD)))
    event = "a shadow failed on an internal error"
    async with ShadowRunner(project.sessions, executor, lambda: True, pause=0.1):
        await until(_is_there(logged, event))
    assert PASSWORD not in json.dumps(logged()).lower()
