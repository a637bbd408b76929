"""Whether a model server can be used. Before its first request, and each time it returns, the features that its
flags must enable are tried, with an adapter that changes nothing; one that fails is taken out, and readmitted
once it has proved them.
"""

import asyncio
import json
import math
import random
import re
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import numpy as np
import structlog
from safetensors.numpy import save_file

from app.base.errors import AppError, EngineError, EngineRefusalError, ModelError, SettingError
from app.base.files import scratch_directory
from app.base.loop import Loop
from app.base.values import BASE
from app.engine.protocol import Completion, Sampling
from app.engine.replica import PROBE_PREFIX, Capabilities, Replica, ReplicaState, ServerRequirements
from app.engine.tokenizer import read_json
from app.engine.vllm import InvalidResponseError, ModelList, NonFiniteError, ReplicaError

_LAYERS = ("num_hidden_layers", "hidden_size", "num_attention_heads")

log = structlog.get_logger(__name__)

_LONG = 2048  # tokens that overwrite NaN: more than all prompts of a verification together
_SOME = 512  # where the server does not report its context length
_PROMPT = (1, 2, 3, 5, 8)
_RUNTIME = "set VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its environment and give it --enable-lora"
_LORAS = re.compile(r'^vllm:lora_requests_info\{[^}]*max_lora="(\d+)"', re.MULTILINE)
TOO_HIGH = re.compile(r"rank.*max_lora_rank", re.IGNORECASE)
_ABSENT = re.compile(r"no adapter found", re.IGNORECASE)  # vLLM reports it without the path
_OFF = re.compile(r"lora is not enabled", re.IGNORECASE)

OnReturn = Callable[[Replica], Awaitable[None]]
"""If it raises, the server stays out and is tried again."""

Prove = Callable[[Replica], Awaitable[Capabilities]]
"""Raises SettingError where the server's flags must be changed, EngineError where it cannot be reached now."""


class HealthChecks(msgspec.Struct, frozen=True):
    interval: float = 1.0  # seconds between two checks, on average
    timeout: float = 5.0  # seconds of one check
    max_misses: int = 3  # checks in a row without an answer that put a server out; a busy one may miss one
    probe_timeout: float = 60.0  # seconds of a capability probe
    may_sleep: bool = False  # servers may be put to sleep, so each check looks for that


class _Sleep(msgspec.Struct):
    is_sleeping: bool


class HealthMonitor:
    """`on_return` is called before a server gets its first requests, and before it gets requests again."""

    def __init__(
        self,
        replica: Replica,
        prove: Prove,
        checks: HealthChecks,
        on_return: OnReturn,
        *,
        health: str = "/health",
    ) -> None:
        """`health` is the path that a healthy server answers; "": none beside `/v1/models`."""
        self.replica = replica
        self.setting_error: SettingError | None = None  # of the last probe: the server's flags must be changed
        self.checked = asyncio.Event()  # set after the first check
        self._prove, self._checks, self._on_return, self._health = prove, checks, on_return, health
        self.loop = Loop(f"health of {replica.url}", self._tick, checks.interval)
        replica.recheck = self.loop.wake
        self._misses = 0
        self._failed_admissions = 0  # in a row
        self._not_before = 0.0

    async def _tick(self) -> float:
        """Jittered, so that several processes do not check at the same time."""
        try:
            await self._check()
        finally:
            self.checked.set()
        return self._checks.interval * random.uniform(0.75, 1.25)

    async def _check(self) -> None:
        if not await self._is_healthy():
            return
        lost = self.replica.take_lost()
        if lost:
            log.warning("a model server lost adapters: was it restarted?", url=self.replica.url, lost=sorted(lost))
        elif self.replica.alive or asyncio.get_running_loop().time() < self._not_before:
            return
        await self._readmit()

    async def _is_healthy(self) -> bool:
        try:
            async with asyncio.timeout(self._checks.timeout):
                await self._ask()
        except TimeoutError:
            self._count_miss(EngineError(f"{self.replica.url} does not answer: check its log."))
        except (InvalidResponseError, EngineRefusalError) as error:
            self._reject(SettingError(f"{self.replica.setting} names a server that is not vLLM: {error}"))
        except ReplicaError as error:
            if error.code and not self._health:  # a router that answers, for one of its servers that does not
                return True
            if error.code:  # it reports itself as unhealthy
                self.replica.eject(error)
            else:
                self._count_miss(error)
        except EngineError as error:
            self.replica.eject(error)
        else:
            self._misses = 0
            return True
        return False

    async def _ask(self) -> None:
        if self._health:
            await self.replica.ask("GET", self._health, None)
        if self._checks.may_sleep:
            await self._check_awake()
        await self.replica.models()

    def _count_miss(self, cause: EngineError) -> None:
        """A busy server may be late, and a connection may break, so one miss is tolerated."""
        self._misses += 1
        if self._misses >= self._checks.max_misses or not self.replica.alive:
            self.replica.eject(cause)

    async def _check_awake(self) -> None:
        """Raises EngineError if the server sleeps: requests would wait as long as a run updates on its GPU."""
        try:
            state: _Sleep = await self.replica.ask("GET", "/is_sleeping", _Sleep)
        except EngineRefusalError as error:
            raise EngineError(
                f"{self.replica.url} does not report whether it sleeps: start vLLM with "
                "VLLM_SERVER_DEV_MODE=1 and "
                "--enable-sleep-mode, or set SAGE_ENGINE_SLEEP=never."
            ) from error
        if state.is_sleeping:
            raise EngineError(f"{self.replica.url} is asleep: it wakes when the update on its GPU has ended.")

    async def _readmit(self) -> None:
        """Back off exponentially after failures, here or of requests while /health was good."""
        self.replica.set_state(ReplicaState.RETURNING)
        try:
            async with asyncio.timeout(self._checks.probe_timeout):
                capabilities = await self._prove(self.replica)
            self.replica.capabilities, self.setting_error = capabilities, None
            await self._on_return(self.replica)
        except TimeoutError:
            self._reject(EngineError(f"{self.replica.url} answers /health but no request: check its log."))
        except AppError as error:
            self._reject(error)
        except Exception as error:  # a defect, which the loop logs
            self._reject(EngineError(f"{self.replica.url} cannot be made ready: {error}"))
            raise
        else:
            self._failed_admissions = 0
            if self.replica.state is ReplicaState.RETURNING:
                self.replica.set_state(ReplicaState.LIVE)
                log.info("a model server is ready", **msgspec.structs.asdict(capabilities))
        finally:
            pause = self._checks.interval * 2 ** min(self.replica.ejections + self._failed_admissions, 5)
            self._not_before = asyncio.get_running_loop().time() + pause

    def _reject(self, cause: AppError) -> None:
        self._failed_admissions += 1
        if isinstance(cause, SettingError):
            if str(cause) != str(self.setting_error):
                log.error("a model server cannot be used", url=self.replica.url, cause=str(cause))
            self.setting_error = cause
        self.replica.eject(cause)


async def probe_capabilities(replica: Replica, requirements: ServerRequirements) -> Capabilities:
    """Raises SettingError that names the missing flag, EngineError where the server cannot be reached now."""
    try:
        known = await replica.version()
        length = await _length(replica)
        await _check_numbers(replica, length)
        await _check_loading(replica, requirements)
        rank, note = await _rank(replica, requirements)
        return Capabilities(
            url=replica.url,
            server=known.server,
            version=known.version,
            max_model_len=length,
            max_loras=await _max_loras(replica, requirements),
            rank=rank,
            note=note,
        )
    except (InvalidResponseError, EngineRefusalError) as error:
        raise SettingError(f"ENGINE_URLS names a server that is not a usable vLLM: {error}") from error


async def probe_generation(replica: Replica) -> Capabilities:
    """Of a router: it must pass on requests and replies with token ids and logprobs unchanged.

    Raises SettingError, or EngineError where it cannot be reached now.
    """
    try:
        length = await _length(replica)
        await _check_numbers(replica, length)
    except (InvalidResponseError, EngineRefusalError) as error:
        raise SettingError(f"{replica.setting} names no usable router: {error}") from error
    return Capabilities(url=replica.url, version="", max_model_len=length, max_loras=None, rank=None)


async def _length(replica: Replica) -> int | None:
    answer: ModelList = await replica.ask("GET", "/v1/models", ModelList)
    lengths = {model.id: model.max_model_len for model in answer.data if model.task == "generate"}
    if BASE not in lengths:
        raise SettingError(
            f"{replica.url} serves {', '.join(lengths) or 'nothing'}, not {BASE}: start it with "
            f"--served-model-name {BASE}"
        )
    return lengths[BASE]


async def _check_numbers(replica: Replica, length: int | None) -> None:
    try:
        await _check_logprobs(replica)
    except NonFiniteError:
        await clear_nan_blocks(replica, length)
        await _check_logprobs(replica)


async def _check_logprobs(replica: Replica) -> None:
    """The logprob of a token must be the model's own at temperature 1, regardless of the allowed tokens.

    The likeliest token has a logprob of at most 0, otherwise it is a logit. Any other token has at most half of
    the probability, also where it is the only one allowed: more means that logprobs were computed after the mask.
    """
    likeliest = await _one(replica, 0.0)
    other = next(token for token in _PROMPT if token != likeliest.ids[0])
    plain, hot = [await _one(replica, temperature, allowed=(other,)) for temperature in (1.0, 2.0)]
    if (plain.ids, hot.ids) != ((other,), (other,)):
        raise SettingError(f"{replica.url} ignores allowed_token_ids: update its vLLM")
    values = [likeliest.logprobs[0], plain.logprobs[0], hot.logprobs[0]]
    sound = all(map(math.isfinite, values)) and values[0] <= 1e-3 and values[1] < -0.5
    if not sound or abs(values[1] - values[2]) > 0.02 * abs(values[1]) + 0.1:  # bfloat16 varies from pass to pass
        raise SettingError(
            f"{replica.url} returns logprobs that are not the model's own at temperature 1 (the same token has "
            f"{values[1]:.3f} and {values[2]:.3f} at temperature 1 and 2): start it with "
            "--logprobs-mode raw_logprobs, which is vLLM's default"
        )


async def _one(replica: Replica, temperature: float, allowed: Sequence[int] = ()) -> Completion:
    sampling = Sampling(max_tokens=1, temperature=temperature, allowed_token_ids=tuple(allowed))
    answer = await replica.complete(_PROMPT, model=BASE, sampling=sampling, control=True)
    if len(answer.ids) != 1:
        raise InvalidResponseError(f"{replica.url} returned {len(answer.ids)} tokens, expected 1.")
    return answer


async def _check_loading(replica: Replica, requirements: ServerRequirements) -> None:
    """Loading a directory that does not exist must fail for exactly that reason."""
    nowhere = (requirements.adapters or Path("/nowhere")) / ".capability-none"
    try:
        await replica.request_load(_name(), nowhere)
    except EngineRefusalError as error:
        if error.code != HTTPStatus.NOT_FOUND or not _ABSENT.search(str(error)):
            raise SettingError(f"{replica.url} does not load adapters at runtime ({error}): {_RUNTIME}") from error
    except ReplicaError as error:
        if _OFF.search(str(error)):
            raise SettingError(
                f"{replica.url} does not serve adapters ({error}): start it with --enable-lora"
            ) from error
        raise
    else:
        raise SettingError(f"{replica.url} reports that it loaded an adapter from {nowhere}, which does not exist")


async def _rank(replica: Replica, requirements: ServerRequirements) -> tuple[int | None, str]:
    """The rank that was proved, or the reason why none was."""
    if not requirements.rank or requirements.adapters is None or requirements.model is None:
        return None, "no rank is required"
    shape = await asyncio.to_thread(_read_shape, requirements.model)
    if shape is None:
        return None, f"config.json in {requirements.model} does not give the shape of an adapter"
    try:
        path = await asyncio.to_thread(write_noop_adapter, requirements.adapters, shape, requirements.rank)
    except OSError as error:
        return None, f"the probe adapter cannot be written: {error}"
    return await _try(replica, path, requirements.rank)


async def _try(replica: Replica, path: Path, rank: int) -> tuple[int | None, str]:
    name = _name()
    try:
        await replica.request_load(name, path)
    except EngineRefusalError as error:
        if error.code == HTTPStatus.NOT_FOUND:
            raise SettingError(
                f"{replica.url} does not see the adapter directory {path.parent} ({error}): mount the same "
                "directory at the same path, for example as a shared volume"
            ) from error
        return None, str(error)
    except ReplicaError as error:
        if not error.code:
            raise
        if TOO_HIGH.search(str(error)):
            raise SettingError(
                f"{replica.url} does not load adapters of rank {rank} ({error}): start it with "
                f"--max-lora-rank {rank}"
            ) from error
        return None, str(error)
    await replica.unload(name)
    return rank, ""


async def _max_loras(replica: Replica, requirements: ServerRequirements) -> int | None:
    """vLLM reports it in a gauge, after its first request."""
    match = _LORAS.search(await replica.ask("GET", "/metrics", None))
    if match is None:
        return None
    if int(match[1]) < requirements.loras:
        raise SettingError(
            f"{replica.url} serves {match[1]} adapters at a time, and swapping them needs {requirements.loras}: "
            f"start it with --max-loras {requirements.loras}"
        )
    return int(match[1])


def _name() -> str:
    """Unique, so that two processes can probe the same server at once."""
    return f"{PROBE_PREFIX}{uuid4().hex[:12]}"


async def clear_nan_blocks(replica: Replica, max_model_len: int | None) -> None:
    """Raises what `complete` raises."""
    length = min(max_model_len or _SOME, _LONG) - 1
    prompt = tuple(1 + number % 31 for number in range(length))
    once = Sampling(max_tokens=1, temperature=0)
    await replica.complete(prompt, model=BASE, sampling=once, control=True)


class QueryShape(msgspec.Struct, frozen=True):
    """Shape of the query projections that the adapter covers."""

    layers: int
    width: int  # input features
    queries: int  # output features


def _read_shape(model: Path) -> QueryShape | None:
    """None if the base's config.json does not give it, or the layers differ from each other."""
    try:
        config: dict[str, Any] = read_json(model, "config.json")
    except ModelError:
        return None
    kinds = set(config.get("layer_types") or ["full_attention"])
    if not all(isinstance(config.get(name), int) for name in _LAYERS) or kinds != {"full_attention"}:
        return None
    layers, width, heads = (config[name] for name in _LAYERS)
    return QueryShape(layers, width, heads * (config.get("head_dim") or width // heads))


def write_noop_adapter(directory: Path, shape: QueryShape, rank: int) -> Path:
    """Write `directory`/.capability-... atomically, once. Raises OSError."""
    path = directory / f".capability-{rank}-{shape.layers}x{shape.width}x{shape.queries}"
    if path.is_dir():
        return path
    directory.mkdir(parents=True, exist_ok=True)
    with scratch_directory(directory) as scratch:
        draft = scratch / path.name
        draft.mkdir(0o755)  # the server may run as another user
        (draft / "adapter_config.json").write_text(json.dumps(_config(rank)), "utf-8")
        save_file(_weights(shape, rank), draft / "adapter_model.safetensors")
        try:
            draft.rename(path)
        except OSError:
            if not path.is_dir():  # otherwise another process was faster
                raise
    return path


def _config(rank: int) -> dict[str, Any]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": rank,
        "lora_dropout": 0.0,
        "target_modules": ["q_proj"],
        "bias": "none",
    }


def _weights(shape: QueryShape, rank: int) -> dict[str, np.ndarray[Any, Any]]:
    weights: dict[str, np.ndarray[Any, Any]] = {}
    for layer in range(shape.layers):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        weights[f"{name}.lora_A.weight"] = np.zeros((rank, shape.width), np.float32)
        weights[f"{name}.lora_B.weight"] = np.zeros((shape.queries, rank), np.float32)
    return weights
