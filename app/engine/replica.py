"""One model server: what it must be able to do and has proved, its loaded adapters, its state, requests to it,
and by which load and cached prefixes it is chosen.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from http import HTTPStatus
from pathlib import Path
from typing import Any

import anyio
import httpx
import msgspec
import structlog

from app.base.errors import AppError, EngineRefusalError
from app.base.values import BASE
from app.engine.protocol import Completion, Sampling
from app.engine.vllm import (
    BrokenOffError,
    CompletionReply,
    InvalidResponseError,
    ModelList,
    ReplicaError,
    UnreachableError,
    VersionReply,
    build_request,
    open_client,
    parse_completion,
    send,
)

PROBE_PREFIX = "capability-"  # of the names of adapters that are loaded only to probe a server

log = structlog.get_logger(__name__)

BLOCK_TOKENS = 64
_MAX_BLOCKS = 16_384  # remembered per replica: a million tokens, about what its cache holds
MAX_IMBALANCE = 4  # requests more than the idlest replica that a prompt accepts for a cached prefix
_CONTROL_CONNECTIONS = 16  # for everything but generation: health checks, loads, verification
_CONTROL_TRIES = 4  # of a control request whose connection breaks
_PAUSE_SECONDS = 0.25  # before the second one, doubled for each further one
_OUT_TIMEOUT = 10.0  # seconds of a request to a server that is out, such as to undo a load


class ServerRequirements(msgspec.Struct, frozen=True, kw_only=True):
    """A field left at its default requires nothing."""

    adapters: Path | None = None  # the adapter directory, which the server must see at the same path
    model: Path | None = None  # the base model's directory, for the shapes of the probe adapter
    rank: int = 0  # of the deployment's adapters
    vocabulary: int = 2**31  # upper bound of token ids, exclusive
    loras: int = 1  # adapters that must be usable at the same time


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The capabilities of a server beyond those that all need: token ids, raw logprobs, loading at runtime."""

    url: str
    server: str = "vLLM"
    version: str
    max_model_len: int | None
    max_loras: int | None  # None: not reported yet
    rank: int | None  # an adapter of this rank was loaded and unloaded; None: not probed
    note: str = ""  # why the rank was not probed


class ReplicaLoad(msgspec.Struct, frozen=True):
    """A replica that may serve a prompt."""

    in_flight: int
    matched: int  # leading blocks of the prompt that it processed recently


def hash_blocks(model: str, prompt_ids: Sequence[int]) -> tuple[int, ...]:
    """One hash per whole block, over everything up to its end: equal only if the whole prefix is.

    >>> short, long = hash_blocks("base", [7] * 64), hash_blocks("base", [7] * 130)
    >>> len(long), long[:1] == short, hash_blocks("other", [7] * 64) == short
    (2, True, False)
    """
    hashes, last = list[int](), hash(model)
    for start in range(0, len(prompt_ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        last = hash((last, *prompt_ids[start : start + BLOCK_TOKENS]))
        hashes.append(last)
    return tuple(hashes)


def choose_replica(loads: Sequence[ReplicaLoad]) -> int:
    """The index of the replica to use: of those nearly as idle as the idlest, the one with the longest match.

    >>> choose_replica([ReplicaLoad(2, 0), ReplicaLoad(1, 0)])
    1
    >>> choose_replica([ReplicaLoad(2, 9), ReplicaLoad(1, 0)])
    0
    >>> choose_replica([ReplicaLoad(6, 9), ReplicaLoad(1, 0)])
    1
    """
    idle = min(load.in_flight for load in loads)
    near = [index for index, load in enumerate(loads) if load.in_flight <= idle + MAX_IMBALANCE]
    return min(near, key=lambda index: (-loads[index].matched, loads[index].in_flight))


class RecentPrefixes:
    """The blocks that a replica processed recently; the least recently used are dropped first."""

    def __init__(self, max_blocks: int = _MAX_BLOCKS) -> None:
        self._max_blocks = max_blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def add(self, blocks: Sequence[int]) -> None:
        for block in reversed(blocks):  # blocks are useful only together with all blocks before them
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._max_blocks:
            self._blocks.popitem(last=False)

    def match(self, blocks: Iterable[int]) -> int:
        """The number of leading blocks that were processed recently."""
        known = 0
        for block in blocks:
            if block not in self._blocks:
                break
            known += 1
        return known

    def clear(self) -> None:
        self._blocks.clear()


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
            with self._time_limit(control):
                http = self._control_http if control else self._http
                body = build_request(prompt, model, sampling)
                answer = await self._send(http, "POST", "/v1/completions", CompletionReply, body)
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
            try:
                await self.request_load(name, path)
            except EngineRefusalError:
                if name not in await self.models():  # otherwise another process was faster
                    raise
        self._loaded_here.add(name)
        self._record_names(self.names | {name})

    async def request_load(self, name: str, path: Path) -> None:
        """As `load`, which also notes that it serves `name`."""
        await self.ask("POST", "/v1/load_lora_adapter", None, {"lora_name": name, "lora_path": str(path)})

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
