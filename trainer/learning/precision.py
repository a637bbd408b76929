"""Number formats of training: which one the frozen base model is loaded in, and logits that stay exact.

LoRA weights, their gradients and the optimizer are float32 in every case (`with_lora`); only the base may be
bfloat16.
"""

from types import MethodType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel

DtypeName = Literal["auto", "float32", "bfloat16"]


def base_dtype(name: DtypeName, device: torch.device) -> torch.dtype:
    """The format of the base model's weights. "auto" is bfloat16 on CUDA and float32 elsewhere.

    >>> base_dtype("auto", torch.device("cpu")), base_dtype("auto", torch.device("cuda"))
    (torch.float32, torch.bfloat16)
    >>> base_dtype("bfloat16", torch.device("cpu"))
    torch.bfloat16
    """
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return torch.bfloat16 if name == "bfloat16" else torch.float32


class ExactLogits(torch.autograd.Function):
    """hidden (N, D) times weight (V, D), both bfloat16: logits (N, V) in float32, never rounded to bfloat16.

    bfloat16 has 8 significant bits: a rounded logit of 20 may be off by 0.06, and so would its logprob.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        if hidden.is_cuda:
            return torch.mm(hidden, weight.t(), out_dtype=torch.float32)
        return linear(hidden.float(), weight.float())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (weight,) = ctx.saved_tensors
        return gradients[0].to(weight.dtype) @ weight, None


def keep_logits_exact(model: PreTrainedModel) -> None:
    """Make a frozen output layer of reduced precision return float32. Other output layers are left as they are."""
    head = model.get_output_embeddings()
    if type(head) is nn.Linear and head.bias is None and head.weight.dtype is torch.bfloat16:
        head.forward = MethodType(_forward, head)


def _forward(head: nn.Linear, hidden: Tensor) -> Tensor:
    logits: Tensor = ExactLogits.apply(hidden.flatten(0, -2), head.weight)
    return logits.view(*hidden.shape[:-1], -1)
