"""What an adapter says of fixed tokens, and its base: by this a model server proves which of them it wears."""

from collections.abc import Sequence
from typing import cast

import torch
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel

from app.records import Probe, ProbePoint
from trainer.learning.batch import Sample, pad
from trainer.learning.model import sampled_logprobs

_OPENING = 384  # tokens of the prompt at most, its last: every server has room for them
_ANSWER = 24  # greedy tokens of the adapter that follow it
_WATCHED = 64  # the last tokens, among which those are chosen that differ most
_LIKELY = -7.0  # logprobs below it are the least exact ones of a server with fewer bits


@torch.no_grad()
def make_probe(model: PeftModel, opening: Sequence[int], count: int = 8) -> Probe:
    """At most `count` points. An adapter that changes nothing has as many, but nothing can be proven by them."""
    training = model.training
    model.eval()
    try:
        ids = _answered(model, list(opening)[-_OPENING:])
        adapted = _logprobs(model, ids)
        with model.disable_adapter():
            base = _logprobs(model, ids)
    finally:
        model.train(training)
    first = len(ids) - len(base)
    points = [
        ProbePoint(first + index, ids[first + index], *pair)
        for index, pair in enumerate(zip(adapted, base, strict=True))
    ]
    chosen = sorted(points, key=_worth, reverse=True)[:count]
    return Probe(tuple(ids), tuple(sorted(chosen, key=lambda point: point.position)))


def _worth(point: ProbePoint) -> tuple[bool, float]:
    return max(point.logprob, point.base) > _LIKELY, abs(point.logprob - point.base)


def _answered(model: PeftModel, ids: list[int]) -> list[int]:
    """The tokens, and what the adapter thinks most likely after them."""
    base = _inner(model)
    for _ in range(_ANSWER):
        tensor = torch.tensor([ids], device=model.device)
        hidden = base.get_decoder()(input_ids=tensor, use_cache=False).last_hidden_state[0, -1]
        ids = [*ids, int(base.get_output_embeddings()(hidden).argmax())]
    return ids


def _logprobs(model: PeftModel, ids: list[int]) -> list[float]:
    """Of the last tokens; the first of all is not among them."""
    watched = min(_WATCHED, len(ids) - 1)
    sampled = (False,) * (len(ids) - watched) + (True,) * watched
    found: Tensor = sampled_logprobs(_inner(model), pad([Sample(tuple(ids), sampled)], model.device))
    return cast(list[float], found.tolist())


def _inner(model: PeftModel) -> PreTrainedModel:
    return cast(PreTrainedModel, model.get_base_model())  # with the LoRA layers in it
