"""The index files of each project on this host: written by one process at a time, complete or absent, once
enough skills have changed; opened if they are intact and of this database. And rows of the table as an index
takes them.

`python -m app.skills.index_files DIRECTORY PROJECT` writes those of a project: it reads all its skills in
DATABASE_URL, at a low priority and on one core, and ends with its parent.
"""

import asyncio
import fcntl
import inspect
import os
import resource
import shutil
import sys
import zlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID, uuid4

import faiss
import msgspec
import numpy as np
import structlog
from numpy.typing import NDArray
from sqlalchemy import CursorResult, NullPool, Row, Select, create_engine, select
from sqlalchemy.exc import SQLAlchemyError

from app.base.errors import AppError, first_line
from app.base.loop import Loop
from app.base.processes import end_with_parent, python_module
from app.base.values import Offer
from app.db import tables
from app.db.database import TRANSIENT, Sessions, full_url, reading
from app.db.tables import SkillState
from app.engine.protocol import Vector
from app.skills import similarity
from app.skills import store as skills
from app.skills.mapped_index import (
    REACHES,
    MappedIndex,
    MappedSkills,
    NgramWriter,
    Rows,
    StringTable,
    encoded,
    save_array,
    write_vectors,
)
from app.skills.search import IndexedSkill, SkillIndex
from app.skills.visibility import Reach, owner_of

_REACH: dict[SkillState, Reach] = {
    SkillState.QUARANTINED: "owner",
    SkillState.PROBATION: "trial",
    SkillState.ACTIVE: "all",
}


def apply_changes(index: SkillIndex, rows: Sequence[Row[Any]]) -> None:
    """Put what is offered to someone, and remove the rest. The rows are of `skills.changes`."""
    offered = [row for row in rows if row.state in _REACH and not row.held]
    index.remove({row.id for row in rows} - {row.id for row in offered})
    index.put([indexed(row) for row in offered])


def indexed(row: Row[Any]) -> IndexedSkill:
    """A row of a skill that is offered to someone."""
    on_trial = row.canary if row.state is not SkillState.ACTIVE else None  # a person may offer it to all
    return IndexedSkill(
        offer=Offer(
            skill_id=row.id,
            name=row.name,
            version=row.version,
            signature=row.signature,
            source="",
            instruction=row.instruction,
        ),
        described=row.described,
        slots=tuple(row.slots),
        scenario=row.scenario,
        owner=owner_of(row.principal, on_trial),
        reach="owner" if on_trial else _REACH[row.state],
        embedder=row.embedder,
        query_vector=_vector(row.query_vector),
        source_vector=_vector(row.source_vector),
    )


def _vector(stored: bytes | None) -> Vector | None:
    return None if stored is None else np.frombuffer(stored, np.float32)


_LAYOUT: Final = 3
_TOKENS: Final = zlib.crc32(inspect.getsource(similarity).encode())  # which n-grams a text has
_MANIFEST, _LINK, _LOCK = "manifest.json", "current", "lock"
_PART = 1 << 22


class DamagedIndexError(AppError):
    """Mapped files are incomplete or changed, or of another version of the program."""


class BusyIndexError(AppError):
    """Another process writes the files of this project."""


class IndexManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What the files hold: the skills of a project as of a revision."""

    project: UUID
    rev: int
    last: UUID  # the skill changed last
    last_rev: int  # its revision
    count: int
    embedder: str | None
    checksums: dict[str, int] = {}  # of every file
    layout: int = _LAYOUT
    tokens: int = _TOKENS


class IndexFiles:
    """Files that were checked once by this process are not checked again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._opened: dict[UUID, tuple[str, IndexManifest, MappedSkills]] = {}

    def current(self, project_id: UUID) -> str | None:
        """The name of a project's files in use, if there are any."""
        try:
            return os.readlink(self._home(project_id) / _LINK)
        except OSError:
            return None

    def manifest(self, project_id: UUID) -> IndexManifest | None:
        """Of the files in use. None if there are none, or none of this version."""
        name = self.current(project_id)
        try:
            return _read_manifest(self._home(project_id) / name) if name else None
        except DamagedIndexError:
            return None

    def open(self, project_id: UUID, name: str) -> tuple[IndexManifest, MappedSkills]:
        """Reads all of the files once. Raises DamagedIndexError."""
        opened = self._opened.get(project_id)
        if opened is None or opened[0] != name:
            directory = self._home(project_id) / name
            manifest = _verified(directory)
            try:
                opened = name, manifest, MappedSkills(directory)
            except (OSError, ValueError, RuntimeError) as error:
                raise DamagedIndexError(f"{directory} cannot be read: {error}") from error
            self._opened[project_id] = opened
        return opened[1], opened[2]

    def discard(self, project_id: UUID, name: str) -> None:
        """Stop using files, unless others are in use by now."""
        self._opened.pop(project_id, None)
        if self.current(project_id) == name:
            (self._home(project_id) / _LINK).unlink(missing_ok=True)

    def keep_only(self, projects: set[UUID]) -> None:
        """Delete the files of all other projects."""
        for home in self.directory.iterdir() if self.directory.exists() else ():
            if home.name not in set(map(str, projects)):
                shutil.rmtree(home, ignore_errors=True)

    @contextmanager
    def writing(self, project_id: UUID) -> Iterator[Path]:
        """An empty directory, deleted unless it is published meanwhile.

        Raises BusyIndexError while another process is in this block, and OSError.
        """
        home = self._home(project_id)
        home.mkdir(parents=True, exist_ok=True)
        with (home / _LOCK).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise BusyIndexError(f"another process writes {home}") from error
            directory = home / uuid4().hex
            directory.mkdir()
            try:
                yield directory
            finally:
                used = self.current(project_id)
                for each in home.iterdir():
                    if each.is_dir() and not each.is_symlink() and each.name != used:
                        shutil.rmtree(each, ignore_errors=True)

    def publish(self, directory: Path, manifest: IndexManifest) -> None:
        """Use the files from now on. Processes that have others mapped keep those until they look again."""
        checksums = {path.name: _checksum(path) for path in sorted(directory.iterdir())}
        content = msgspec.json.encode(msgspec.structs.replace(manifest, checksums=checksums))
        (directory / _MANIFEST).write_bytes(content)
        link = directory.parent / f"{_LINK}.new"
        link.unlink(missing_ok=True)
        link.symlink_to(directory.name)
        os.replace(link, directory.parent / _LINK)

    def _home(self, project_id: UUID) -> Path:
        return self.directory / str(project_id)


def _read_manifest(directory: Path) -> IndexManifest:
    try:
        manifest = msgspec.json.decode((directory / _MANIFEST).read_bytes(), type=IndexManifest)
    except (OSError, msgspec.MsgspecError) as error:
        raise DamagedIndexError(f"{directory} has no readable manifest: {error}") from error
    if (manifest.layout, manifest.tokens) != (_LAYOUT, _TOKENS):
        raise DamagedIndexError(f"{directory} is of another version of the program")
    return manifest


def _verified(directory: Path) -> IndexManifest:
    manifest = _read_manifest(directory)
    for name, checksum in manifest.checksums.items():
        try:
            found = _checksum(directory / name)
        except OSError as error:
            raise DamagedIndexError(f"{directory / name} cannot be read: {error.strerror}") from error
        if found != checksum:
            raise DamagedIndexError(f"{directory / name} is damaged: its checksum differs")
    return manifest


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb", buffering=0) as file:
        while part := file.read(_PART):
            checksum = zlib.crc32(part, checksum)
    return checksum


_UNMAPPED = 20_000  # skills of a project that are searched without files

log = structlog.get_logger(__name__)


class OpenedIndex(NamedTuple):
    """What files hold of a project as of revision `rev`; without files, nothing up to it is known."""

    rev: int
    name: str | None = None  # of the files
    mapped: MappedIndex | None = None


async def open_index(sessions: Sessions, files: IndexFiles, project_id: UUID, embedder: str | None) -> OpenedIndex:
    """Discards files that cannot be used, so that others are written. Until then the newest skills are found."""
    name = files.current(project_id)
    if name is not None:
        try:
            manifest, read = await asyncio.to_thread(files.open, project_id, name)
            async with reading(sessions) as session:
                if not await skills.has_state(session, project_id, manifest.rev, manifest.last, manifest.last_rev):
                    raise DamagedIndexError(f"{name} is of another state of the database")
            mapped = MappedIndex(read, compare_vectors=manifest.embedder == embedder)
            return OpenedIndex(manifest.rev, name, mapped)
        except DamagedIndexError as error:
            files.discard(project_id, name)
            log.warning(
                "index files are discarded: others will be written", project=str(project_id), cause=str(error)
            )
    async with reading(sessions) as session:
        rev = await skills.rev_before(session, project_id, _UNMAPPED)
    if rev:
        log.warning(
            f"only the newest {_UNMAPPED} skills are found until index files are written", project=str(project_id)
        )
    return OpenedIndex(rev)


_CHANGES = 2_000  # skills that every process keeps in memory before files are worth writing
_SHARE = 100  # of more skills than that, a hundredth
_SECONDS = 10.0  # between two looks at the database
_LONGEST_PAUSE = 600.0


class IndexUpkeep:
    """Any number of processes of a host may do this: one at a time writes the files of a project."""

    def __init__(
        self, sessions: Sessions, files: IndexFiles, database_url: str, *, changes: int = _CHANGES
    ) -> None:
        self._sessions = sessions
        self._files = files
        self._database_url = database_url
        self._changes = changes
        self._seen: dict[UUID, tuple[int, str | None]] = {}  # revision and files in use when none were due
        self._failures = 0

    def loop(self) -> Loop:
        return Loop("write index files", self.write_due, _SECONDS, expected=(*TRANSIENT, OSError))

    async def write_due(self) -> float | None:
        """Write the files of all projects that need new ones. Returns the seconds until the next attempt."""
        async with self._sessions() as session:
            revs = await skills.revs(session)
        await asyncio.to_thread(self._files.keep_only, set(revs))
        due = [each for each in revs.items() if (each[1], self._files.current(each[0])) != self._seen.get(each[0])]
        done = [await self._write(project) for project, rev in due if await self._is_due(project, rev)]
        self._failures = 0 if all(done) else self._failures + 1
        return None if not self._failures else min(_SECONDS * 2**self._failures, _LONGEST_PAUSE)

    async def _is_due(self, project_id: UUID, latest: int) -> bool:
        name = self._files.current(project_id)
        manifest = await asyncio.to_thread(self._files.manifest, project_id)
        rev, count = (manifest.rev, manifest.count) if manifest else (0, 0)
        limit = max(self._changes, count // _SHARE)
        async with self._sessions() as session:
            changed = await skills.count_changes(session, project_id, rev, limit)
        if changed < limit:
            self._seen[project_id] = latest, name
        return changed >= limit

    async def _write(self, project_id: UUID) -> bool:
        """False if it failed; what was there is used further."""
        process = await asyncio.create_subprocess_exec(
            *python_module("app.skills.index_files", str(self._files.directory), str(project_id)),
            env={**os.environ, "DATABASE_URL": self._database_url},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            _, said = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode in (0, BUSY):
            return True
        cause = said.decode(errors="replace").strip().rpartition("\n")[2] or f"exit code {process.returncode}"
        log.warning("index files could not be written: those in use stay", project=str(project_id), cause=cause)
        return False


def write_skills(directory: Path, members: Iterable[IndexedSkill], embedder: str | None) -> int:
    """Write them, from the one changed first to the one changed last, with the vectors of one embedder.

    Takes about 1.5 kB of memory for each, and disk space for another copy of the vectors. Returns their number.
    Raises OSError, and RuntimeError if FAISS cannot write.
    """
    ngrams, columns = NgramWriter(), _Columns()
    with _VectorFile(directory, "queries") as queries, _VectorFile(directory, "sources") as sources:
        for each in members:
            if embedder is not None and each.embedder == embedder:
                queries.add(len(columns.versions), each.query_vector)
                sources.add(len(columns.versions), each.source_vector, queries.dimension)
            ngrams.add(each.offer.instruction, each.slots)
            columns.add(each)
        ngrams.write(directory)
        del ngrams
        columns.write(directory)
        if queries.dimension and sources.dimension:
            queries.index()
            sources.index()
    return len(columns.versions)


class _Columns:
    """What is known of each skill besides n-grams and vectors, in the order of the skills."""

    def __init__(self) -> None:
        self.versions = array("i")
        self.ids = bytearray()
        self.reaches = bytearray()
        self.texts: list[bytes] = []
        self.names: list[str] = []
        self.owners: list[str] = []
        self.described = array("i")  # their numbers
        self.scenarios: list[str | None] = []

    def add(self, skill: IndexedSkill) -> None:
        if skill.described:
            self.described.append(len(self.versions))
        offer = skill.offer
        self.versions.append(offer.version)
        self.ids += offer.skill_id.bytes
        self.reaches.append(REACHES.index(skill.reach))
        self.texts.append(msgspec.msgpack.encode((offer.signature, offer.instruction)))
        self.names.append(offer.name)
        self.owners.append(skill.owner)
        self.scenarios.append(skill.scenario)

    def write(self, directory: Path) -> None:
        ids = np.frombuffer(bytes(self.ids), "S16")
        versions = np.array(self.versions, np.int32)
        owners = sorted(set(self.owners))
        numbers = {owner: number for number, owner in enumerate(owners)}
        StringTable.write(directory, "principals", list(map(encoded, owners)))
        StringTable.write(directory, "texts", self.texts)
        names = _ranks(self.names)
        _write_groups(directory, "name", self.names, np.lexsort((versions, names)))
        scenarios = self._write_scenarios(directory, versions, names)
        for name, column in (
            ("ids", ids),
            ("versions", versions),
            ("reaches", np.frombuffer(bytes(self.reaches), np.uint8)),
            ("owners", np.array([numbers[owner] for owner in self.owners], np.int32)),
            ("scenarios", scenarios),
            ("names", names.astype(np.int32)),
            ("described", np.array(self.described, np.int32)),
            ("by_id", np.argsort(ids).astype(np.int32)),
        ):
            save_array(directory, name, column)

    def _write_scenarios(
        self, directory: Path, versions: NDArray[np.int32], names: NDArray[np.int64]
    ) -> NDArray[np.int32]:
        """(N,) the number of each skill's scenario; -1: none."""
        numbers = np.full(len(versions), -1, np.int32)
        labelled = np.array([place for place, each in enumerate(self.scenarios) if each is not None], np.int64)
        labels = [each for each in self.scenarios if each is not None]
        numbers[labelled] = _ranks(labels)
        order = np.lexsort((names[labelled], -versions[labelled], numbers[labelled]))
        _write_groups(directory, "scenario", labels, order, labelled)
        return numbers


class _VectorFile:
    """Vectors on disk until they are indexed. Those of another length than the first are left out."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory, self._name = directory, name
        self._path = directory / f"{name}.raw"
        self._file = self._path.open("wb")
        self._owners = array("q")  # of each vector, the number of its skill
        self.dimension = 0

    def __enter__(self) -> "_VectorFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)

    def add(self, number: int, vector: Vector | None, dimension: int = 0) -> None:
        if vector is None:
            return
        self.dimension = self.dimension or dimension or len(vector)
        if len(vector) == self.dimension:
            self._file.write(vector.astype(np.float32).tobytes())
            self._owners.append(number)

    def index(self) -> None:
        self._file.close()
        shape = (len(self._owners), self.dimension)
        vectors = np.memmap(self._path, np.float32, "r", shape=shape)
        write_vectors(self._directory, self._name, vectors, np.array(self._owners, np.int64))


def _write_groups(directory: Path, name: str, keys: list[str], order: Rows, rows: Rows | None = None) -> None:
    """Write rows by key. `order` (K,) sorts the keys (K,), equal ones as they are to be listed.

    `rows` (K,) are those of the keys, unless every row has one.
    """
    ordered = [keys[place] for place in order]
    distinct = sorted(set(ordered))
    StringTable.write(directory, f"{name}_keys", list(map(encoded, distinct)))
    save_array(directory, f"{name}_rows", (order if rows is None else rows[order]).astype(np.int32))
    sizes = Counter(ordered)
    save_array(directory, f"{name}_ends", np.cumsum(np.array([sizes[key] for key in distinct], np.int64)))


def _ranks(strings: Sequence[str]) -> NDArray[np.int64]:
    """(N,) the place of each in the order of code points; equal ones have the same."""
    ranks = {string: rank for rank, string in enumerate(sorted(set(strings)))}
    return np.array([ranks[string] for string in strings], np.int64)


BUSY = os.EX_TEMPFAIL
_AT_ONCE = 2_000  # rows
_NICENESS = 15


def main() -> None:
    directory, project_id = Path(sys.argv[1]), UUID(sys.argv[2])
    end_with_parent()
    _yield_to_others()
    try:
        write_files(IndexFiles(directory), os.environ["DATABASE_URL"], project_id)
    except BusyIndexError:
        sys.exit(BUSY)
    except (OSError, RuntimeError, SQLAlchemyError) as error:  # FAISS raises RuntimeError if it cannot write
        sys.exit(first_line(error))


def write_files(files: IndexFiles, database_url: str, project_id: UUID) -> None:
    """Write and publish the files of a project's skills as they are now. None are left of one that has no skills.

    Raises BusyIndexError, OSError, RuntimeError if FAISS cannot write, and SQLAlchemyError.
    """
    url = full_url(database_url)
    engine = create_engine(url, poolclass=NullPool, isolation_level="REPEATABLE READ", hide_parameters=True)
    with files.writing(project_id) as directory, engine.connect() as connection:
        project = tables.Project
        rev = connection.scalar(select(project.skill_rev).where(project.id == project_id)) or 0
        embedder = connection.scalar(skills.common_embedder(project_id))
        read = _Rows(connection.execute(_query(project_id, embedder)))
        count = write_skills(directory, read, embedder)
        if read.last is not None:
            manifest = IndexManifest(
                project=project_id,
                rev=rev,
                last=read.last.id,
                last_rev=read.last.rev,
                count=count,
                embedder=embedder,
            )
            files.publish(directory, manifest)


class _Rows:
    """The skills of a result, which is read once. Remembers the last row."""

    def __init__(self, result: CursorResult[Any]) -> None:
        self._result = result
        self.last: Row[Any] | None = None

    def __iter__(self) -> Iterator[IndexedSkill]:
        for row in self._result:
            self.last = row
            yield indexed(row)


def _query(project_id: UUID, embedder: str | None) -> Select[Any]:
    return skills.changes(project_id, 0, embedder).execution_options(yield_per=_AT_ONCE)


def _yield_to_others() -> None:
    """Take the lowest priority, one core, and the memory that a limit of the parent would withhold."""
    os.nice(_NICENESS)
    faiss.omp_set_num_threads(1)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


if __name__ == "__main__":
    main()
