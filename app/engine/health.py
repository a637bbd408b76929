"""Probes whether a model server has the features that its flags must enable.

Runs before a server's first request and each time it returns. Features are tried, not derived from a version,
so any server with vLLM's behavior passes.
"""

import asyncio
import math
import re
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from uuid import uuid4

from app.engine.capability import PROBE_PREFIX, Capabilities, ServerRequirements
from app.engine.clear_nan_blocks import clear_nan_blocks
from app.engine.noop_adapter import read_shape, write_noop_adapter
from app.engine.protocol import Completion, Sampling
from app.engine.replica import Replica
from app.engine.vllm_api import InvalidResponseError, ModelList, NonFiniteError, ReplicaError
from app.errors import EngineRefusalError, SettingError
from app.records import BASE

_PROMPT = (1, 2, 3, 5, 8)
_RUNTIME = "set VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its environment and give it --enable-lora"
_LORAS = re.compile(r'^vllm:lora_requests_info\{[^}]*max_lora="(\d+)"', re.MULTILINE)
TOO_HIGH = re.compile(r"rank.*max_lora_rank", re.IGNORECASE)
_ABSENT = re.compile(r"no adapter found", re.IGNORECASE)  # vLLM reports it without the path
_OFF = re.compile(r"lora is not enabled", re.IGNORECASE)


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
        await _load(replica, _name(), nowhere)
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
    shape = await asyncio.to_thread(read_shape, requirements.model)
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
        await _load(replica, name, path)
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


async def _load(replica: Replica, name: str, path: Path) -> None:
    await replica.ask("POST", "/v1/load_lora_adapter", None, {"lora_name": name, "lora_path": str(path)})


def _name() -> str:
    """Unique, so that two processes can probe the same server at once."""
    return f"{PROBE_PREFIX}{uuid4().hex[:12]}"
