"""A real PostgreSQL with the real migrations: from TEST_DATABASE_URL, else one of our own for this run.

Each pytest-xdist worker has a database of its own. Most tests run inside a transaction that is rolled back.
"""

import gc
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import torch
from sqlalchemy import NullPool, create_engine, make_url, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from xdist.scheduler import LoadFileScheduling

from app.db import embedded_postgres
from app.db.database import Sessions, full_url, open_database, session_info
from app.db.migrate import migrate
from app.model_catalog import SEED
from app.sandbox.forked_sandbox import ForkedSandbox
from tests.approving import ApprovingProject, open_approving_project
from tests.emptied_database import emptied_database
from tests.encryption_keys import TEST_KEYS
from tests.ledger import Ledger
from tests.ledger_project import LedgerProject, open_ledger_project
from tests.scripted_engine import byte_tokenizer

_RUN = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()  # the process all workers come from
_DIRECTORY = Path(tempfile.gettempdir()) / f"sage-test-{_RUN}" / "postgres"  # a short path: it holds a socket


def pytest_configure() -> None:
    """Whatever the defaults are: processes that tests start pull no model, and withhold no skill by chance."""
    os.environ["SAGE_MODEL"] = SEED
    os.environ["SAGE_SKILLS_WITHHELD"] = "0"
    gc.disable()  # until all tests are imported: it would go through them again and again


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, so that no worker is left with one when the others have ended.

    Tests that need a GPU are skipped where there is none.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a GPU"))


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> "FilesTogether":
    return FilesTogether(config, log)


class FilesTogether(LoadFileScheduling):  # type: ignore[misc]
    """Give each worker whole files, and the tests of the console to one: they share a browser and two servers."""

    def _split_scope(self, nodeid: str) -> str:
        return "tests/console" if nodeid.startswith("tests/console/") else super()._split_scope(nodeid)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Stop the server after the run."""
    if os.getpid() == _RUN:
        embedded_postgres.stop(_DIRECTORY)
        shutil.rmtree(_DIRECTORY.parent, ignore_errors=True)


@pytest.fixture(scope="session")
def server_url() -> str:
    """A PostgreSQL server in which tests may create databases."""
    given = os.environ.get("TEST_DATABASE_URL")
    if given:
        return full_url(given)
    url = embedded_postgres.start(_DIRECTORY)
    _execute(url, "ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()")  # durability is not needed
    return url


@pytest.fixture
def empty_database_url(server_url: str) -> Iterator[str]:
    """A database without a schema."""
    yield from new_database(server_url)


@pytest.fixture(scope="session")
def database_url(server_url: str) -> Iterator[str]:
    """A new database, created by the same migrations as in production."""
    for url in new_database(server_url):
        migrate(url)
        yield url


@pytest.fixture
async def sessions(database_url: str) -> AsyncIterator[Sessions]:
    """Sessions whose commits only release savepoints. They share one connection: no two at once."""
    unlimited = open_database(database_url, transaction_seconds=0)
    async with unlimited as database, database.engine.connect() as connection:
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
    async with emptied_database(database_url) as database:
        yield database.sessions


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that is trained in one thread."""
    import torch  # noqa: PLC0415  most tests need none

    from tests.tiny_model import make_model_dir  # noqa: PLC0415

    torch.set_num_threads(1)
    return make_model_dir(tmp_path_factory.mktemp("tiny"), spread=0.05)


@pytest.fixture(scope="module")
async def sandbox() -> AsyncIterator[ForkedSandbox]:
    async with ForkedSandbox() as started:
        yield started


@pytest.fixture(scope="module")
async def bare_sandbox() -> AsyncIterator[ForkedSandbox]:
    """Without bubblewrap, which starts more slowly."""
    async with ForkedSandbox(bwrap=False) as started:
        yield started


@pytest.fixture
async def project(
    committed: Sessions, bare_sandbox: ForkedSandbox, tmp_path: Path
) -> AsyncIterator[LedgerProject]:
    """A project with one API, and what a runner needs to execute its tasks."""
    ledger = Ledger()
    async with ledger.client() as client:
        yield await open_ledger_project(committed, bare_sandbox, byte_tokenizer(tmp_path), ledger, client)


@pytest.fixture
async def demo(
    committed: Sessions, database_url: str, bare_sandbox: ForkedSandbox, tmp_path: Path
) -> AsyncIterator[ApprovingProject]:
    """The project `demo`, whose calls can wait for approval, with its REST API."""
    async with open_approving_project(committed, database_url, bare_sandbox, tmp_path) as opened:
        yield opened


@pytest.fixture
async def session(sessions: Sessions) -> AsyncIterator[AsyncSession]:
    async with sessions() as opened:
        yield opened


def new_database(server_url: str) -> Iterator[str]:
    name = f"test_{uuid4().hex[:12]}"
    _execute(server_url, f"CREATE DATABASE {name}")
    yield make_url(server_url).set(database=name).render_as_string(hide_password=False)
    _execute(server_url, f"DROP DATABASE {name} WITH (FORCE)")


def _execute(url: str, *statements: str) -> None:
    engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in statements:
            connection.execute(text(statement))
