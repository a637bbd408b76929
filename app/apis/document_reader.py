"""Reads API documents in processes of their own: no foreign data is parsed on an event loop."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping
from typing import Final

import msgspec
import structlog

from app.apis.app_view import AppView
from app.apis.read_process import ReadRequest, ReadResult, frame, split
from app.errors import ApiDocumentError, InvalidError
from app.records import Json

log = structlog.get_logger(__name__)

_AT_ONCE = 2
_CACHED = 16  # views of documents that were read before
_INHERITED: Final = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL")  # no secrets


class DocumentReader:
    """At most two processes at a time, each limited in CPU time, memory and time on the clock."""

    def __init__(self, *, cpu_seconds: int = 30, memory_bytes: int = 3 << 30, timeout: float = 90) -> None:
        self._cpu_seconds = cpu_seconds
        self._memory_bytes = memory_bytes
        self._timeout = timeout
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._views: dict[bytes, AppView] = {}

    async def read(
        self, name: str, content: bytes, *, source: str | None, server: str | None, bind: Mapping[str, Json]
    ) -> tuple[AppView, bytes]:
        """The app that a text describes, and the document as JSON.

        Raises ApiDocumentError, also if the text takes too much to read, and InvalidError for unknown bindings.
        """
        result, document = await self._run(self._request(name, source, server, bind, check=True), content)
        return result, document

    async def view(
        self,
        name: str,
        content: bytes,
        *,
        digest: str,
        source: str | None,
        server: str | None,
        bind: Mapping[str, Json],
    ) -> AppView:
        """The app of a document that was read before. Raises ApiDocumentError."""
        request = self._request(name, source, server, bind, check=False)
        key = digest.encode() + msgspec.json.encode(request)
        if key not in self._views:
            self._views[key], _ = await self._run(request, content)
            if len(self._views) > _CACHED:
                del self._views[next(iter(self._views))]
        return self._views[key]

    def _request(
        self, name: str, source: str | None, server: str | None, bind: Mapping[str, Json], *, check: bool
    ) -> ReadRequest:
        return ReadRequest(
            name=name,
            source=source,
            server=server,
            bind=dict(bind),
            check=check,
            cpu_seconds=self._cpu_seconds,
            memory_bytes=self._memory_bytes,
        )

    async def _run(self, request: ReadRequest, content: bytes) -> tuple[AppView, bytes]:
        async with self._slots:
            code, output = await self._communicate(frame(request) + content)
        if code != 0:
            raise ApiDocumentError(self._why_it_ended(code))
        message, document = split(output)
        result = msgspec.json.decode(message, type=ReadResult)
        if result.app is not None:
            return result.app, document
        if result.defect is not None:
            log.error("an API document cannot be read", name=request.name, cause=result.defect)
        reason = result.refusal or "this document cannot be read; the log of the server has the reason"
        raise ApiDocumentError(reason) if result.document_refused else InvalidError(reason)

    async def _communicate(self, data: bytes) -> tuple[int, bytes]:
        """Exit status and output. The process is gone when this returns or raises."""
        environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "app.apis.read_process", stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=environment
        )
        try:
            async with asyncio.timeout(self._timeout):
                output, _ = await process.communicate(data)
            return await process.wait(), output
        except TimeoutError:
            return -signal.SIGXCPU, b""
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    def _why_it_ended(self, code: int) -> str:
        if code in (-signal.SIGXCPU, -signal.SIGKILL):
            return f"this document takes longer than {self._cpu_seconds} s to read"
        return "this document cannot be read: it makes its reader fail"
