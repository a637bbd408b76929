"""Liger's kernels for norms, rotary embeddings and gates: less memory and time for large models on NVIDIA GPUs."""

import torch
from transformers import PreTrainedModel
from transformers.integrations.liger import apply_liger_kernel

from app.errors import InvalidError

_LOSSES = {"cross_entropy": False, "fused_linear_cross_entropy": False}  # ours scores sampled tokens only


def use_liger(model: PreTrainedModel, device: torch.device) -> None:
    """Patch the model with the kernels, before any adapter is attached.

    Raises InvalidError if they cannot run here, or do not support the model's architecture.
    """
    if device.type != "cuda":
        raise InvalidError(f"liger runs on an NVIDIA GPU, not on {device.type}: set liger=false")
    try:
        apply_liger_kernel(model, dict(_LOSSES))
    except ImportError as error:
        raise InvalidError("the setting liger needs a package: pip install liger-kernel") from error
