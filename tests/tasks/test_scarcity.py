"""A host that runs out of something fails no task: they wait, and /readyz says what is missing."""

import errno
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from uuid import UUID

import httpx
import msgspec
import pytest

from app.apis.calls.gateway import Gateway
from app.apis.calls.network import open_client
from app.apis.catalog import Catalog
from app.apis.documents.protocols import parse_document
from app.apis.mcp.calls import mcp_callers
from app.apis.mcp.connection import McpServers
from app.apis.mcp.listing import fetch_listing
from app.base.errors import NoConnectionError, SandboxError, ShortageError
from app.base.processes import shortage_of
from app.db.tables import TaskState
from app.sandbox.forked_sandbox import ForkedSandbox
from app.tasks.runner import RunnerOptions
from tests.support.every_row import every_row
from tests.support.ledger_project import LedgerProject, put_ledger, until
from tests.support.notebook_server import Notebook
from tests.support.scripted_engine import Answer, ScriptedEngine, block
from tests.support.zygote_limits import limited

OPTIONS = RunnerOptions(concurrency=2, lease_seconds=3, poll_seconds=0.05, postpone_seconds=0.3)
DONE = block("apis.supervisor.complete_task()")


class NoFiles:
    """While `taken`, this process can open nothing."""

    def __init__(self) -> None:
        self._taken = list[int]()
        self._limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def take(self) -> None:
        highest = max(map(int, os.listdir("/proc/self/fd")))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, self._limits[1]))
        with suppress(OSError):
            while True:
                self._taken.append(os.dup(0))

    def give_back(self) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, self._limits)
        while self._taken:
            os.close(self._taken.pop())


@contextmanager
def no_files() -> Iterator[NoFiles]:
    files = NoFiles()
    try:
        yield files
    finally:
        files.give_back()


class Takes(ScriptedEngine):
    """Before its answer with this number, the process has no more files."""

    def __init__(self, project: LedgerProject, files: NoFiles, number: int, *answers: str) -> None:
        super().__init__(project.tokenizer, script=lambda _, turn: self._nth(turn))
        self._files, self._number, self._all = files, number, answers
        self.took = False

    def _nth(self, turn: int) -> Answer:
        if turn == self._number and not self.took:
            self.took = True
            self._files.take()
        return self._all[turn]


async def _waits(project: LedgerProject, engine: Takes, files: NoFiles, **task: Any) -> None:
    """The task of an engine that takes the files goes on once they are back, as if nothing had happened."""
    async with project.runner(engine, OPTIONS) as runner:
        task_id = await project.submit(use_skills=False, **task)
        await until(lambda: "host" in runner.faults)
        assert runner.faults["host"].startswith("the host has run out of open files")
        assert not runner.has_room
        files.give_back()
        row = await project.ended(task_id)
        await until(lambda: "host" not in runner.faults)
    assert (row.state, row.attempt, row.failure, row.sandbox_failures) == (TaskState.DONE, 1, None, 0)


async def test_a_task_whose_session_finds_no_descriptor_waits_for_one(project: LedgerProject) -> None:
    with no_files() as files:
        await _waits(project, Takes(project, files, 0, block("apis.ledger.add_entry(text='a')"), DONE), files)
    assert len(project.ledger.entries) == 1


async def test_a_task_whose_check_finds_no_descriptor_waits_for_one(project: LedgerProject) -> None:
    check = "score = 1.0 if apis.ledger.list_entries() else 0.0"
    with no_files() as files:
        engine = Takes(project, files, 1, block("apis.ledger.add_entry(text='a')"), DONE)
        await _waits(project, engine, files, check_code=check)
    assert len(project.ledger.entries) == 1


async def test_a_call_that_finds_no_descriptor_is_made_once_there_is_one(project: LedgerProject) -> None:
    async with (
        project.ledger.listening() as server,
        httpx.AsyncClient(trust_env=False, limits=httpx.Limits(max_keepalive_connections=0)) as client,
    ):
        async with project.sessions.begin() as session:
            await put_ledger(session, project.id, project.ledger, server)
        project.client = client
        code = "try:\n    apis.ledger.add_entry(text='a')\nexcept Exception as error:\n    print('wrong', error)"
        with no_files() as files:
            await _waits(project, Takes(project, files, 1, block("1 + 1"), block(code), DONE), files)
    assert len(project.ledger.entries) == 1


@pytest.mark.parametrize("older", [False, True])
async def test_a_call_of_an_mcp_server_that_finds_no_descriptor_is_no_error_of_the_server(
    older: bool,
) -> None:
    notebook = Notebook(older=older)
    async with (
        notebook.listening() as url,
        open_client(allow_private_hosts=True, kept=0) as client,
        McpServers(client) as servers,
    ):
        app = parse_document("notes", msgspec.json.decode(await fetch_listing(servers, url, None)))
        callers = mcp_callers(servers, UUID(int=1), "", 30)
        gateway = Gateway(Catalog({"notes": app}), client, callers=callers)
        with no_files() as files:
            files.take()
            with pytest.raises(ShortageError, match="open files"):
                await gateway("notes.write", ["a"], {})
        assert await gateway("notes.write", ["a"], {}) == {"count": 1}


@pytest.mark.parametrize(("limit", "lacks"), [("nproc", "processes"), ("nofile", "open files")])
async def test_a_task_whose_session_cannot_be_forked_waits_until_it_can(
    project: LedgerProject, limit: str, lacks: str
) -> None:
    sandbox = project.sandbox
    assert isinstance(sandbox, ForkedSandbox)
    engine = ScriptedEngine(project.tokenizer, block("apis.ledger.add_entry(text='a')"), DONE)
    async with project.runner(engine, OPTIONS) as runner:
        with limited(sandbox, limit):
            task_id = await project.submit(use_skills=False)
            await until(lambda: lacks in runner.faults.get("host", ""))
        row = await project.ended(task_id)
    assert (row.state, row.attempt, row.failure, row.sandbox_failures) == (TaskState.DONE, 1, None, 0)


def _raised(number: int, *, how: str) -> BaseException:
    cause = OSError(number, os.strerror(number))
    try:
        if how == "chained":
            raise SandboxError("a session could not be started") from cause
        if how == "grouped":
            raise OSError("All connection attempts failed") from ExceptionGroup("several", [ValueError(), cause])
        if how == "hidden":
            try:
                raise cause
            except OSError:
                raise NoConnectionError("the server cannot be reached") from None
        if how == "met":
            try:
                raise cause
            except OSError:
                raise NoConnectionError("the server cannot be reached")  # noqa: B904
        raise cause
    except Exception as error:  # noqa: BLE001
        return error


_SHORTAGES = (
    (errno.EMFILE, "open files"),
    (errno.ENFILE, "open files"),
    (errno.ENOMEM, "memory"),
    (errno.EAGAIN, "processes"),
    (errno.ENOSPC, "disk space"),
    (errno.EDQUOT, "disk space"),
)


def test_a_shortage_is_told_by_the_error_that_led_to_another() -> None:
    with every_row() as row:
        for number, word in (*_SHORTAGES, (errno.ECONNREFUSED, ""), (errno.EACCES, "")):
            for how in ("alone", "chained", "grouped", "met", "hidden"):
                with row(errno.errorcode[number], how):
                    found = shortage_of(_raised(number, how=how)) or ""
                    told = bool(word) and not (number == errno.EAGAIN and how in ("met", "hidden"))
                    assert bool(found) == told
                    assert not found or word in found


def test_a_thread_and_a_name_that_the_system_has_no_room_for_are_shortages() -> None:
    assert "processes" in (shortage_of(RuntimeError("can't start new thread")) or "")
    unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    assert shortage_of(unknown) is None
    with no_files() as files:
        files.take()
        found = shortage_of(unknown)
        files.give_back()
    assert "open files" in (found or "")
