"""Liger's kernels for norm, rotation and gate: less memory and time for large models on an NVIDIA GPU."""

import torch
from transformers import PreTrainedModel
from transformers.integrations.liger import apply_liger_kernel

from app.errors import InvalidError

_OURS = {"cross_entropy": False, "fused_linear_cross_entropy": False}  # logprobs are taken of sampled tokens only


def use_liger(model: PreTrainedModel, device: torch.device) -> None:
    """Puts the kernels into the model, before any adapter is put on.

    Raises InvalidError where they cannot run, or do not know the model's architecture.
    """
    if device.type != "cuda":
        raise InvalidError(f"liger runs on an NVIDIA GPU, not on {device.type}: leave the setting liger out")
    try:
        apply_liger_kernel(model, dict(_OURS))
    except ImportError as error:
        raise InvalidError("the setting liger needs a package: pip install liger-kernel") from error
