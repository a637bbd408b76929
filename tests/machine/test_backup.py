"""`sage backup` and `sage restore`: what is restored is what there was."""

import asyncio
import gzip
import io
import os
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import NullPool, create_engine, make_url, text

from app.base.encryption import KeyRing, new_key, write_key_file
from app.base.errors import ConflictError, DatabaseError, InvalidError, StorageError
from app.base.files import sha256_of
from app.base.settings import Settings
from app.base.values import hosted
from app.db import migrate as table_copy
from app.db import results
from app.db.database import open_database
from app.db.migrate import migrate
from app.db.tables import Adapter, Dataset
from app.machine.backup import (
    BackupManifest,
    back_up,
    pack_rows,
    read_backup,
    restore,
    unpack_rows,
    verify_archive,
)
from app.projects import keys, secrets
from app.projects import store as projects
from app.releases import store as releases
from app.releases.adapter_store import AdapterStore
from app.tasks import store as tasks
from tests.support import postgres
from tests.support.next_version import install_next_version
from tests.support.rows import trajectory_of, turn_of
from tests.support.small_disk import small_disk
from tests.support.tiny_adapter import make_adapter
from tests.support.tiny_model import make_model_dir

AWKWARD = "tab\there, \\N and \\. and a\nnew line, ü 🙂"


@pytest.fixture
def target_url(server_url: str) -> Iterator[str]:
    yield from postgres.empty_database(server_url)


@pytest.fixture
def target(tmp_path: Path, target_url: str) -> Settings:
    return Settings(data_dir=tmp_path / "restored", database_url=target_url)


@pytest.fixture
async def source(tmp_path: Path, empty_database_url: str) -> Settings:
    """A deployment with a task, an adapter, a dataset and a secret."""
    migrate(empty_database_url)
    settings = Settings(data_dir=tmp_path / "data", database_url=empty_database_url)
    write_key_file(settings.data_dir / "secret.key", [new_key()], replace=False)
    made = make_adapter(make_model_dir(tmp_path / "model"), tmp_path / "made", seed=1)
    name = await AdapterStore(settings.adapters_dir).import_adapter(made)
    dataset = UUID(int=5)
    settings.datasets_dir.mkdir()
    (settings.datasets_dir / f"{dataset}.jsonl").write_text('{"messages": []}\n')
    digest = sha256_of(settings.datasets_dir / f"{dataset}.jsonl")
    async with (
        open_database(empty_database_url, keys=KeyRing.open(settings)) as database,
        database.sessions.begin() as session,
    ):
        demo = await projects.create(session, "demo")
        await keys.create(session, "admin", ["admin"])
        await secrets.put(session, demo.id, "password", "correct horse")
        task = await tasks.submit(session, demo.id, tasks.NewTask(instruction=AWKWARD, variables={"a": AWKWARD}))
        await results.save(session, demo.id, trajectory_of(task, turn_of(AWKWARD)))
        session.add(Adapter(hash=name, base="seed", rank=4))
        session.add(
            Dataset(id=dataset, project_id=demo.id, name="chats", digest=digest, bytes=17, conversations=1)
        )
        await releases.propose(session, demo.id, name)
        await releases.propose(session, demo.id, hosted(UUID(int=7)))  # which has no files
    return settings


async def _save(settings: Settings, tmp_path: Path) -> tuple[Path, BackupManifest]:
    path = tmp_path / "sage.tar"
    return path, await asyncio.to_thread(back_up, settings.database_url, settings, path)


async def _restore(path: Path, settings: Settings, *, replace: bool = False) -> None:
    def work() -> None:
        manifest = read_backup(path, settings, replace=replace)
        restore(settings.database_url, path, manifest, settings, replace=replace)

    await asyncio.to_thread(work)


def _rows(url: str) -> dict[str, list[str]]:
    """All rows of all tables, as text."""
    with create_engine(url, poolclass=NullPool).connect() as connection:
        names = connection.scalars(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")).all()
        return {
            name: sorted(connection.scalars(text(f"SELECT each::text FROM {name} each")).all()) for name in names
        }


def _files(directory: Path) -> dict[str, bytes]:
    kept = [path for name in ("adapters", "datasets") for path in (directory / name).rglob("*")]
    kept.append(directory / "secret.key")
    return {str(path.relative_to(directory)): path.read_bytes() for path in kept if path.is_file()}


def _listed(directory: Path) -> list[Path]:
    return list(directory.iterdir())


async def test_a_restored_deployment_has_every_row_and_file(
    source: Settings, target: Settings, tmp_path: Path
) -> None:
    path, manifest = await _save(source, tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600, "it contains the key"
    assert (manifest.key, manifest.missing, manifest.rows["tasks"]) == ("file", [], 1)
    await _restore(path, target)
    assert _rows(target.database_url) == _rows(source.database_url)
    assert len(_files(source.data_dir)) == 4
    assert _files(target.data_dir) == _files(source.data_dir)
    async with (
        open_database(target.database_url, keys=KeyRing.open(target)) as database,
        database.sessions() as session,
    ):
        demo = await projects.by_name(session, "demo")
        assert await secrets.use(session, demo.id, "password") == "correct horse"
        page = await tasks.page(session, tasks.TaskFilter())
        assert page.items[0].instruction == AWKWARD


async def test_rows_may_refer_to_later_ones_of_their_table(
    source: Settings, target: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An original that was changed after it was done again stands behind its rerun, maybe in another part."""
    async with open_database(source.database_url) as database, database.sessions.begin() as session:
        demo = await projects.by_name(session, "demo")
        original = await tasks.submit(session, demo.id, tasks.NewTask(instruction="a"))
        again = tasks.NewTask(instruction="a", rerun_of=original.id)
        await tasks.submit(session, demo.id, again)
    with create_engine(source.database_url, poolclass=NullPool).begin() as connection:
        moved = text("UPDATE tasks SET priority = priority + 1 WHERE id = :id")
        connection.execute(moved, {"id": original.id})
    monkeypatch.setattr(table_copy, "_CHUNK", 1)
    path, _ = await _save(source, tmp_path)
    await _restore(path, target)
    assert _rows(target.database_url) == _rows(source.database_url)
    with create_engine(target.database_url, poolclass=NullPool).begin() as connection:
        connection.execute(text("DELETE FROM tasks WHERE id = :id"), {"id": original.id})
        assert connection.scalar(text("SELECT count(*) FROM tasks WHERE rerun_of IS NOT NULL")) == 0


async def test_a_backup_is_of_one_moment_while_the_server_writes(
    source: Settings, target: Settings, tmp_path: Path
) -> None:
    done, engine = threading.Event(), create_engine(source.database_url, poolclass=NullPool)

    def write() -> None:
        """Each transaction adds a project, and the release that every project has."""
        number = 0
        while not done.is_set():
            number += 1
            with engine.begin() as connection:
                values = {"name": f"p{number}"}
                connection.execute(
                    text("INSERT INTO projects (id, name, skill_rev) VALUES (gen_random_uuid(), :name, 0)"), values
                )
                connection.execute(_RELEASE, values)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        path, _ = await _save(source, tmp_path)
    finally:
        done.set()
        writer.join()
    await _restore(path, target)
    rows = _rows(target.database_url)
    assert len(rows["releases"]) == len(rows["projects"]) + 2, "two more of the project demo, and one of each"


_RELEASE = text(
    "INSERT INTO releases (id, project_id, number, state, model)"
    " SELECT gen_random_uuid(), id, 1, 'active', 'base' FROM projects WHERE name = :name"
)


async def test_a_damaged_or_truncated_backup_changes_nothing(
    source: Settings, target: Settings, tmp_path: Path
) -> None:
    path, manifest = await _save(source, tmp_path)
    good = path.read_bytes()
    with tarfile.open(path) as tar:
        places = [member.offset_data + member.size // 2 for member in tar.getmembers() if member.size]
    assert len(places) == len(manifest.members) + 2
    for place in places:
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        with pytest.raises(InvalidError):
            await _restore(path, target)
    for length in (0, 100, len(good) // 2, places[-1]):
        path.write_bytes(good[:length])
        with pytest.raises(InvalidError):
            await _restore(path, target)
    assert _rows(target.database_url) == {}
    assert not target.data_dir.exists()


def test_rows_that_unpack_to_more_than_was_packed_are_refused() -> None:
    for rows in (b"", b"one\ttwo\n", b"\\N" * (5 << 20), os.urandom(3 << 20)):
        assert b"".join(unpack_rows(io.BytesIO(pack_rows(rows)))) == rows
    bomb = gzip.compress(bytes(64 << 20), 9)
    small = gzip.compress(b"one\n")
    hostile = {"too much": bomb, "cut off": small[:-9], "more than": small * 2, "damaged": b"no"}
    for reason, packed in hostile.items():
        with pytest.raises(InvalidError, match=reason):
            list(unpack_rows(io.BytesIO(packed)))


def test_a_member_with_holes_is_no_part_of_a_backup(tmp_path: Path) -> None:
    hole = tarfile.TarInfo("datasets/00000000-0000-0000-0000-000000000005.jsonl")
    hole.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(1 << 50)}
    content = b"0\n".ljust(512, b"\0")
    hole.size = len(content)
    with tarfile.open(tmp_path / "holes.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(hole, io.BytesIO(content))
    with pytest.raises(InvalidError, match="is no plain file"):
        verify_archive(tmp_path / "holes.tar")


async def _left(url: str) -> None:
    """Wait until the connections that were closed have ended on the server, too."""
    own = make_url(url).set(database="postgres")
    others = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = :name AND backend_type = 'client backend'"
    )
    engine = create_engine(own, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        while connection.scalar(others, {"name": make_url(url).database}):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_database_or_data_directory_in_use_is_refused_unless_replaced(
    source: Settings, target: Settings, tmp_path: Path
) -> None:
    path, _ = await _save(source, tmp_path)
    migrate(target.database_url)
    engine = create_engine(target.database_url, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(
            text("INSERT INTO projects (id, name, skill_rev) VALUES (gen_random_uuid(), 'mine', 0)")
        )
    before = _rows(target.database_url)
    await _left(target.database_url)
    with pytest.raises(ConflictError, match=r"not empty \(projects has rows\)"):
        await _restore(path, target)
    write_key_file(target.data_dir / "secret.key", [mine := new_key()], replace=False)
    with pytest.raises(ConflictError, match=r"secret.key exists"):
        await _restore(path, target)
    await _left(target.database_url)
    with engine.connect() as connection:
        connection.execute(text("SELECT 1"))
        with pytest.raises(ConflictError, match="1 other connections use the database"):
            await _restore(path, target, replace=True)
    assert _rows(target.database_url) == before
    await _left(target.database_url)
    await _restore(path, target, replace=True)
    assert _rows(target.database_url) == _rows(source.database_url)
    own = (source.data_dir / "secret.key").read_text().split()
    assert (target.data_dir / "secret.key").read_text().split() == [*own, mine]


async def test_a_database_of_something_else_is_never_replaced(
    source: Settings, target: Settings, tmp_path: Path
) -> None:
    path, _ = await _save(source, tmp_path)
    with create_engine(target.database_url, poolclass=NullPool).begin() as connection:
        connection.execute(text("CREATE TABLE invoices (id int)"))
    await _left(target.database_url)
    with pytest.raises(ConflictError, match="other tables"):
        await _restore(path, target, replace=True)
    assert _rows(target.database_url) == {"invoices": []}


async def test_the_manifest_says_where_the_key_is_and_what_is_missing(source: Settings, tmp_path: Path) -> None:
    settings = Settings(data_dir=source.data_dir, database_url=source.database_url, secret_key="x" * 40)
    for path in [*source.adapters_dir.glob("*/*.safetensors"), *source.datasets_dir.iterdir()]:
        path.unlink()
    path, manifest = await _save(settings, tmp_path)
    assert manifest.key == "environment"
    assert [name.split("/")[0] for name in manifest.missing] == ["adapters", "datasets"]
    assert {name.split("/")[0] for name in manifest.members} == {"tables"}
    assert verify_archive(path) == manifest


async def test_a_backup_of_an_earlier_schema_is_migrated(
    source: Settings, target: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path, manifest = await _save(source, tmp_path)
    install_next_version(monkeypatch, tmp_path)
    await _restore(path, target)
    with create_engine(target.database_url, poolclass=NullPool).begin() as connection:
        assert connection.scalar(text("SELECT version_num FROM alembic_version")) != manifest.revision
        names = connection.execute(text("SELECT name, motto FROM projects")).all()
    assert names
    assert all(motto == f"{name} first" for name, motto in names)


async def test_a_database_or_backup_of_before_the_first_release_is_refused(
    source: Settings, target: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    former = "UPDATE alembic_version SET version_num = '0071'"
    with create_engine(source.database_url, poolclass=NullPool).begin() as connection:
        connection.execute(text(former))
    with pytest.raises(DatabaseError, match="the database has schema 0071"):
        await _save(source, tmp_path)
    with monkeypatch.context() as patch:  # as the version that made it did
        patch.setattr(table_copy, "refuse_former", lambda *_: None)
        path, _ = await _save(source, tmp_path)
    content = path.read_bytes()
    with pytest.raises(DatabaseError, match="the backup has schema 0071"):
        await _restore(path, target)
    assert path.read_bytes() == content


async def test_there_is_no_backup_of_a_database_without_tables(empty_database_url: str, tmp_path: Path) -> None:
    with pytest.raises(DatabaseError, match="nothing to back up"):
        await _save(Settings(data_dir=tmp_path, database_url=empty_database_url), tmp_path)
    assert _listed(tmp_path) == []


async def test_a_full_disk_leaves_no_half_backup_and_no_backup_is_overwritten(
    source: Settings, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with small_disk(10_000), pytest.raises(StorageError, match="cannot be written"):
        await _save(source, out)
    assert _listed(out) == []
    path, _ = await _save(source, tmp_path)
    with pytest.raises(ConflictError, match="exists"):
        await _save(source, tmp_path)
    verify_archive(path)


async def test_numbers_continue_after_the_restored_ones(
    source: Settings, target: Settings, tmp_path: Path
) -> None:
    with create_engine(source.database_url, poolclass=NullPool).begin() as connection:
        for name in ("r1", "r2"):
            connection.execute(_RUNNER, {"id": name})
    path, _ = await _save(source, tmp_path)
    await _restore(path, target)
    with create_engine(target.database_url, poolclass=NullPool).begin() as connection:
        assert connection.scalar(_RUNNER, {"id": "r3"}) == 3


_RUNNER = text(
    "INSERT INTO runners (id, host, pid, pid_space, in_flight, capacity, memory_bytes, sandbox)"
    " VALUES (:id, 'h', 1, 's', 0, 1, 1, 'forked') RETURNING number"
)
