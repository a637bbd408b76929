"""Encryption of secrets at rest: the keys of this deployment, and texts that only they can read.

Keys come from SAGE_SECRET_KEY or, where it is empty, from the file `secret.key` in the data directory. The first
one encrypts, all of them decrypt. An encrypted text names its key, so that a rotation finds what is left to do.
"""

import base64
import hashlib
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from cryptography.fernet import Fernet, InvalidToken

from app.base.errors import SettingError, StorageError
from app.base.settings import Settings

KEY_FILE = "secret.key"
_PREFIX = "enc:"
_MIN_LENGTH = 32  # characters of a key
_ID_LENGTH = 8
KEY_PREFIX_LENGTH = len(_PREFIX) + _ID_LENGTH
"""Characters of an encrypted text that name its key."""
_Stamp = tuple[int, int, int]


class KeyRing:
    """Encrypts with the newest key and decrypts with any. A changed key file is read again by itself."""

    def __init__(self, keys: Sequence[str] = (), path: Path | None = None) -> None:
        """Raises SettingError if a key is too short. Without keys they are read from `path`, at the first use."""
        self._path = None if keys else path
        self._stamp: _Stamp | None = None
        self._keys: Mapping[str, Fernet] = _by_id(keys)

    @classmethod
    def open(cls, settings: Settings) -> Self:
        """The keys of this deployment. Raises SettingError if there are none."""
        ring = cls.when_needed(settings)
        ring.ids()
        return ring

    @classmethod
    def when_needed(cls, settings: Settings) -> Self:
        """As `open`, which raises only once a secret is read or stored."""
        return cls(keys_in(settings.secret_key), settings.data_dir / KEY_FILE)

    def ids(self) -> list[str]:
        """The ids of the keys; the first one encrypts. Raises SettingError if there is no key."""
        self._refresh()
        if not self._keys:
            raise SettingError(
                f"there is no key for secrets: set SAGE_SECRET_KEY to the one that the other hosts have, or let "
                f"`sage migrate` create {self._path}"
            )
        return [*self._keys]

    def encrypt(self, text: str) -> str:
        """An encrypted text of ASCII characters, different each time."""
        return self.encrypt_bytes(text.encode("utf-8", "surrogatepass")).decode()

    def decrypt(self, text: str) -> str:
        """Raises SettingError if the key is missing here, or the text is damaged."""
        return self.decrypt_bytes(text.encode()).decode("utf-8", "surrogatepass")

    def encrypt_bytes(self, content: bytes) -> bytes:
        newest = self.ids()[0]
        return f"{_PREFIX}{newest}:".encode() + self._keys[newest].encrypt(content)

    def decrypt_bytes(self, content: bytes) -> bytes:
        """Raises SettingError if the key is missing here, or the content is damaged."""
        key_id = key_id_of(content)
        if key_id not in self._keys:
            self._refresh()
        if key_id is None or key_id not in self._keys:
            raise SettingError(
                f"it was encrypted with the key {key_id or '(none)'}, which this host does not have: "
                f"{self._remedy()}"
            )
        try:
            return self._keys[key_id].decrypt(content.rpartition(b":")[2])
        except InvalidToken as error:
            raise SettingError(f"what the key {key_id} encrypted is damaged: store it again") from error

    def _refresh(self) -> None:
        """Read the key file if it has changed."""
        if self._path is None:
            return
        try:
            found = self._path.stat()
            stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
            if stamp != self._stamp:
                self._keys, self._stamp = _by_id(keys_in(self._path.read_text())), stamp
        except FileNotFoundError:
            self._keys, self._stamp = {}, None
        except OSError as error:
            raise SettingError(f"{self._path} cannot be read ({error.strerror}): check SAGE_DATA_DIR") from error

    def _remedy(self) -> str:
        if self._path is None:
            return "add that key to SAGE_SECRET_KEY, after the first one and a comma"
        return f"copy {self._path} from the host that has it, or set SAGE_SECRET_KEY to its content on all hosts"


def new_key() -> str:
    return secrets.token_urlsafe(32)


def keys_in(text: str) -> list[str]:
    """The keys of a setting or file, separated by commas or line ends.

    >>> keys_in("new,old")
    ['new', 'old']
    """
    return [key.strip() for key in text.replace("\n", ",").split(",") if key.strip()]


def key_id_of(content: str | bytes | None) -> str | None:
    """The id of the key that encrypted a text or bytes; None if they are not encrypted.

    >>> key_id_of("enc:0a1b2c3d:gAAA"), key_id_of("plain")
    ('0a1b2c3d', None)
    """
    start = (content or "")[:KEY_PREFIX_LENGTH]
    text = start if isinstance(start, str) else start.decode("ascii", "replace")
    return text.removeprefix(_PREFIX).partition(":")[0] if text.startswith(_PREFIX) else None


def write_key_file(path: Path, keys: Sequence[str], *, replace: bool) -> None:
    """Write the keys, readable for this user alone; an existing file is kept unless `replace`.

    Raises StorageError if it cannot be written. Either the old or the new file is there, never a part of one.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write("".join(f"{key}\n" for key in keys))
            file.flush()
            os.fsync(file.fileno())
        if replace:
            partial.replace(path)
        else:
            with suppress(FileExistsError):
                os.link(partial, path)
    except OSError as error:
        raise StorageError(f"{path} cannot be written ({error.strerror}): check SAGE_DATA_DIR") from error
    finally:
        with suppress(OSError):
            partial.unlink()


def _by_id(keys: Sequence[str]) -> dict[str, Fernet]:
    for key in keys:
        if len(key) < _MIN_LENGTH:
            raise SettingError(
                f"a key of SAGE_SECRET_KEY has fewer than {_MIN_LENGTH} characters: create one with "
                "`openssl rand -hex 32`"
            )
    return {_id_of(key): Fernet(base64.urlsafe_b64encode(_derive(key, "encrypt"))) for key in keys}


def _id_of(key: str) -> str:
    return _derive(key, "id").hex()[:_ID_LENGTH]


def _derive(key: str, purpose: str) -> bytes:
    """32 bytes. Keys are random, so a plain hash is enough."""
    return hashlib.sha256(f"sage {purpose}\0{key}".encode()).digest()
