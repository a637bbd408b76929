"""All that is encrypted in the database: at an upgrade, and anew when the key changes. Blocks."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, NullPool, Table, create_engine, select, tuple_, update

from app.db import models
from app.db.column_types import to_json
from app.db.database import full_url
from app.errors import InvalidError, SettingError
from app.security.encryption import KEY_FILE, KeyRing, key_id_of, keys_in, new_key, write_key_file
from app.settings import Settings

_COLUMNS = (  # table, column: encrypted texts, bytes, or JSON that has encrypted texts
    (models.Api.__tablename__, "token"),
    (models.Secret.__tablename__, "value"),
    (models.TaskTurn.__tablename__, "record"),
    (models.TaskCall.__tablename__, "record"),
    (models.TaskCall.__tablename__, "sealed_arguments"),
    (models.Project.__tablename__, "settings"),
    (models.Project.__tablename__, "webhook_secret"),
)
_BATCH = 100
_ENCRYPTED = re.compile(r"enc:[0-9a-f]{8}:[A-Za-z0-9_=-]+")


class RotationReport(msgspec.Struct, frozen=True):
    """What a rotation did. `unreadable` values need a key that is not here, and stay as they are."""

    key: str  # id of the key that encrypts now
    encrypted: int  # rows encrypted with it by this rotation
    unreadable: int


def prepare_secrets(url: str, settings: Settings) -> bool:
    """Create the key of a new deployment, and encrypt the tokens that an older version stored.

    Returns whether a key was created. Raises SettingError if there is no key here, but the database has values
    that one encrypts.
    """
    with _open(url).begin() as connection:
        path = settings.data_dir / KEY_FILE
        missing = not settings.secret_key and not path.exists()
        if missing:
            _refuse_lost_key(connection)
            write_key_file(path, [new_key()], replace=False)
        _encrypt_tokens(connection, KeyRing.open(settings))
    return missing


def rotate_keys(url: str, settings: Settings) -> RotationReport:
    """Encrypt everything with the newest key, in batches; running it again continues where it was interrupted.

    With a key file a new key is created first. With SAGE_SECRET_KEY the first key is the new one. The file keeps
    the previous key, for what running processes have just written with it. Raises InvalidError if no key is new.
    """
    engine, keys = _open(url), KeyRing.open(settings)
    path = settings.data_dir / KEY_FILE
    if settings.secret_key and len(keys.ids()) == 1:
        raise InvalidError(
            "SAGE_SECRET_KEY has only the key that is in use: put a new one and a comma before it on all hosts "
            "(`openssl rand -hex 32`), restart them, and run this again"
        )
    if not settings.secret_key and not _has_older(engine, keys):
        write_key_file(path, [new_key(), *keys_in(path.read_text())], replace=True)
    report = _encrypt_all(engine, keys)
    if not settings.secret_key and not report.unreadable:
        write_key_file(path, keys_in(path.read_text())[:2], replace=True)
    return report


def _open(url: str) -> Engine:
    return create_engine(full_url(url), poolclass=NullPool, hide_parameters=True, json_serializer=to_json)


def _refuse_lost_key(connection: Connection) -> None:
    for table, column in _COLUMNS:
        for row in connection.execute(select(_table(table).c[column])):
            if found := _key_ids(row[0]):
                raise SettingError(
                    f"the key {min(found)} encrypts secrets in the database, and there is no key here: set "
                    "SAGE_SECRET_KEY, or restore `secret.key` in the data directory"
                )


def _encrypt_tokens(connection: Connection, keys: KeyRing) -> None:
    api = _table(models.Api.__tablename__)
    plain = select(api.c.id, api.c.secret).where(api.c.secret.is_not(None)).with_for_update()
    for row in connection.execute(plain).all():
        encrypted = {"token": keys.encrypt(row.secret), "secret": None}
        connection.execute(update(api).where(api.c.id == row.id).values(encrypted))


def _has_older(engine: Engine, keys: KeyRing) -> bool:
    """Whether an older key of ours still encrypts something: a rotation was interrupted."""
    older = set(keys.ids()[1:])
    with engine.connect() as connection:
        return bool(older) and any(
            _key_ids(row[0]) & older
            for table, column in _COLUMNS
            for row in connection.execute(select(_table(table).c[column]))
        )


def _encrypt_all(engine: Engine, keys: KeyRing) -> RotationReport:
    newest = keys.ids()[0]
    encrypted, unreadable = 0, 0
    for name, column in _COLUMNS:
        table = _table(name)
        for connection, rows in _batches(engine, table, column):
            for row in rows:
                key, value = row[:-1], row[-1]
                if not _key_ids(value) - {newest}:
                    continue
                try:
                    anew = _rewritten(value, lambda text: keys.encrypt(keys.decrypt(text)))
                except SettingError:
                    unreadable += 1
                    continue
                which = tuple_(*table.primary_key.columns) == tuple_(*key)
                connection.execute(update(table).where(which).values({column: anew}))
                encrypted += 1
    return RotationReport(newest, encrypted, unreadable)


def _batches(engine: Engine, table: Table, column: str) -> Iterator[tuple[Connection, Sequence[Sequence[Any]]]]:
    """Rows as key and value, locked until the next batch."""
    key = list(table.primary_key.columns)
    query = select(*key, table.c[column]).order_by(*key).limit(_BATCH).with_for_update()
    after: Sequence[Any] | None = None
    while True:
        with engine.begin() as connection:
            batch = query if after is None else query.where(tuple_(*key) > tuple_(*after))
            rows = connection.execute(batch).all()
            yield connection, rows
        if len(rows) < _BATCH:
            return
        after = rows[-1][: len(key)]


def _key_ids(value: object) -> set[str]:
    """The ids of the keys that encrypted a value, or parts of it."""
    found: set[str] = set()

    def note(text: str) -> str:
        found.add(key_id_of(text) or "")
        return text

    _rewritten(value, note)
    return found


def _rewritten(value: Any, change: Callable[[str], str]) -> Any:
    """The same value with each encrypted text changed."""
    if isinstance(value, bytes | memoryview):
        text = bytes(value).decode("latin-1")
        return change(text).encode() if _ENCRYPTED.fullmatch(text) else value
    if isinstance(value, str):
        return change(value) if _ENCRYPTED.fullmatch(value) else value
    if isinstance(value, list):
        return [_rewritten(each, change) for each in value]
    if isinstance(value, dict):
        return {name: _rewritten(each, change) for name, each in value.items()}
    return value


def _table(name: str) -> Table:
    return models.Base.metadata.tables[name]
