"""The file of a backup: a tar archive that ends with a manifest, which has the hash of each other member.

tables/NAME/NUMBER.gz      rows as COPY writes them, in the order in which they can be restored
secret.key                 the keys, unless they come from the environment
adapters/HASH/FILE, datasets/ID.jsonl
manifest.json, manifest.sha256
"""

import gzip
import hashlib
import io
import re
import tarfile
import zlib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Self

import msgspec

from app.db.table_copy import Table
from app.errors import InvalidError, StorageError, first_line

MANIFEST, MANIFEST_HASH = "manifest.json", "manifest.sha256"
_FORMAT = 1
_BLOCK = 1 << 20
_LEVEL = 1  # of compression: higher ones take several times as long for a few percent
_MOST_RATIO = 250  # of rows to what they are compressed to; this level reaches 230
_MAX_MANIFEST = 256 << 20
_NAMES = re.compile(
    r"tables/[a-z0-9_]{1,63}/\d{8}\.gz|secret\.key|adapters/[0-9a-f]{32}/[A-Za-z0-9_]+\.(json|safetensors)"
    r"|datasets/[0-9a-f-]{36}\.jsonl"
)


class Member(msgspec.Struct, frozen=True):
    """What a member of the archive must contain."""

    sha256: str
    bytes: int


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup contains, and what made it."""

    format: int = _FORMAT
    created_at: datetime
    version: str  # of this software
    revision: str  # of the schema
    postgres: int  # of the server, such as 160004
    model: str  # SAGE_MODEL
    key: str  # "file", "environment" (then it is not in the backup) or "none"
    tables: list[Table]
    rows: dict[str, int]  # by table
    missing: list[str] = []  # adapters and datasets that the database names and nobody has
    members: dict[str, Member] = {}


class ArchiveWriter:
    """Adds members, and hashes what it adds."""

    def __init__(self, file: IO[bytes]) -> None:
        self._tar = tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT)  # noqa: SIM115
        self.members: dict[str, Member] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._tar.close()

    def add(self, name: str, content: bytes) -> None:
        self._add(name, io.BytesIO(content), len(content))

    def add_file(self, name: str, path: Path) -> None:
        """Raises FileNotFoundError."""
        with path.open("rb") as file:
            self._add(name, file, path.stat().st_size)

    def finish(self, manifest: BackupManifest) -> None:
        content = msgspec.json.encode(msgspec.structs.replace(manifest, members=self.members))
        self._tar.addfile(_info(MANIFEST, len(content)), io.BytesIO(content))
        digest = hashlib.sha256(content).hexdigest().encode()
        self._tar.addfile(_info(MANIFEST_HASH, len(digest)), io.BytesIO(digest))

    def _add(self, name: str, content: IO[bytes], size: int) -> None:
        hashing = _Hashing(content)
        self._tar.addfile(_info(name, size), hashing)
        self.members[name] = Member(hashing.digest.hexdigest(), size)


def pack_rows(rows: bytes) -> bytes:
    packed = gzip.compress(rows, _LEVEL, mtime=0)
    return packed if len(rows) <= len(packed) * _MOST_RATIO else gzip.compress(rows, 0, mtime=0)


def unpack_rows(content: IO[bytes]) -> Iterator[bytes]:
    """What `pack_rows` packed, in pieces. Raises InvalidError for what it would not have: a small file could
    otherwise fill the database's disk.
    """
    stream, read, unpacked = zlib.decompressobj(16 + zlib.MAX_WBITS), 0, 0
    try:
        while part := content.read(_BLOCK):
            read += len(part)
            while part:
                piece = stream.decompress(part, _BLOCK)
                part = stream.unconsumed_tail
                unpacked += len(piece)
                if unpacked > read * _MOST_RATIO:
                    raise InvalidError("rows of the backup unpack to too much: it was not made by this server")
                yield piece
                if stream.eof and (part or stream.unused_data):
                    raise InvalidError("the backup has more than rows where rows belong: use another backup")
    except zlib.error as error:
        raise InvalidError(f"rows of the backup are damaged ({error}): use another backup") from error
    if not stream.eof:
        raise InvalidError("rows of the backup are cut off: use another backup")


def verify_archive(path: Path) -> BackupManifest:
    """Read the whole file and compare every hash. Raises InvalidError that names what is damaged or missing."""
    try:
        found, written, digest = _hash_members(path)
    except (tarfile.TarError, EOFError) as error:
        raise InvalidError(f"{path} is damaged or no backup ({first_line(error)}). Use another backup") from error
    if not written or digest != hashlib.sha256(written).hexdigest().encode():
        raise InvalidError(f"{path} is incomplete or damaged: its manifest is not whole. Use another backup")
    manifest = _read_manifest(path, written)
    for name in sorted(found.keys() | manifest.members.keys()):
        if found.get(name) != manifest.members.get(name):
            raise InvalidError(f"{path} is damaged: {name} is not what was written. Use another backup")
    return manifest


def _hash_members(path: Path) -> tuple[dict[str, Member], bytes, bytes]:
    """The members before the manifest, the manifest, and its hash."""
    found: dict[str, Member] = {}
    last = {MANIFEST: b"", MANIFEST_HASH: b""}
    for name, content in read_members(path):
        if name in last:
            last[name] = content.read(_MAX_MANIFEST)
            continue
        if last[MANIFEST] or name in found or not _NAMES.fullmatch(name):
            raise InvalidError(f"{path} is no backup of this server: {name!r} does not belong there")
        hashing, size = _Hashing(content), 0
        while block := hashing.read(_BLOCK):
            size += len(block)
        found[name] = Member(hashing.digest.hexdigest(), size)
    return found, last[MANIFEST], last[MANIFEST_HASH]


def read_members(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Each member with its content, to read before the next one. Raises StorageError, InvalidError, TarError."""
    try:
        with tarfile.open(path, "r|") as tar:
            for info in tar:
                content = tar.extractfile(info) if info.isfile() and not info.issparse() else None
                if content is None:
                    raise InvalidError(f"{path} is no backup of this server: {info.name!r} is no plain file")
                yield info.name, content
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror or error}") from error


def _read_manifest(path: Path, content: bytes) -> BackupManifest:
    try:
        manifest = msgspec.json.decode(content, type=BackupManifest)
    except msgspec.DecodeError as error:
        raise InvalidError(f"{path} has a manifest that cannot be read ({error}): use another backup") from error
    if manifest.format != _FORMAT:
        raise InvalidError(f"{path} has format {manifest.format}: install the newer version that made it")
    return manifest


def _info(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o600
    return info


class _Hashing:
    """Hashes what is read through it."""

    def __init__(self, content: IO[bytes]) -> None:
        self._content, self.digest = content, hashlib.sha256()

    def read(self, size: int = -1) -> Any:
        block = self._content.read(size)
        self.digest.update(block)
        return block
