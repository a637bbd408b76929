"""All that is encrypted in the database, and its encryption with another key. Blocks."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec
from sqlalchemy import (
    Column,
    Connection,
    Engine,
    NullPool,
    create_engine,
    func,
    insert,
    inspect,
    select,
    tuple_,
    update,
)
from sqlalchemy.orm import InstrumentedAttribute

from app.base.encryption import KEY_FILE, KEY_PREFIX_LENGTH, KeyRing, key_id_of, keys_in, new_key, write_key_file
from app.base.errors import InvalidError, SettingError
from app.base.settings import Settings
from app.db import tables
from app.db.database import full_url

_ENCRYPTED: Sequence[InstrumentedAttribute[Any]] = (  # texts or bytes
    tables.Api.token,
    tables.HostedModel.key,
    tables.Secret.value,
    tables.ApiCredential.value,
    tables.OAuthAttempt.verifier,
    tables.TaskTurn.record,
    tables.TaskCall.record,
    tables.TaskCall.sealed_arguments,
    tables.Approval.shown,
    tables.Project.webhook_secret,
    tables.Project.verifier_secret,
)
_BATCH = 100


class RotationReport(msgspec.Struct, frozen=True):
    """What a rotation did. `unreadable` values need a key that is not here, and stay as they are."""

    key: str  # id of the key that encrypts now
    encrypted: int  # rows encrypted with it by this rotation
    unreadable: int


def prepare_secrets(url: str, settings: Settings) -> bool:
    """Create the key of a new deployment.

    Returns whether a key was created. Raises SettingError if there is no key here, but the database has values
    that one encrypts.
    """
    with _open(url).begin() as connection:
        path = settings.data_dir / KEY_FILE
        missing = not settings.secret_key and not path.exists()
        if missing:
            _refuse_lost_key(connection)
            write_key_file(path, [new_key()], replace=False)
    KeyRing.open(settings)  # which refuses a key that is too short
    return missing


def rotate_keys(url: str, settings: Settings) -> RotationReport:
    """Encrypt everything with a new key, in batches. It may be interrupted, and run again.

    With a key file a new key is created first, and the file keeps the previous one, for what running processes
    have just written with it. With SAGE_SECRET_KEY the first key is the new one. The audit log tells of it.

    Raises InvalidError if no key is new.
    """
    engine, keys = _open(url), KeyRing.open(settings)
    path = None if settings.secret_key else settings.data_dir / KEY_FILE
    if path:
        write_key_file(path, [new_key(), *keys_in(path.read_text())], replace=True)
    elif len(keys.ids()) == 1:
        raise InvalidError(
            "SAGE_SECRET_KEY has only the key that is in use: put a new one and a comma before it on all hosts "
            "(`openssl rand -hex 32`), restart them, and run this again"
        )
    report = _encrypt_all(engine, keys)
    with engine.begin() as connection:
        detail = msgspec.to_builtins(report)
        entry = {"actor": "server", "action": tables.AuditAction.SECRETS_ROTATED, "detail": detail}
        connection.execute(insert(tables.AuditEntry).values(entry))
    if path and not report.unreadable:
        write_key_file(path, keys_in(path.read_text())[:2], replace=True)
    return report


def missing_keys(connection: Connection, known: Collection[str]) -> set[str]:
    """The ids of keys that encrypt something in the database and are not among the known ones."""
    found = set[str]()
    for column in _ENCRYPTED:
        start = func.substr(column, 1, KEY_PREFIX_LENGTH)
        found |= {key_id for value in connection.scalars(select(start).distinct()) if (key_id := key_id_of(value))}
    return found - set(known)


def _open(url: str) -> Engine:
    return create_engine(full_url(url), poolclass=NullPool, hide_parameters=True)


def _refuse_lost_key(connection: Connection) -> None:
    for column in _ENCRYPTED:
        for value in connection.scalars(select(column)):
            if (key_id := key_id_of(value)) is not None:
                raise SettingError(
                    f"the key {key_id} encrypts secrets in the database, and there is no key here: set "
                    "SAGE_SECRET_KEY, or restore `secret.key` in the data directory"
                )


def _encrypt_all(engine: Engine, keys: KeyRing) -> RotationReport:
    newest = keys.ids()[0]
    encrypted, unreadable = 0, 0
    for column in _ENCRYPTED:
        key = inspect(column.class_).primary_key
        for connection, rows in _batches(engine, key, column):
            for row in rows:
                value = row[-1]
                if key_id_of(value) in (None, newest):
                    continue
                try:
                    if isinstance(value, str):
                        anew: str | bytes = keys.encrypt(keys.decrypt(value))
                    else:
                        anew = keys.encrypt_bytes(keys.decrypt_bytes(value))
                except SettingError:
                    unreadable += 1
                    continue
                which = tuple_(*key) == tuple_(*row[:-1])
                connection.execute(update(column.class_).where(which).values({column: anew}))
                encrypted += 1
    return RotationReport(newest, encrypted, unreadable)


def _batches(
    engine: Engine, key: Sequence[Column[Any]], column: InstrumentedAttribute[Any]
) -> Iterator[tuple[Connection, Sequence[Sequence[Any]]]]:
    """Rows as key and value, locked until the next batch."""
    query = select(*key, column).order_by(*key).limit(_BATCH).with_for_update()
    after: Sequence[Any] | None = None
    while True:
        with engine.begin() as connection:
            batch = query if after is None else query.where(tuple_(*key) > tuple_(*after))
            rows = connection.execute(batch).all()
            yield connection, rows
        if len(rows) < _BATCH:
            return
        after = rows[-1][:-1]
