"""How much memory a forward pass keeps for its backward pass."""

from collections.abc import Callable

import torch
from torch import Tensor

from trainer.learning.batch import Batch, Sample, pad

ACTIVATION_BYTES = 5 << 28  # of a pass on a CPU, which gains nothing from longer ones
_LENGTHS = (32, 96)  # tokens


def activation_bytes(logprobs: Callable[[Batch], Tensor], device: torch.device) -> int:
    """Bytes for each token, measured: what a longer pass of `logprobs` keeps beyond a shorter one, at least 1.

    Where processes share the weights, all of them must call it together.
    """
    short, long = (_kept_bytes(logprobs, device, length) for length in _LENGTHS)
    return max(1, (long - short) // (_LENGTHS[1] - _LENGTHS[0]))


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
