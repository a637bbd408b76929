"""One model server: its loaded adapters, its state, and requests to it."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from enum import Enum
from http import HTTPStatus
from pathlib import Path
from typing import Any

import anyio
import httpx
import msgspec
import structlog

from app.engine.capability import Capabilities
from app.engine.completions import build_request, parse_completion
from app.engine.group_lock import GroupLock
from app.engine.protocol import Completion, Sampling
from app.engine.routing import RecentPrefixes
from app.engine.vllm_api import (
    BrokenOffError,
    CompletionReply,
    InvalidResponseError,
    ModelList,
    ReplicaError,
    UnreachableError,
    VersionReply,
    open_client,
    send,
)
from app.errors import AppError, EngineRefusalError
from app.records import BASE

log = structlog.get_logger(__name__)

_CONTROL_CONNECTIONS = 16  # for everything but generation: health checks, loads, verification
_CONTROL_TRIES = 4  # of a control request whose connection breaks
_PAUSE_SECONDS = 0.25  # before the second one, doubled for each further one
_OUT_TIMEOUT = 10.0  # seconds of a request to a server that is out, such as to undo a load


class ReplicaState(Enum):
    NEW = "new"  # not checked yet
    LIVE = "live"
    RETURNING = "returning"  # it answers, and is being prepared for requests
    OUT = "out"


class ReplicaLimits(msgspec.Struct, frozen=True, kw_only=True):
    max_in_flight: int  # requests
    timeout: float  # seconds of one generation
    load_timeout: float  # seconds of loading an adapter, and of every other request
    vocabulary: int  # upper bound of token ids, exclusive
    separate_base: bool = False  # base and adapters never generate at the same time
    max_failures: int | None = 3  # in a row that put a server out; a single one may be the request's own fault
    setting: str = "ENGINE_URLS"  # that names the server


class Replica:
    """Its methods may be called in every state; the engine dispatches requests to live ones only."""

    def __init__(self, url: str, limits: ReplicaLimits, changed: Callable[[], None]) -> None:
        """`changed` is called whenever it may serve more or less than before."""
        self.url, self.max_in_flight = url, limits.max_in_flight
        self.state, self.names = ReplicaState.NEW, frozenset[str]()
        self.cause: AppError | None = None  # why it is out
        self.in_flight = 0  # requests dispatched to it
        self.recent = RecentPrefixes()
        self.capabilities: Capabilities | None = None
        self.ejections = 0  # by failed requests, since one last succeeded
        self.recheck: Callable[[], None] = lambda: None  # requests an immediate health check
        self._limits, self._changed = limits, changed
        self.setting = limits.setting
        self._group_lock = GroupLock() if limits.separate_base else None
        self._http = open_client(limits.max_in_flight, limits.timeout)
        self._control_http = open_client(_CONTROL_CONNECTIONS, limits.load_timeout)
        self._loaded_here: set[str] = set()  # adapters loaded through this object: a restart loses them
        self._consecutive_failures = 0
        self._revision = 0  # of `names`
        self._scopes: set[anyio.CancelScope] = set()  # of the requests under way
        self._one_ended = asyncio.Event()
        self._closed = False

    async def close(self) -> None:
        """Requests under way end with a ReplicaError, and so do later ones: httpx would leave their connections
        open, and some of them without an answer.
        """
        self._closed = True
        while self._scopes:
            self._one_ended.clear()
            for scope in self._scopes:
                scope.cancel()
            await self._one_ended.wait()
        await self._http.aclose()
        await self._control_http.aclose()

    @property
    def alive(self) -> bool:
        return self.state is ReplicaState.LIVE

    @property
    def max_model_len(self) -> int | None:
        """Tokens of prompt and completion together, if the server reports it."""
        return self.capabilities.max_model_len if self.capabilities else None

    @property
    def max_loras(self) -> int | None:
        """Adapters usable at the same time, if the server reports it."""
        return self.capabilities.max_loras if self.capabilities else None

    async def complete(
        self, prompt_ids: Sequence[int], *, model: str, sampling: Sampling, control: bool = False
    ) -> Completion:
        """Cancelling the calling task closes the connection, which ends the generation. `control`: part of a load
        or a probe, not a task's generation; has its own connections and `load_timeout`.

        Raises ReplicaError if another server may succeed, and whatever `send` raises.
        """
        prompt = list(prompt_ids)
        try:
            answer = await self._generate(build_request(prompt, model, sampling), control)
            completion = parse_completion(answer, prompt, self._limits.vocabulary, self.url)
        except ReplicaError as error:
            if not (control and error.code):  # otherwise the loaded weights are at fault
                self._count_failure(error)
            raise
        except EngineRefusalError as error:
            if error.code == HTTPStatus.NOT_FOUND:
                self._record_names(self.names - {model})
                self.recheck()
            raise
        self._consecutive_failures = 0
        if self.alive:  # otherwise it answered a probe, which it may pass each time it is ejected
            self.ejections = 0
        return completion

    async def _generate(self, body: dict[str, Any], control: bool) -> CompletionReply:
        with self._time_limit(control):
            async with self._group_slot(body["model"]):
                http = self._control_http if control else self._http
                answer: CompletionReply = await self._send(http, "POST", "/v1/completions", CompletionReply, body)
                return answer

    def _group_slot(self, model: str) -> AbstractAsyncContextManager[None]:
        """Entered when the model may share a batch with the generations under way."""
        return self._group_lock.hold(model == BASE) if self._group_lock else nullcontext()

    async def models(self) -> list[str]:
        """The models it can generate with now, "base" included, in the order of loading."""
        before = self._revision
        answer: ModelList = await self.ask("GET", "/v1/models", ModelList)
        listed = [model.id for model in answer.data if model.task == "generate"]
        if self._revision == before:  # otherwise the list may be older than `names`
            self._set_names(frozenset(listed))
        return listed

    async def load(self, name: str, path: Path) -> None:
        """Return once it serves `name`. A name always stands for the same weights."""
        if name not in await self.models():
            await self._load(name, path)
        self._loaded_here.add(name)
        self._record_names(self.names | {name})

    async def _load(self, name: str, path: Path) -> None:
        body = {"lora_name": name, "lora_path": str(path)}
        try:
            await self.ask("POST", "/v1/load_lora_adapter", None, body)
        except EngineRefusalError:
            if name not in await self.models():  # otherwise another process was faster
                raise

    async def unload(self, name: str) -> None:
        """Safe to repeat."""
        self._loaded_here.discard(name)
        if name in await self.models():
            self._record_names(self.names - {name})  # no new requests from here on
            try:
                await self.ask("POST", "/v1/unload_lora_adapter", None, {"lora_name": name})
            except EngineRefusalError as error:
                if error.code != HTTPStatus.NOT_FOUND:  # otherwise another process was faster
                    raise
        self._record_names(self.names - {name})

    async def version(self) -> VersionReply:
        answer: VersionReply = await self.ask("GET", "/version", VersionReply)
        return answer

    async def ask(self, method: str, path: str, kind: Any, body: Any = None) -> Any:
        """Send one request and decode the reply as `kind`: see `send`. Raises ReplicaError after the timeout and
        when the server is ejected.
        """
        with self._time_limit(control=True):
            return await self._send(self._control_http, method, path, kind, body)

    async def _send(self, http: httpx.AsyncClient, method: str, path: str, kind: Any, body: Any) -> Any:
        """A failed connection ejects the server. A control request whose connection breaks is sent again as it
        was, which is safe for all of them; a task's is dispatched again.
        """
        tries = _CONTROL_TRIES if http is self._control_http else 1
        for pause in (_PAUSE_SECONDS * 2**count for count in range(tries - 1)):
            try:
                return await self._send_once(http, method, path, kind, body)
            except BrokenOffError as error:
                log.warning("a request is sent again", cause=str(error), seconds=pause)
            await asyncio.sleep(pause)
        return await self._send_once(http, method, path, kind, body)

    async def _send_once(self, http: httpx.AsyncClient, method: str, path: str, kind: Any, body: Any) -> Any:
        try:
            return await send(http, method, f"{self.url}{path}", kind, body, self.setting)
        except UnreachableError as error:
            self.eject(error)
            raise

    @contextmanager
    def _time_limit(self, control: bool) -> Iterator[None]:
        """Raises ReplicaError if its body takes too long, or the server is ejected or left before that."""
        if self._closed:
            raise self._closed_error()
        allowed = self._limits.load_timeout if control else self._limits.timeout
        timeout = _OUT_TIMEOUT if self.state is ReplicaState.OUT else allowed
        scope = anyio.move_on_after(timeout)  # unlike asyncio's, it lets httpx close connections
        self._scopes.add(scope)
        try:
            with scope:
                yield
            if scope.cancelled_caught:
                raise self._timeout_error(timeout, control)
        finally:
            self._scopes.discard(scope)
            self._one_ended.set()

    def take_lost(self) -> set[str]:
        """Return the adapters a restart lost, once; empty if there was no restart.

        If only some are missing, another process unloaded them.
        """
        missing = self._loaded_here - self.names
        self._loaded_here -= missing
        return set() if self.names - {BASE} else missing

    def set_state(self, state: ReplicaState) -> None:
        self.state = state
        if state is ReplicaState.LIVE:
            self.cause, self._consecutive_failures = None, 0
        self._changed()

    def eject(self, cause: AppError) -> None:
        """Stop dispatching; requests under way end with a ReplicaError, so that they are retried elsewhere."""
        was, self.state, self.cause = self.state, ReplicaState.OUT, cause
        if was is ReplicaState.OUT:
            return
        log.warning("a model server was ejected", url=self.url, cause=str(cause), requests=len(self._scopes))
        self.recent.clear()
        for scope in self._scopes:
            scope.cancel()
        self._changed()

    def _count_failure(self, error: ReplicaError) -> None:
        self._consecutive_failures += 1
        self.recheck()
        limit = self._limits.max_failures
        too_many = limit is not None and self._consecutive_failures >= limit
        if self.alive and (isinstance(error, InvalidResponseError) or too_many):
            self.ejections += 1
            self.eject(error)

    def _closed_error(self) -> ReplicaError:
        return ReplicaError(f"the engine at {self.url} is no longer used by this process.")

    def _timeout_error(self, timeout: float, control: bool) -> ReplicaError:
        if self._closed:
            return self._closed_error()
        if self.state is ReplicaState.OUT:
            return ReplicaError(f"the engine at {self.url} is out and does not answer: {self.cause}")
        setting = "SAGE_ENGINE_LOAD_TIMEOUT_SECONDS" if control else "SAGE_ENGINE_TIMEOUT_SECONDS"
        return ReplicaError(
            f"the engine at {self.url} did not answer within {timeout:g} s: check its log, or raise {setting}."
        )

    def _record_names(self, names: frozenset[str]) -> None:
        self._revision += 1
        self._set_names(names)

    def _set_names(self, names: frozenset[str]) -> None:
        if names != self.names:
            self.names = names
            self._changed()
