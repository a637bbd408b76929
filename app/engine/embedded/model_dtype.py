"""The dtype of the weights, and how far it may move a distribution of next tokens."""

from pathlib import Path

import torch
from torch import Tensor

from app.engine.tokenizer import read_json

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.15}
"""Of `moved_mass`. Measured on random weights of 135 M parameters and 49,152 words: 1e-5 and 0.07."""


def resolve_dtype(name: str, device: str, model_dir: Path) -> torch.dtype:
    """`auto` is bfloat16 where that is faster, for weights that were saved in half precision; else float32."""
    if name != "auto":
        return torch.bfloat16 if name == "bfloat16" else torch.float32
    config = read_json(model_dir, "config.json")
    saved = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    return torch.bfloat16 if saved in ("bfloat16", "float16") and fast_bfloat16(device) else torch.float32


def fast_bfloat16(device: str) -> bool:
    """CPUs need tiles (AMX): with AVX-512 alone, bfloat16 was measured slower than float32 for most batches."""
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device == "cpu" and bool(torch.cpu.get_capabilities().get("amx_bf16"))


def moved_mass(logprobs: Tensor, expected: Tensor) -> float:
    """The largest total variation distance of two distributions: the part of the probability that they place on
    other tokens. Both (n, vocabulary).

    A difference of logprobs would be ruled by words that no one samples, the more so the larger the vocabulary.
    """
    return float((logprobs.exp() - expected.exp()).abs().sum(-1).max().item() / 2)
