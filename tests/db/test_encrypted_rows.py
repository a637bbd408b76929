"""Secrets in the database: readable with the right key alone, and rotated."""

from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from sqlalchemy import NullPool, create_engine, select, text

from app.apis import store as apis
from app.base.encryption import KEY_FILE, KeyRing, key_id_of, keys_in
from app.base.errors import InvalidError, SettingError
from app.base.settings import Settings
from app.base.values import Call
from app.db import tables
from app.db.database import Database, open_database
from app.db.encrypted_rows import prepare_secrets, rotate_keys
from app.db.migrate import migrate
from app.projects import secrets, webhooks
from app.projects import store as projects
from app.tasks import calls, turns
from tests.support.rows import claimed_task, turn_of
from tests.support.webhook_receiver import SECRET
from tests.tasks.test_secrets_stay_secret import dump

OLD, NEW = "o" * 32, "n" * 32


async def _store(database: Database, *, tokens: int = 1) -> UUID:
    async with database.sessions.begin() as session:
        project = await projects.create(session, "demo")
        for number in range(tokens):
            name, token = f"api{number:03d}", f"token-{number}"
            await apis.put(session, project.id, name, source="upload", document={}, digest="d", token=token)
        await secrets.put(session, project.id, "mail", "hunter2")
        return project.id


async def _read(database: Database, project_id: UUID) -> list[str | None]:
    async with database.sessions.begin() as session:
        tokens = [apis.token_of(session, row) for row in await apis.of_project(session, project_id)]
        return [*tokens, await secrets.use(session, project_id, "mail")]


def _stored(url: str) -> list[str]:
    """All tokens and secrets, as a dump would show them."""
    with create_engine(url, poolclass=NullPool).connect() as connection:
        query = "SELECT token FROM apis UNION ALL SELECT value FROM secrets"
        return [each for each in connection.scalars(text(query)) if each is not None]


async def test_a_wrong_key_is_named_with_the_api_and_the_setting(empty_database_url: str) -> None:
    migrate(empty_database_url)
    async with open_database(empty_database_url, keys=KeyRing([OLD])) as database:
        project_id = await _store(database)
        async with database.sessions.begin() as session:
            await apis.put(session, project_id, "free", source="upload", document={}, digest="d")
    async with open_database(empty_database_url, keys=KeyRing([NEW])) as database, database.sessions() as session:
        with pytest.raises(SettingError, match=r"'api000'.*SAGE_SECRET_KEY"):
            apis.token_of(session, await apis.get(session, project_id, "api000"))
        assert apis.token_of(session, await apis.get(session, project_id, "free")) is None
    async with open_database(empty_database_url) as database:
        with pytest.raises(SettingError, match="SAGE_SECRET_KEY"):
            await _read(database, project_id)


async def test_no_second_key_is_created_beside_what_one_has_encrypted(
    empty_database_url: str, tmp_path: Path
) -> None:
    migrate(empty_database_url)
    prepare_secrets(empty_database_url, Settings(data_dir=tmp_path))
    async with open_database(empty_database_url, keys=KeyRing.open(Settings(data_dir=tmp_path))) as database:
        await _store(database)
    elsewhere = Settings(data_dir=tmp_path / "other")
    with pytest.raises(SettingError, match="SAGE_SECRET_KEY"):
        prepare_secrets(empty_database_url, elsewhere)
    assert not (elsewhere.data_dir / KEY_FILE).exists()


async def test_a_rotation_encrypts_everything_with_a_new_key_and_an_open_process_follows(
    empty_database_url: str, tmp_path: Path
) -> None:
    url, settings = empty_database_url, Settings(data_dir=tmp_path)
    migrate(url)
    prepare_secrets(url, settings)
    async with open_database(url, keys=KeyRing.open(settings)) as database:
        project_id = await _store(database, tokens=250)
        before, expected = _stored(url), await _read(database, project_id)
        report = rotate_keys(url, settings)
        assert (report.encrypted, report.unreadable) == (251, 0)
        assert {key_id_of(each) for each in _stored(url)} == {report.key}
        assert not set(before) & set(_stored(url))
        assert await _read(database, project_id) == expected
        async with database.sessions() as session:
            [entry] = (await session.scalars(select(tables.AuditEntry))).all()
        assert (entry.action, entry.detail) == (tables.AuditAction.SECRETS_ROTATED, msgspec.to_builtins(report))
    keys = keys_in((tmp_path / KEY_FILE).read_text())
    rotate_keys(url, settings)
    assert keys_in((tmp_path / KEY_FILE).read_text())[1:] == keys[:1], "one previous key is kept"


async def test_a_rotation_leaves_nothing_to_the_old_key(empty_database_url: str, tmp_path: Path) -> None:
    url, settings = empty_database_url, Settings(data_dir=tmp_path)
    migrate(url)
    prepare_secrets(url, settings)
    old = f"enc:{KeyRing.open(settings).ids()[0]}:"
    call = Call(seq=0, turn=0, api="mail.log_in", arguments={"password": "hunter2"})
    async with open_database(url, keys=KeyRing.open(settings)) as database:
        project_id = await _store(database)
        async with database.sessions.begin() as session:
            await projects.change_settings(session, project_id, {"webhook": {"url": "http://a", "secret": SECRET}})
            task = await claimed_task(session)
            await turns.begin(session, task.id, "me", 0, turn_of("hello"))
            await calls.begin(session, task.id, "me", call, repeatable=False)
            await calls.end(session, task.id, call)
        assert (await dump(database.sessions)).count(old) == 6
        assert rotate_keys(url, settings).encrypted == 6
        assert old not in await dump(database.sessions)
        async with database.sessions() as session:
            assert [each.turn for each in await turns.of_task(session, task.id)] == [turn_of("hello")]
            [made] = await calls.of_task(session, task.id)
            assert (made.arguments, made.call) == ({"password": "hunter2"}, call)
            assert await webhooks.target(session, project_id)


async def test_after_an_interrupted_rotation_another_one_encrypts_what_both_older_keys_did(
    empty_database_url: str, tmp_path: Path
) -> None:
    url, settings = empty_database_url, Settings(data_dir=tmp_path)
    migrate(url)
    prepare_secrets(url, settings)
    async with open_database(url, keys=KeyRing.open(settings)) as database:
        project_id = await _store(database, tokens=3)
        path = tmp_path / KEY_FILE
        path.write_text(f"{NEW}\n{path.read_text()}")
        async with database.sessions.begin() as session:
            await apis.put(session, project_id, "api000", source="u", document={}, digest="d", token="token-0")
        report = rotate_keys(url, settings)
        assert report.encrypted == 4
        assert {key_id_of(each) for each in _stored(url)} == {report.key} != {KeyRing([NEW]).ids()[0]}
        assert await _read(database, project_id) == ["token-0", "token-1", "token-2", "hunter2"]


async def test_keys_of_the_setting_are_rotated_by_putting_a_new_one_first(empty_database_url: str) -> None:
    migrate(empty_database_url)
    async with open_database(empty_database_url, keys=KeyRing([OLD])) as database:
        project_id = await _store(database)
    with pytest.raises(InvalidError, match="put a new one"):
        rotate_keys(empty_database_url, Settings(secret_key=OLD))
    assert rotate_keys(empty_database_url, Settings(secret_key=f"{NEW},{OLD}")).encrypted == 2
    async with open_database(empty_database_url, keys=KeyRing([NEW])) as database:
        assert await _read(database, project_id) == ["token-0", "hunter2"]


async def test_values_of_a_lost_key_are_counted_and_kept(empty_database_url: str) -> None:
    migrate(empty_database_url)
    async with open_database(empty_database_url, keys=KeyRing(["x" * 32])) as database:
        await _store(database)
    before = _stored(empty_database_url)
    report = rotate_keys(empty_database_url, Settings(secret_key=f"{NEW},{OLD}"))
    assert (report.encrypted, report.unreadable) == (0, 2)
    assert _stored(empty_database_url) == before
