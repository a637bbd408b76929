"""One model server: what it has loaded, whether it may be asked, and how it is asked."""

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
from app.engine.completions import completion_of, request_for
from app.engine.group_lock import Apart
from app.engine.protocol import Completion, Sampling
from app.engine.routing import Seen
from app.engine.vllm_api import (
    Answer,
    Models,
    NonsenseError,
    ReplicaError,
    UnreachableError,
    Version,
    open_client,
    send,
)
from app.errors import AppError, EngineRefusalError
from app.records import BASE

log = structlog.get_logger(__name__)

_STRIKES = 3  # failures in a row that put a server out; a single one may be the request's own fault
_ASIDE = 16  # connections for all that is no task's generation: looks, loads, proofs
_OUT_SECONDS = 10.0  # that a server which is out may take for an answer, such as to undo what it was asked for


class State(Enum):
    NEW = "new"  # nobody has looked yet
    LIVE = "live"
    RETURNING = "returning"  # it answers, and is made ready for requests
    OUT = "out"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    at_once: int  # requests that the engine gives one server
    seconds: float  # that one generation may take
    load_seconds: float  # that loading an adapter may take, and anything else
    vocabulary: int  # token ids are below it
    base_apart: bool = False  # base and adapters never generate at the same time


class Replica:
    """Its methods may be called in every state; only a live one is given requests by the engine."""

    def __init__(self, url: str, limits: Limits, changed: Callable[[], None]) -> None:
        """`changed` is called whenever it may answer more or less than before."""
        self.url, self.at_once = url, limits.at_once
        self.state, self.names = State.NEW, frozenset[str]()
        self.cause: AppError | None = None  # why it is out
        self.in_flight = 0  # requests that the engine gave it
        self.seen = Seen()
        self.capabilities: Capabilities | None = None
        self.falls = 0  # times it was put out by requests since one last succeeded
        self.recheck: Callable[[], None] = lambda: None  # called when a request met something odd
        self._limits, self._changed = limits, changed
        self._apart = Apart() if limits.base_apart else None
        self._http = open_client(limits.at_once, limits.seconds)
        self._aside = open_client(_ASIDE, limits.load_seconds)  # where no generation takes the last connection
        self._own: set[str] = set()  # loaded through this object: a restart loses them
        self._strikes = 0
        self._edits = 0  # of what it has loaded
        self._scopes: set[anyio.CancelScope] = set()  # of what it is asked at this moment

    async def close(self) -> None:
        await self._http.aclose()
        await self._aside.aclose()

    @property
    def alive(self) -> bool:
        return self.state is State.LIVE

    @property
    def max_model_len(self) -> int | None:
        """Tokens that prompt and answer may have together, where the server tells."""
        return self.capabilities.max_model_len if self.capabilities else None

    @property
    def max_loras(self) -> int | None:
        """Adapters that may answer at the same time, where the server tells."""
        return self.capabilities.max_loras if self.capabilities else None

    async def complete(
        self, prompt_ids: Sequence[int], *, model: str, sampling: Sampling, loading: bool = False
    ) -> Completion:
        """Cancelling the calling task closes the connection, and with it the generation. `loading`: no task's
        generation, but part of a load or an examination, which takes no longer.

        Raises ReplicaError where another server may do better, and what `send` raises.
        """
        prompt = list(prompt_ids)
        try:
            answer = await self._generate(request_for(prompt, model, sampling), loading)
            completion = completion_of(answer, prompt, self._limits.vocabulary, self.url)
        except ReplicaError as error:
            if not (loading and error.code):  # else it says what is wrong with what is loaded
                self._strike(error)
            raise
        except EngineRefusalError as error:
            if error.code == HTTPStatus.NOT_FOUND:
                self._edit(self.names - {model})
                self.recheck()
            raise
        self._strikes = 0
        if self.alive:  # else it answered an examination, which it may pass each time it falls
            self.falls = 0
        return completion

    async def _generate(self, body: dict[str, Any], loading: bool) -> Answer:
        with self._limited(loading):
            async with self._company(body["model"]):
                http = self._aside if loading else self._http
                answer: Answer = await self._send(http, "POST", "/v1/completions", Answer, body)
                return answer

    def _company(self, model: str) -> AbstractAsyncContextManager[None]:
        """Entered when the model may generate beside what generates already."""
        return self._apart.among(model == BASE) if self._apart else nullcontext()

    async def models(self) -> list[str]:
        """What it can generate with at this moment, "base" included, in the order of loading."""
        before = self._edits
        answer: Models = await self.ask("GET", "/v1/models", Models)
        listed = [model.id for model in answer.data if model.task == "generate"]
        if self._edits == before:  # else the list may be older than what is known
            self._set_names(frozenset(listed))
        return listed

    async def load(self, name: str, path: Path) -> None:
        """Returns once it answers as `name`. A name stands for one set of weights for ever."""
        if name not in await self.models():
            await self._load(name, path)
        self._own.add(name)
        self._edit(self.names | {name})

    async def _load(self, name: str, path: Path) -> None:
        body = {"lora_name": name, "lora_path": str(path)}
        try:
            await self.ask("POST", "/v1/load_lora_adapter", None, body)
        except EngineRefusalError:
            if name not in await self.models():  # else another process was faster
                raise

    async def unload(self, name: str) -> None:
        """A server without the adapter is done."""
        self._own.discard(name)
        if name in await self.models():
            self._edit(self.names - {name})  # no new request from here on
            try:
                await self.ask("POST", "/v1/unload_lora_adapter", None, {"lora_name": name})
            except EngineRefusalError as error:
                if error.code != HTTPStatus.NOT_FOUND:  # else another process was faster
                    raise
        self._edit(self.names - {name})

    async def version(self) -> str:
        answer: Version = await self.ask("GET", "/version", Version)
        return answer.version

    async def ask(self, method: str, path: str, kind: Any, body: Any = None) -> Any:
        """One request, its answer as `kind`: see `send`. Ends, with a ReplicaError, after the timeout and when the
        server is put out.
        """
        with self._limited(loading=True):
            return await self._send(self._aside, method, path, kind, body)

    async def _send(self, http: httpx.AsyncClient, method: str, path: str, kind: Any, body: Any) -> Any:
        """No connection puts the server out."""
        try:
            return await send(http, method, f"{self.url}{path}", kind, body)
        except UnreachableError as error:
            self.eject(error)
            raise

    @contextmanager
    def _limited(self, loading: bool) -> Iterator[None]:
        """Raises ReplicaError where what is done in it takes too long, or the server goes out meanwhile."""
        allowed = self._limits.load_seconds if loading else self._limits.seconds
        seconds = _OUT_SECONDS if self.state is State.OUT else allowed
        scope = anyio.move_on_after(seconds)  # unlike asyncio's, it lets httpx close connections
        self._scopes.add(scope)
        try:
            with scope:
                yield
            if scope.cancelled_caught:
                raise self._late(seconds, loading)
        finally:
            self._scopes.discard(scope)

    def lost(self) -> set[str]:
        """Adapters it had from here, where it has none at all any more: it was restarted. They are told once.

        Where only some are gone, another process unloaded them.
        """
        missing = self._own - self.names
        self._own -= missing
        return set() if self.names - {BASE} else missing

    def enter(self, state: State) -> None:
        self.state = state
        if state is State.LIVE:
            self.cause, self._strikes = None, 0
        self._changed()

    def eject(self, cause: AppError) -> None:
        """No requests any more, and those under way end with a ReplicaError, so that another server is asked."""
        was, self.state, self.cause = self.state, State.OUT, cause
        if was is State.OUT:
            return
        log.warning("a model server is out", url=self.url, cause=str(cause), requests=len(self._scopes))
        self.seen.clear()
        for scope in self._scopes:
            scope.cancel()
        self._changed()

    def _strike(self, error: ReplicaError) -> None:
        self._strikes += 1
        self.recheck()
        if self.alive and (isinstance(error, NonsenseError) or self._strikes >= _STRIKES):
            self.falls += 1
            self.eject(error)

    def _late(self, seconds: float, loading: bool) -> ReplicaError:
        if self.state is State.OUT:
            return ReplicaError(f"the engine at {self.url} is out and gives no answer: {self.cause}")
        setting = "SAGE_ENGINE_LOAD_TIMEOUT_SECONDS" if loading else "SAGE_ENGINE_TIMEOUT_SECONDS"
        return ReplicaError(
            f"the engine at {self.url} gave no answer in {seconds:g} s: look into its log, or raise {setting}."
        )

    def _edit(self, names: frozenset[str]) -> None:
        self._edits += 1
        self._set_names(names)

    def _set_names(self, names: frozenset[str]) -> None:
        if names != self.names:
            self.names = names
            self._changed()
