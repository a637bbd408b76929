"""Reads API documents in processes of their own: no foreign data is parsed on an event loop."""

import asyncio
import os
import signal
from asyncio import IncompleteReadError, StreamReader, StreamWriter
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Self, TypeVar
from weakref import WeakValueDictionary

import msgspec
import structlog

from app.apis.documents.protocols import MAX_DOCUMENT_BYTES
from app.apis.documents.read_process import LENGTH_BYTES, NEXT, ReadRequest, ReadResult, frame
from app.apis.double.coverage import Coverage, PracticeFinding, PracticeQuestion
from app.apis.presentation import AS_WRITTEN, AppView, OperationTraits, Presentation
from app.apis.trial_questions import CallPlan, SampleCall
from app.base.errors import ApiDocumentError, InvalidError
from app.base.processes import python_module

log = structlog.get_logger(__name__)
T = TypeVar("T")

_ANYWHERE: Final = "http://localhost"
_CACHED = 16  # views of documents that were read before
_OTHERS = 50  # documents that one refers to
_WHOLE_SECONDS = 300
_INHERITED: Final = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL")  # no secrets


class _LateError(ApiDocumentError):
    """The reader was not ready in time: perhaps the machine was busy."""


class DocumentReader:
    """At most `at_once` documents at a time, each limited in CPU time, memory and time on the clock.

    A process that was started is kept for the next documents, until the reader is left. It forks for each of them.
    """

    def __init__(
        self, *, cpu_seconds: int = 30, memory_bytes: int = 3 << 30, timeout: float = 240, at_once: int = 2
    ) -> None:
        self._cpu_seconds = cpu_seconds
        self._memory_bytes = memory_bytes
        self._timeout = timeout
        self._slots = asyncio.Semaphore(at_once)
        self._idle: list[Process] = []
        self._views: dict[bytes, AppView] = {}
        self._coverages: dict[bytes, Coverage] = {}
        self._covering = WeakValueDictionary[bytes, asyncio.Lock]()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        while self._idle:
            await _kill(self._idle.pop())

    async def read(
        self,
        request: ReadRequest,
        content: bytes,
        fetch: Callable[[str], Awaitable[bytes]] | None = None,
        *,
        check: bool = True,
    ) -> tuple[AppView, bytes]:
        """The app of a new document, and the document as JSON, to be stored with those that it refers to.

        `fetch` gets the text at a URL of the document's own origin. With `check`, all bindings have to fit. Raises
        ApiDocumentError, also if the text takes too much to read, and InvalidError for unknown bindings.
        """
        request = msgspec.structs.replace(request, check=check, store=True)
        try:
            async with asyncio.timeout(_WHOLE_SECONDS):
                return await self._read_with_others(request, content, fetch)
        except TimeoutError as error:
            reason = f"it takes longer than {_WHOLE_SECONDS} s to read this document and those that it refers to"
            raise ApiDocumentError(reason) from error

    async def _read_with_others(
        self, request: ReadRequest, content: bytes, fetch: Callable[[str], Awaitable[bytes]] | None
    ) -> tuple[AppView, bytes]:
        others: dict[str, bytes] = {}
        while True:
            request = msgspec.structs.replace(request, others=list(others))
            result, document = await self._read(request, content, *others.values())
            if result.app is not None:
                return result.app, document
            if len(others) + len(result.wanted) > _OTHERS:
                raise ApiDocumentError(f"it refers to more than {_OTHERS} other documents: bundle them into one")
            others |= {url: await _text(url, fetch) for url in result.wanted}
            if sum(map(len, others.values())) > MAX_DOCUMENT_BYTES:
                size = f"{MAX_DOCUMENT_BYTES >> 20} MB"
                raise ApiDocumentError(f"the documents that it refers to have more than {size} in all")

    async def view(self, request: ReadRequest, content: bytes, digest: str) -> AppView:
        """The app of a stored document. Raises ApiDocumentError, and InvalidError for unknown bindings."""
        key = digest.encode() + msgspec.json.encode(request)
        if key not in self._views:
            result, _ = await self._read(request, content)
            assert result.app is not None
            _keep(self._views, key, result.app)
        return self._views[key]

    async def sample_call(self, request: ReadRequest, content: bytes, plan: CallPlan) -> SampleCall:
        """A call of a stored document, to be sent. Raises ApiDocumentError, and InvalidError for the plan."""
        result, _ = await self._read(msgspec.structs.replace(request, call=plan), content)
        assert result.call is not None
        return result.call

    async def coverage(self, request: ReadRequest, content: bytes, digest: str) -> Coverage:
        """What can be practised on a stored document. One that takes too much to read is `unreadable`, and is not
        read again unless the machine was busy.
        """
        key = digest.encode() + msgspec.json.encode(request)
        async with self._covering.setdefault(key, asyncio.Lock()):  # whoever wants the same waits for it
            if key not in self._coverages:
                try:
                    found = await self.practice(request, content, PracticeQuestion(about="coverage"))
                    coverage = found.coverage or Coverage(state="no_records")
                except _LateError as error:
                    return Coverage(state="unreadable", reason=str(error))
                except InvalidError as error:
                    coverage = Coverage(state="unreadable", reason=str(error))
                _keep(self._coverages, key, coverage)
            return self._coverages[key]

    async def practice(self, request: ReadRequest, content: bytes, question: PracticeQuestion) -> PracticeFinding:
        """What the model of a stored document says. Raises ApiDocumentError."""
        result, _ = await self._read(msgspec.structs.replace(request, practice=question), content)
        assert result.practice is not None
        return result.practice

    async def traits(
        self, name: str, content: bytes, digest: str, presentation: Presentation = AS_WRITTEN
    ) -> dict[str, OperationTraits]:
        """Those of the operations of a stored document, wherever it is served. Raises ApiDocumentError."""
        request = ReadRequest(name=name, server=_ANYWHERE, presentation=presentation)
        return (await self.view(request, content, digest)).traits

    async def _read(self, request: ReadRequest, *contents: bytes) -> tuple[ReadResult, bytes]:
        async with self._slots:
            data = b"".join(map(frame, (msgspec.json.encode(request), *contents)))
            message, document = await self._exchange(data)
        result = msgspec.json.decode(message, type=ReadResult)
        if any((result.app, result.wanted, result.call, result.practice)):
            return result, document
        if result.defect is not None:
            log.error("an API document cannot be read", name=request.name, cause=result.defect)
        reason = result.refusal or "this document cannot be read; the log of the server has the reason"
        raise ApiDocumentError(reason) if result.document_refused else InvalidError(reason)

    async def _exchange(self, data: bytes) -> tuple[bytes, bytes]:
        process = await self._take()
        try:
            async with asyncio.timeout(self._timeout):
                answer = await _ask(process, data)
        except TimeoutError as error:
            raise _LateError(str(self._slow())) from error
        except (IncompleteReadError, ConnectionError) as error:
            if await process.wait() in (signal.SIGXCPU, signal.SIGKILL):
                raise self._slow() from error
            raise ApiDocumentError("this document cannot be read: it makes its reader fail") from error
        else:
            self._idle.append(process)
            return answer
        finally:
            if process not in self._idle:
                await _kill(process)

    async def _take(self) -> Process:
        while self._idle:
            process = self._idle.pop()
            if process.returncode is None:
                return process
        environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        limits = str(self._cpu_seconds), str(self._memory_bytes)
        command = python_module("app.apis.documents.read_process", *limits)
        return await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=environment, start_new_session=True
        )

    def _slow(self) -> ApiDocumentError:
        return ApiDocumentError(f"this document takes longer than {self._cpu_seconds} s to read")


def _keep(cache: dict[bytes, T], key: bytes, value: T) -> None:
    cache[key] = value
    if len(cache) > _CACHED:
        del cache[next(iter(cache))]


async def _text(url: str, fetch: Callable[[str], Awaitable[bytes]] | None) -> bytes:
    """Empty for what cannot be fetched: what refers to it accepts any value, or is left out."""
    try:
        return b"" if fetch is None else await fetch(url)
    except ApiDocumentError as error:
        log.warning("a document that an API document refers to cannot be fetched", url=url, cause=str(error))
        return b""


async def _ask(process: Process, data: bytes) -> tuple[bytes, bytes]:
    assert process.stdin is not None
    assert process.stdout is not None
    writer: StreamWriter = process.stdin
    writer.write(NEXT + data)
    await writer.drain()
    return await _receive(process.stdout), await _receive(process.stdout)


async def _receive(stream: StreamReader) -> bytes:
    return await stream.readexactly(int.from_bytes(await stream.readexactly(LENGTH_BYTES), "big"))


async def _kill(process: Process) -> None:
    """The process and its fork are gone when this returns."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
