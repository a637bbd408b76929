"""Where adapters are kept: a directory on each machine, and a store that all hosts share, if there is one.

One host puts an adapter into the store after training, others fetch it to serve it. Without a store every
adapter is on this machine. What a model server loads is verified before.
"""

import asyncio
import shutil
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import fsspec.core

from app.base.errors import (
    AdapterError,
    EngineError,
    SettingError,
    StorageError,
    UnreadableAdapterError,
    first_line,
)
from app.base.files import publish, scratch_directory
from app.engine.adapter_files import (
    CONFIG,
    WEIGHTS,
    AdapterFiles,
    Shapes,
    base_shapes,
    check_present,
    content_hash,
    inspect,
    verify,
)

_FILES = (CONFIG, WEIGHTS)
_MARKER = "complete"  # in the store: all files of an adapter are there


def open_remote(url: str) -> tuple[Any, str]:
    """The file system and the path of the store's root in it. Raises SettingError. Does not contact it yet."""
    try:
        remote, root = fsspec.core.url_to_fs(url, skip_instance_cache=True)  # with the current credentials
    except (ImportError, ValueError) as error:
        raise SettingError(
            f"SAGE_ADAPTER_STORE={url}: {first_line(error)}. Use a directory or a URL that fsspec supports; "
            "s3:// needs the extra s3 (pip install 'sage-server[s3]')"
        ) from error
    return remote, str(root).rstrip("/")


def remote_errors() -> tuple[type[Exception], ...]:
    """The errors of a store. S3's client has its own: for a network that is down, for missing keys."""
    try:
        from botocore.exceptions import BotoCoreError  # noqa: PLC0415  takes a second, and only the extra s3 has it
    except ImportError:
        return (OSError,)
    return (OSError, BotoCoreError)


def is_intact(path: Path) -> bool:
    """Whether it has the files that it is named after. A power failure, or a disk, may have damaged them."""
    try:
        return all((path / file).is_file() for file in _FILES) and content_hash(path) == path.name
    except OSError:
        return False


def place(contents: Path, final: Path) -> None:
    """Rename a directory of checked files to `final`, which is named after them.

    An intact one that is there stays, a damaged one is replaced. Raises OSError.
    """
    if final.exists() and not is_intact(final):
        shutil.rmtree(final)
    try:
        publish(contents, final)
    except OSError:
        if not is_intact(final):  # no other process was faster
            raise


class AdapterStore:
    """`local` is this machine's adapter directory, `url` the store; without a URL only `local` is used."""

    def __init__(self, local: Path, url: str = "") -> None:
        """Raises SettingError for a URL that cannot be a store. Does not contact the store yet."""
        self._local = local.absolute()
        self._url = url.rstrip("/")
        self._remote: Any = None
        self._root = ""
        if url:
            self._remote, self._root = open_remote(url)
            self._store_errors = remote_errors()
        self._fetch_lock = asyncio.Lock()

    async def fetch(self, name: str) -> Path:
        """The adapter's directory on this machine, fetched from the store if missing or damaged.

        Raises AdapterError if the store's copy is damaged. A retry may succeed after UnreadableAdapterError, if it
        is not there or incomplete, and after EngineError, if the store does not answer.
        """
        async with self._fetch_lock:
            own = self._local / name
            if self._remote is None:
                check_present(own)
            elif not await asyncio.to_thread(is_intact, own):
                await asyncio.to_thread(self._fetch, name)
            return own

    async def put(self, name: str) -> None:
        """Make the adapter available to every host. Safe to repeat. Raises StorageError."""
        if self._remote is not None:
            await asyncio.to_thread(self._put, name)

    async def import_adapter(self, directory: Path) -> str:
        """Copy an adapter from elsewhere, and put it. Returns its content hash. Safe to repeat.

        Raises AdapterError for an adapter that must not be served, StorageError if it cannot be stored.
        """
        name = inspect(directory).hash
        if not await asyncio.to_thread(is_intact, self._local / name):
            await asyncio.to_thread(self._copy, directory, name)
        await self.put(name)
        return name

    def _copy(self, directory: Path, name: str) -> None:
        def copy(contents: Path) -> None:
            for file in _FILES:
                shutil.copyfile(directory / file, contents / file)
            verify(contents)

        try:
            self._create(name, copy)
        except OSError as error:
            raise StorageError(f"{self._local} cannot be written: {error.strerror or error}") from error

    def _put(self, name: str) -> None:
        """Concurrent puts of a name write the same bytes, since a name always stands for the same content."""
        try:
            if self._holds(name):
                return
            self._remote.makedirs(f"{self._root}/{name}", exist_ok=True)
            for file in _FILES:
                self._remote.put_file(str(self._local / name / file), f"{self._root}/{name}/{file}")
            self._remote.pipe_file(f"{self._root}/{name}/{_MARKER}", name.encode())
        except self._store_errors as error:
            raise StorageError(
                f"the adapter store {self._url} does not accept {name} ({first_line(error)}): "
                "check SAGE_ADAPTER_STORE"
            ) from error

    def _fetch(self, name: str) -> None:
        try:
            self._create(name, self._download)
        except self._store_errors as error:
            raise EngineError(
                f"adapter {name} cannot be fetched from {self._url} ({first_line(error)}): "
                "check SAGE_ADAPTER_STORE"
            ) from error

    def _create(self, name: str, fill: Callable[[Path], None]) -> None:
        """Atomic: `fill` writes to a temporary directory and checks the hash, then that is renamed."""
        self._local.mkdir(parents=True, exist_ok=True)
        with scratch_directory(self._local) as partial:
            contents = partial / name
            contents.mkdir()
            fill(contents)
            place(contents, self._local / name)

    def _download(self, directory: Path) -> None:
        name = directory.name
        if not self._holds(name):
            raise UnreadableAdapterError(
                f"the adapter store {self._url} does not hold {name}: put it back, or activate another release"
            )
        for file in _FILES:
            self._remote.get_file(f"{self._root}/{name}/{file}", str(directory / file))
        actual = content_hash(directory)
        if actual != name:
            raise AdapterError(
                f"{self._url}/{name} has the content hash {actual}, so it is damaged: remove it there, and put "
                "the adapter again from a host that has it, or activate another release"
            )

    def _holds(self, name: str) -> bool:
        self._remote.invalidate_cache()  # another host may have put it by now
        try:  # `exists` would return False if the store does not answer
            self._remote.info(f"{self._root}/{name}/{_MARKER}")
        except FileNotFoundError:
            return False
        return True


class AdapterDirectory:
    """Adapters by content hash. Model servers read the same directory."""

    def __init__(
        self, path: Path, model_dir: Path | None = None, store: AdapterStore | None = None, *, base: str = ""
    ) -> None:
        """`model_dir` holds the base model that adapters must fit, `base` is its name in the deployment; `store`
        holds adapters of other hosts.
        """
        self.path, self.base = path.absolute(), base
        self._model_dir, self._store = model_dir, store

    async def verified(self, name: str) -> AdapterFiles:
        """Read and check the whole adapter. Raises AdapterError for one that must not be served."""
        path = await self._store.fetch(name) if self._store else self.path / name
        return await asyncio.to_thread(lambda: verify(path, self._shapes))

    async def publish(self, name: str) -> None:
        """Make the adapter available to other hosts. Raises StorageError."""
        if self._store is not None:
            await self._store.put(name)

    @cached_property
    def _shapes(self) -> Shapes | None:
        return base_shapes(self._model_dir) if self._model_dir else None
