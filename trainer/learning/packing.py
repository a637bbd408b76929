"""Attention for packed rows: samples lie end to end in one row, none sees another, and nothing is padded."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

PACKED = "packed"


def register() -> None:
    """Makes models that are loaded with `attn_implementation=PACKED` attend by `attend`. Harmless to repeat."""
    AttentionInterface.register(PACKED, attend)


def can_pack(model_class: object) -> bool:
    """Not where a layer carries a state from token to token, across the border of two samples."""
    open_to_others = getattr(model_class, "_supports_attention_backend", False)
    return bool(open_to_others) and not getattr(model_class, "_is_stateful", True)


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Causal attention inside each sample, as transformers calls it.

    query (1, H, T, D), key and value (1, H or fewer, T, D); gives (1, T, H, D). `lengths` of the samples add up
    to T; without them every row is one sample, and may be padded on the right. The masks of transformers are not
    needed. Raises NotImplementedError for what only the model's own attention can do.
    """
    if attention_mask is not None or options.get("softcap") is not None or not getattr(module, "is_causal", True):
        raise NotImplementedError("packed rows are for plain causal attention")
    sizes = options.get("lengths") or [query.shape[2]]
    parts = zip(query.split(sizes, 2), key.split(sizes, 2), value.split(sizes, 2), strict=True)
    attended = [_one(*part, options.get("scaling"), options.get("sliding_window")) for part in parts]
    return torch.cat(attended, 2).transpose(1, 2), None


def _one(query: Tensor, key: Tensor, value: Tensor, scale: float | None, window: int | None) -> Tensor:
    band = _band(query, window)
    return scaled_dot_product_attention(
        query, key, value, attn_mask=band, is_causal=band is None, scale=scale, enable_gqa=True
    )


def _band(query: Tensor, window: int | None) -> Tensor | None:
    """(T, T) bool where the window is narrower than the sample: a token sees itself and window - 1 before it."""
    length = query.shape[2]
    if window is None or length <= window:
        return None
    places = torch.arange(length, device=query.device)
    back = places[:, None] - places[None, :]
    return (back >= 0) & (back < window)
