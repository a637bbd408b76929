"""Adapters that all hosts share: one puts what it trained, the others fetch what they are to serve.

Without a URL every adapter lies on this machine. With one, a directory or whatever fsspec reads (`s3://bucket/prefix`),
an adapter is `<url>/<hash>/` there, and readers trust only what has its marker, which is written last.
"""

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fsspec.core

from app.adapters.files import CONFIG, WEIGHTS, content_hash, inspect, verify
from app.errors import AdapterError, EngineError, SettingError, StorageError

_FILES = (CONFIG, WEIGHTS)
_MARKER = "complete"


class AdapterStore:
    """`local` is this machine's directory of adapters, `url` the store; without one `local` is all there is."""

    def __init__(self, local: Path, url: str = "") -> None:
        """Raises SettingError for a URL that cannot be a store. Nothing is asked of the store yet."""
        self._local = local.absolute()
        self._url = url.rstrip("/")
        self._remote: Any = None
        self._root = ""
        if url:
            self._remote, self._root = _open(url)
            self._failures = _failures()
        self._fetching = asyncio.Lock()

    async def path(self, name: str) -> Path:
        """The adapter's directory on this machine, fetched first where it is not there.

        Raises AdapterError for one that the store does not hold whole or holds damaged, EngineError where the
        store does not answer: then a later try may find it.
        """
        async with self._fetching:
            own = self._local / name
            if not _is_whole(own):
                if self._remote is None:
                    raise AdapterError(f"there is no adapter in {own}: put it back, or activate another release")
                await asyncio.to_thread(self._fetch, name)
            return own

    async def put(self, name: str) -> None:
        """Once this returns, every host can have the adapter. Safe to repeat. Raises StorageError."""
        if self._remote is not None:
            await asyncio.to_thread(self._put, name)

    async def take(self, directory: Path) -> str:
        """Copy an adapter from elsewhere, and put it. Its name, the hash of its content. Safe to repeat.

        Raises AdapterError for what must never be served, StorageError where it cannot be kept.
        """
        name = inspect(directory).hash
        if not _is_whole(self._local / name):
            await asyncio.to_thread(self._copy, directory, name)
        await self.put(name)
        return name

    def _copy(self, directory: Path, name: str) -> None:
        def copy(contents: Path) -> None:
            for file in _FILES:
                shutil.copyfile(directory / file, contents / file)
            verify(contents)

        try:
            self._make(name, copy)
        except OSError as error:
            raise StorageError(f"{self._local} does not take it: {error.strerror or error}") from error

    def _put(self, name: str) -> None:
        """What a name stands for never changes, so two who put it at once write the same bytes."""
        try:
            if self._holds(name):
                return
            self._remote.makedirs(f"{self._root}/{name}", exist_ok=True)
            for file in _FILES:
                self._remote.put_file(str(self._local / name / file), f"{self._root}/{name}/{file}")
            self._remote.pipe_file(f"{self._root}/{name}/{_MARKER}", name.encode())
        except self._failures as error:
            raise StorageError(
                f"the adapter store {self._url} does not take {name} ({_line(error)}): see to SAGE_ADAPTER_STORE"
            ) from error

    def _fetch(self, name: str) -> None:
        try:
            self._make(name, self._download)
        except self._failures as error:
            raise EngineError(
                f"adapter {name} cannot be fetched from {self._url} ({_line(error)}): see to SAGE_ADAPTER_STORE"
            ) from error

    def _make(self, name: str, fill: Callable[[Path], None]) -> None:
        """Whole or not at all: `fill` writes beside it and compares with the name, then that is renamed."""
        self._local.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".partial-", dir=self._local, ignore_cleanup_errors=True) as partial:
            contents = Path(partial, name)
            contents.mkdir()
            fill(contents)
            _settle(contents, self._local / name)

    def _download(self, directory: Path) -> None:
        name = directory.name
        if not self._holds(name):
            raise AdapterError(
                f"the adapter store {self._url} does not hold {name}: put it back, or activate another release"
            )
        for file in _FILES:
            self._remote.get_file(f"{self._root}/{name}/{file}", str(directory / file))
        found = content_hash(directory)
        if found != name:
            raise AdapterError(
                f"what {self._url}/{name} holds has the hash {found}, so it was damaged: remove it there, and put "
                "the adapter again from a host that has it, or activate another release"
            )

    def _holds(self, name: str) -> bool:
        self._remote.invalidate_cache()  # another host may have put it since this one looked
        try:
            self._remote.info(f"{self._root}/{name}/{_MARKER}")  # `exists` would say no where nobody answers
        except FileNotFoundError:
            return False
        return True


def _open(url: str) -> tuple[Any, str]:
    try:
        remote, root = fsspec.core.url_to_fs(url, skip_instance_cache=True)  # one of its own, with the keys of now
    except (ImportError, ValueError) as error:
        raise SettingError(
            f"SAGE_ADAPTER_STORE={url}: {_line(error)}. It is a directory or a URL that fsspec knows; "
            "s3:// needs the extra s3 (pip install 'sage-server[s3]')"
        ) from error
    return remote, str(root).rstrip("/")


def _failures() -> tuple[type[Exception], ...]:
    """What a store raises. S3's client has errors of its own: for a network that is down, for missing keys."""
    try:
        from botocore.exceptions import BotoCoreError  # noqa: PLC0415  takes a second, and only the extra s3 has it
    except ImportError:
        return (OSError,)
    return (OSError, BotoCoreError)


def _is_whole(path: Path) -> bool:
    return all((path / file).is_file() for file in _FILES)


def _settle(contents: Path, final: Path) -> None:
    """Another process of this machine may have been faster."""
    try:
        os.replace(contents, final)
    except OSError as error:
        if not _is_whole(final):
            raise AdapterError(f"{final} holds half an adapter: remove it, and it is fetched again") from error


def _line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
