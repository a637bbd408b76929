"""Fixtures that many files share: real databases, sandboxes and projects, and how a run is ordered.

Each pytest-xdist worker has a database of its own. Most tests run inside a transaction that is rolled back.
Fixtures import what they need themselves, so that a file of plain functions starts within a second or two.
"""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import structlog
from xdist.scheduler import LoadFileScheduling

from tests.support import warm_processes

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

    from app.db.database import Database, Sessions
    from app.sandbox.forked_sandbox import ForkedSandbox
    from tests.support.approving import ApprovingProject
    from tests.support.ledger_project import LedgerProject


def pytest_configure(config: pytest.Config) -> None:
    """Whatever the defaults are: processes that tests start pull no model, and withhold no skill by chance.

    Each computes in one thread, since as many run at once as there are cores. What servers of this process log is
    not taken for the output of a command that runs in a thread beside them.
    """
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["SAGE_MODEL"] = "seed"
    os.environ["SAGE_SKILLS_WITHHELD"] = "0"
    warm_processes.install()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.__stderr__))
    _share_authorities()
    _own_directory(config)
    gc.disable()  # until all tests are imported: it would go through them again and again


def _share_authorities() -> None:
    """Clients read the public authorities once: hundreds of them are opened, 15 ms each."""
    import httpx._transports.default as transports

    transports.create_ssl_context = cache(transports.create_ssl_context)  # type: ignore[attr-defined]


def _own_directory(config: pytest.Config) -> None:
    """Runs at the same time share none: as one begins, pytest closes theirs to the user of embedded databases."""
    if "PYTEST_XDIST_WORKER" not in os.environ and "PYTEST_DEBUG_TEMPROOT" not in os.environ:
        os.environ["PYTEST_DEBUG_TEMPROOT"] = directory = tempfile.mkdtemp(prefix="tests-")
        config.add_cleanup(partial(shutil.rmtree, directory, ignore_errors=True))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, so that no worker is left with one when the others have ended; without
    workers, tests run in the order in which they were named.

    Tests that need a GPU are skipped where there is none.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        items.sort(key=lambda item: item.path not in slow)
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if gpu and not _has_gpu():
        for item in gpu:
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> FilesTogether:
    return FilesTogether(config, log)


class FilesTogether(LoadFileScheduling):  # type: ignore[misc]
    """Give each worker whole files, and the tests of the console to one: they share a browser and two servers."""

    def _split_scope(self, nodeid: str) -> str:
        return "tests/web/console" if nodeid.startswith("tests/web/console/") else super()._split_scope(nodeid)


@pytest.hookimpl(tryfirst=True)  # before fixtures
def pytest_runtest_setup(item: pytest.Item) -> None:
    """CI has an end, and hosts differ by ten times: what it has no time for says so."""
    if item.get_closest_marker("slow") and time.time() > float(os.environ.get("SLOW_TESTS_END", "inf")):
        pytest.skip("no time is left for slow tests on this host")


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the server after the run."""
    if config.getoption("collectonly") or hasattr(config, "workerinput"):
        return
    from tests.support import postgres

    postgres.stop()


@pytest.fixture(scope="session")
def server_url() -> str:
    """A PostgreSQL server in which tests may create databases."""
    from tests.support import postgres

    return postgres.start()


@pytest.fixture
def empty_database_url(server_url: str) -> Iterator[str]:
    """A database without a schema."""
    from tests.support import postgres

    yield from postgres.empty_database(server_url)


@pytest.fixture(scope="session")
def database_url(server_url: str) -> Iterator[str]:
    """A database with the schema, made by the same migrations as in production."""
    from tests.support import postgres

    yield from postgres.migrated_database(server_url)


@pytest.fixture(scope="session", autouse=True)
async def _readers() -> AsyncIterator[None]:
    yield
    if "tests.support.shared_reader" in sys.modules:
        from tests.support.shared_reader import close_shared_reader

        await close_shared_reader()


@pytest.fixture(scope="session")
async def unlimited(database_url: str) -> AsyncIterator[Database]:
    """The database, without a limit on the time that a transaction may be idle."""
    from app.db.database import open_database

    async with open_database(database_url, transaction_seconds=0) as database:
        yield database


@pytest.fixture
async def sessions(unlimited: Database) -> AsyncIterator[Sessions]:
    """Sessions whose commits only release savepoints. They share one connection: no two at once."""
    from sqlalchemy.ext.asyncio import async_sessionmaker

    from app.db.database import session_info
    from tests.support.encryption_keys import TEST_KEYS

    async with unlimited.engine.connect() as connection:
        outer = await connection.begin()
        yield async_sessionmaker(
            connection,
            join_transaction_mode="create_savepoint",
            expire_on_commit=False,
            info=session_info(TEST_KEYS),
        )
        await outer.rollback()


@pytest.fixture
async def committed(database_url: str) -> AsyncIterator[Sessions]:
    """Sessions with own connections, for tests of locks, races and notifications; tables are emptied after."""
    from tests.support.emptied_database import emptied_database

    async with emptied_database(database_url) as database:
        yield database.sessions


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that is trained in one thread."""
    import torch

    from tests.support.tiny_model import make_model_dir

    torch.set_num_threads(1)
    return make_model_dir(tmp_path_factory.mktemp("tiny"), spread=0.05)


@pytest.fixture(scope="module")
async def sandbox() -> AsyncIterator[ForkedSandbox]:
    from app.sandbox.forked_sandbox import ForkedSandbox

    async with ForkedSandbox() as started:
        yield started


@pytest.fixture(scope="module")
async def bare_sandbox() -> AsyncIterator[ForkedSandbox]:
    """Without bubblewrap, which starts more slowly."""
    from app.sandbox.forked_sandbox import ForkedSandbox

    async with ForkedSandbox(bwrap=False) as started:
        yield started


@pytest.fixture
async def project(
    committed: Sessions, bare_sandbox: ForkedSandbox, tmp_path: Path
) -> AsyncIterator[LedgerProject]:
    """A project with one API, and what a runner needs to execute its tasks."""
    from tests.support.ledger import Ledger
    from tests.support.ledger_project import open_ledger_project
    from tests.support.scripted_engine import byte_tokenizer

    ledger = Ledger()
    async with ledger.client() as client:
        yield await open_ledger_project(committed, bare_sandbox, byte_tokenizer(tmp_path), ledger, client)


@pytest.fixture
async def demo(
    committed: Sessions, database_url: str, bare_sandbox: ForkedSandbox, tmp_path: Path
) -> AsyncIterator[ApprovingProject]:
    """The project `demo`, whose calls can wait for approval, with its REST API."""
    from tests.support.approving import open_approving_project

    async with open_approving_project(committed, database_url, bare_sandbox, tmp_path) as opened:
        yield opened


@pytest.fixture
async def session(sessions: Sessions) -> AsyncIterator[AsyncSession]:
    async with sessions() as opened:
        yield opened
