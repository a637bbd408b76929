"""Asks a model server for the logprobs of fixed tokens, as an adapter and as the base model."""

from collections.abc import Sequence

from app.engine.protocol import Completion, Sampling
from app.engine.replica import Replica
from app.engine.vllm_api import NonFiniteError
from app.errors import AdapterError, EngineError
from app.hot_swap.gather_all import together
from app.hot_swap.verification import Figures, compare
from app.records import BASE, Probe, ProbePoint

_OPENING = tuple(range(1, 33))  # of an adapter without a probe: every vocabulary has these
_LENGTH = 16


async def prove(replica: Replica, model: str, probe: Probe) -> Figures:
    """Raises AdapterError where it does not wear the adapter as it was trained, EngineError where it is down."""
    base = await _ask(replica, BASE, probe)  # first: some backends mix up a batch of both
    return compare(probe, await _ask(replica, model, probe), base)


async def observe(replica: Replica, model: str) -> Probe:
    """For an adapter that no trainer of ours spoke for: what this server says, for all of them to agree with."""
    greedy = Sampling(max_tokens=_LENGTH, temperature=0)
    said = await _said(replica, model, _OPENING, greedy)
    places = tuple(ProbePoint(len(_OPENING) + index, token, 0.0, 0.0) for index, token in enumerate(said.ids))
    blank = Probe(_OPENING + said.ids, places)
    base, adapter = await _ask(replica, BASE, blank), await _ask(replica, model, blank)
    points = (
        ProbePoint(place.position, place.token, worn, plain)
        for place, worn, plain in zip(places, adapter, base, strict=True)
    )
    return Probe(blank.prompt_ids, tuple(points))


async def _ask(replica: Replica, model: str, probe: Probe) -> Sequence[float]:
    return await together(*(_logprob(replica, model, probe, point) for point in probe.points))


async def _logprob(replica: Replica, model: str, probe: Probe, point: ProbePoint) -> float:
    """What the server says of one token: the only one that it may draw."""
    forced = Sampling(max_tokens=1, temperature=0, allowed_token_ids=(point.token,))
    said = await _said(replica, model, probe.prompt_ids[: point.position], forced)
    if said.ids != (point.token,):
        raise EngineError(
            f"{replica.url} drew {said.ids} where only {point.token} is allowed: it does not know "
            "allowed_token_ids, so nothing can be proven. Use a newer vLLM"
        )
    return said.logprobs[0]


async def _said(replica: Replica, model: str, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
    try:
        return await replica.complete(prompt_ids, model=model, sampling=sampling, control=True)
    except NonFiniteError as error:
        if model == BASE:
            raise
        raise AdapterError(f"these weights give values that are not finite: train others ({error})") from error
