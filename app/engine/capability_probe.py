"""Does a server do what its flags must switch on? Asked before its first request, and each time it returns.

Everything is tried, not read from a version: another server that does the same is as good as vLLM.
"""

import asyncio
import math
import re
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from uuid import uuid4

from app.engine.capability import TRIED, Capabilities, Needs
from app.engine.clear_nan_blocks import rinse
from app.engine.noop_adapter import shape_of, write_zero_adapter
from app.engine.protocol import Completion, Sampling
from app.engine.replica import Replica
from app.engine.vllm_api import Models, NonsenseError, NotFiniteError, ReplicaError
from app.errors import EngineRefusalError, SettingError
from app.records import BASE

_PROMPT = (1, 2, 3, 5, 8)
_RUNTIME = "set VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its environment and give it --enable-lora"
_LORAS = re.compile(r'^vllm:lora_requests_info\{[^}]*max_lora="(\d+)"', re.MULTILINE)
TOO_HIGH = re.compile(r"rank.*max_lora_rank", re.IGNORECASE)
_ABSENT = re.compile(r"no adapter found", re.IGNORECASE)  # vLLM tells it without the path
_OFF = re.compile(r"lora is not enabled", re.IGNORECASE)


async def examine(replica: Replica, needs: Needs) -> Capabilities:
    """Raises SettingError that names the flag a server lacks, EngineError where it cannot be asked now."""
    try:
        version = await replica.version()
        length = await _length(replica)
        await _check_numbers(replica, length)
        await _check_loading(replica, needs)
        rank, note = await _rank(replica, needs)
        return Capabilities(
            url=replica.url,
            version=version,
            max_model_len=length,
            max_loras=await _max_loras(replica, needs),
            rank=rank,
            note=note,
        )
    except (NonsenseError, EngineRefusalError) as error:
        raise SettingError(f"ENGINE_URLS names a server that is no vLLM as is needed: {error}") from error


async def _length(replica: Replica) -> int | None:
    answer: Models = await replica.ask("GET", "/v1/models", Models)
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
    except NotFiniteError:
        await rinse(replica, length)
        await _check_logprobs(replica)


async def _check_logprobs(replica: Replica) -> None:
    """The logprob of a token must be the model's own, at temperature 1, whatever was allowed to be drawn.

    The likeliest token has a logprob of at most 0, else it is a logit. Any other one has at most half of all
    probability, also where it is the only one allowed: if it has more, logprobs were taken after the mask.
    """
    likeliest = await _one(replica, 0.0)
    other = next(token for token in _PROMPT if token != likeliest.ids[0])
    plain, hot = [await _one(replica, temperature, allowed=(other,)) for temperature in (1.0, 2.0)]
    if (plain.ids, hot.ids) != ((other,), (other,)):
        raise SettingError(f"{replica.url} draws other tokens than allowed_token_ids: update its vLLM")
    values = [likeliest.logprobs[0], plain.logprobs[0], hot.logprobs[0]]
    sound = all(map(math.isfinite, values)) and values[0] <= 1e-3 and values[1] < -0.5
    if not sound or abs(values[1] - values[2]) > 0.02 * abs(values[1]) + 0.1:  # bfloat16 varies from pass to pass
        raise SettingError(
            f"{replica.url} gives logprobs that are not the model's own at temperature 1 (the same token has "
            f"{values[1]:.3f} and {values[2]:.3f} at temperature 1 and 2): start it with "
            "--logprobs-mode raw_logprobs, which is vLLM's default"
        )


async def _one(replica: Replica, temperature: float, allowed: Sequence[int] = ()) -> Completion:
    sampling = Sampling(max_tokens=1, temperature=temperature, allowed_token_ids=tuple(allowed))
    answer = await replica.complete(_PROMPT, model=BASE, sampling=sampling, loading=True)
    if len(answer.ids) != 1:
        raise NonsenseError(f"{replica.url} gave {len(answer.ids)} tokens where one was asked for.")
    return answer


async def _check_loading(replica: Replica, needs: Needs) -> None:
    """Loading what does not exist must fail for just that reason."""
    nowhere = (needs.adapters or Path("/nowhere")) / ".capability-none"
    try:
        await _load(replica, _name(), nowhere)
    except EngineRefusalError as error:
        if error.code != HTTPStatus.NOT_FOUND or not _ABSENT.search(str(error)):
            raise SettingError(f"{replica.url} loads no adapters while it runs ({error}): {_RUNTIME}") from error
    except ReplicaError as error:
        if _OFF.search(str(error)):
            raise SettingError(
                f"{replica.url} takes no adapters ({error}): start it with --enable-lora"
            ) from error
        raise
    else:
        raise SettingError(f"{replica.url} says that it loaded an adapter from {nowhere}, where there is none")


async def _rank(replica: Replica, needs: Needs) -> tuple[int | None, str]:
    """The rank that was proved, or why none was."""
    if not needs.rank or needs.adapters is None or needs.model is None:
        return None, "no rank was asked for"
    shape = await asyncio.to_thread(shape_of, needs.model)
    if shape is None:
        return None, f"config.json in {needs.model} does not tell the shape of an adapter"
    try:
        path = await asyncio.to_thread(write_zero_adapter, needs.adapters, shape, needs.rank)
    except OSError as error:
        return None, f"no adapter to try with can be written: {error}"
    return await _try(replica, path, needs.rank)


async def _try(replica: Replica, path: Path, rank: int) -> tuple[int | None, str]:
    name = _name()
    try:
        await _load(replica, name, path)
    except EngineRefusalError as error:
        if error.code == HTTPStatus.NOT_FOUND:
            raise SettingError(
                f"{replica.url} does not see the adapter directory {path.parent} ({error}): give it the same "
                "directory at the same path, such as by a shared volume"
            ) from error
        return None, str(error)
    except ReplicaError as error:
        if not error.code:
            raise
        if TOO_HIGH.search(str(error)):
            raise SettingError(
                f"{replica.url} takes no adapter of rank {rank} ({error}): start it with --max-lora-rank {rank}"
            ) from error
        return None, str(error)
    await replica.unload(name)
    return rank, ""


async def _max_loras(replica: Replica, needs: Needs) -> int | None:
    """vLLM tells it in a gauge, once it has served something."""
    told = _LORAS.search(await replica.ask("GET", "/metrics", None))
    if told is None:
        return None
    if int(told[1]) < needs.loras:
        raise SettingError(
            f"{replica.url} answers with {told[1]} adapters at a time, and {needs.loras} are needed to swap them: "
            f"start it with --max-loras {needs.loras}"
        )
    return int(told[1])


async def _load(replica: Replica, name: str, path: Path) -> None:
    await replica.ask("POST", "/v1/load_lora_adapter", None, {"lora_name": name, "lora_path": str(path)})


def _name() -> str:
    """Never the same, so that two processes that examine at once are not in each other's way."""
    return f"{TRIED}{uuid4().hex[:12]}"
