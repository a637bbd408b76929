"""Requests the logprobs of fixed tokens from a model server, with an adapter and with the base model."""

from collections.abc import Sequence

from app.base.errors import AdapterError, EngineError
from app.base.values import BASE, Probe, ProbePoint
from app.engine.protocol import Completion, Sampling
from app.engine.replica import Replica
from app.engine.vllm import NonFiniteError
from app.hot_swap.gather_all import gather_all
from app.hot_swap.verification import LogprobDifferences, verify_logprobs

_PROMPT = tuple(range(1, 33))  # for adapters without a probe: every vocabulary has these ids
_LENGTH = 16


async def verify_replica(replica: Replica, model: str, probe: Probe) -> LogprobDifferences:
    """Raises AdapterError if it does not serve the trained weights, EngineError if it is down."""
    base = await _logprobs(replica, BASE, probe)  # first: some backends mix up a batch of both
    return verify_logprobs(probe, await _logprobs(replica, model, probe), base)


async def record_probe(replica: Replica, model: str) -> Probe:
    """A probe of this server's own logprobs, for adapters without the trainer's."""
    greedy = Sampling(max_tokens=_LENGTH, temperature=0)
    completion = await _complete(replica, model, _PROMPT, greedy)
    blank_points = tuple(
        ProbePoint(len(_PROMPT) + index, token, 0.0, 0.0) for index, token in enumerate(completion.ids)
    )
    blank = Probe(_PROMPT + completion.ids, blank_points)
    base, adapter = await _logprobs(replica, BASE, blank), await _logprobs(replica, model, blank)
    points = (
        ProbePoint(point.position, point.token, with_adapter, without)
        for point, with_adapter, without in zip(blank_points, adapter, base, strict=True)
    )
    return Probe(blank.prompt_ids, tuple(points))


async def _logprobs(replica: Replica, model: str, probe: Probe) -> Sequence[float]:
    return await gather_all(*(_logprob(replica, model, probe, point) for point in probe.points))


async def _logprob(replica: Replica, model: str, probe: Probe, point: ProbePoint) -> float:
    """The logprob of one token, which is the only one allowed."""
    forced = Sampling(max_tokens=1, temperature=0, allowed_token_ids=(point.token,))
    completion = await _complete(replica, model, probe.prompt_ids[: point.position], forced)
    if completion.ids != (point.token,):
        raise EngineError(
            f"{replica.url} sampled {completion.ids} where only {point.token} is allowed: it ignores "
            "allowed_token_ids, so the adapter cannot be verified. Use a newer vLLM"
        )
    return completion.logprobs[0]


async def _complete(replica: Replica, model: str, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
    try:
        return await replica.complete(prompt_ids, model=model, sampling=sampling, control=True)
    except NonFiniteError as error:
        if model == BASE:
            raise
        raise AdapterError(f"these weights give values that are not finite: train others ({error})") from error
