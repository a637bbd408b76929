"""How much memory a forward pass keeps for its backward pass, and how it keeps less."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedModel

from trainer.learning.batch import Batch, Sample, pad

ACTIVATION_BYTES = 5 << 28  # of a pass on a CPU, which gains nothing from longer ones
_LENGTHS = (32, 96)  # tokens


def activation_bytes(logprobs: Callable[[Batch], Tensor], device: torch.device) -> int:
    """Bytes for each token, measured: what a longer pass of `logprobs` keeps beyond a shorter one, at least 1.

    Where processes share the weights, all of them must call it together.
    """
    short, long = (_kept_bytes(logprobs, device, length) for length in _LENGTHS)
    return max(1, (long - short) // (_LENGTHS[1] - _LENGTHS[0]))


def checkpoint_activations(base: PreTrainedModel) -> None:
    """Recompute the activations inside a layer in the backward pass instead of keeping them."""
    base.activation_checkpointing_enable()
    base.disable_input_require_grads()  # it would make the first layer compute a gradient that nothing needs


@contextmanager
def checkpointed(base: PreTrainedModel) -> Iterator[None]:
    """`checkpoint_activations` for the passes in this block, unless all do so."""
    if base.is_activation_checkpointing:
        yield
        return
    trains = base.training  # else layers keep everything
    checkpoint_activations(base)
    base.train()
    try:
        yield
    finally:
        base.train(trains)
        base.activation_checkpointing_disable()


def _kept_bytes(logprobs: Callable[[Batch], Tensor], device: torch.device, length: int) -> int:
    kept: dict[int, int] = {}  # several saved tensors may be views of the same memory

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    batch = pad([Sample((0,) * length, (False,) * (length - 1) + (True,))], device)
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        found = logprobs(batch)
    del found
    return sum(kept.values())
