"""How much memory a forward pass keeps for its backward pass."""

import torch
from torch import Tensor

from trainer.learning.batch import Sample, pad
from trainer.learning.logprob_model import LogprobModel

_LENGTHS = (32, 96)  # tokens


def activation_bytes(policy: LogprobModel) -> int:
    """Bytes for each token, measured: what a longer pass keeps beyond a shorter one, at least 1.

    Where processes share the weights, all of them must call it together.
    """
    short, long = (_kept_bytes(policy, length) for length in _LENGTHS)
    return max(1, (long - short) // (_LENGTHS[1] - _LENGTHS[0]))


def _kept_bytes(policy: LogprobModel, length: int) -> int:
    kept: dict[int, int] = {}  # several saved tensors may be views of the same memory

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    batch = pad([Sample((0,) * length, (False,) * (length - 1) + (True,))], policy.model.device)
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logprobs = policy(batch)
    del logprobs
    return sum(kept.values())
