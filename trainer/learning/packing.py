"""Attention over packed rows: samples lie end to end in one row without padding, and none attends to another.

A sample may leave out its first tokens where the one before it in the row begins with them, too: it attends to
those. The rollouts of a group have one prompt, so it is encoded once.

On CUDA one variable-length kernel computes all samples of a row; elsewhere they are computed one by one.
"""

from collections.abc import Sequence
from itertools import pairwise, zip_longest
from typing import Any, NamedTuple, Self, cast

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

PACKED = "packed"
_PROBE = "probe"  # in the place of a packing
_KERNEL_DTYPES = (torch.bfloat16, torch.float16)
_KERNEL_HEAD = 256  # numbers in a head at most, and a multiple of 8


class Packing(NamedTuple):
    """Where the B samples of a packed row begin and end, and which tokens of it they attend to."""

    lengths: Sequence[int]  # (B,) without shared tokens
    offsets: Tensor  # (B + 1,) int32 on the model's device: where each sample begins, then the row's length
    longest: int
    key_lengths: Sequence[int]  # (B,) with shared tokens
    keys: Tensor | None = None  # (sum of key_lengths,) places in the row; None: each sample's own

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device, shared: Sequence[int] = ()) -> Self:
        """The first shared[i] tokens of sample i are those of sample i - 1 and left out.

        >>> Packing.of([2, 3], torch.device("cpu")).offsets.tolist()
        [0, 2, 5]
        >>> found = Packing.of([4, 3], torch.device("cpu"), [0, 2])
        >>> found.lengths, found.keys.tolist()
        ([4, 1], [0, 1, 2, 3, 0, 1, 4])
        """
        own = [length - left_out for length, left_out in zip_longest(lengths, shared, fillvalue=0)]
        ends = torch.tensor([0, *own]).cumsum(0)
        keys = _keys(ends.tolist(), shared).to(device) if any(shared) else None
        return cls(own, ends.to(device, torch.int32), max(own), lengths, keys)


def _keys(ends: Sequence[int], shared: Sequence[int]) -> Tensor:
    """The places of each sample's tokens, shared ones included, end to end."""
    places = [torch.arange(ends[0], ends[1])]
    for left_out, (start, end) in zip(shared[1:], pairwise(ends[1:]), strict=True):
        places.append(torch.cat([places[-1][:left_out], torch.arange(start, end)]))
    return torch.cat(places)


def register() -> None:
    """Make models loaded with `attn_implementation=PACKED` use `attend`. Safe to repeat."""
    AttentionInterface.register(PACKED, attend)


class _ReachedError(Exception):
    """The probe has reached the attention."""


@torch.no_grad()
def passes_packing(model: PreTrainedModel) -> bool:
    """Whether its layers hand the packing to the attention. Those of some models do not: samples would mix."""
    try:
        model(input_ids=torch.tensor([[0, 1]], device=model.device), packing=_PROBE, use_cache=False)
    except _ReachedError:
        return True
    except TypeError:
        return False
    return False


def can_pack(model_class: object) -> bool:
    """Whether rows can be packed: not where a layer carries state from token to token, across sample borders, nor
    where attention has more than torch's own computes, such as sinks, or a cap of its scores.
    """
    is_plain = all(getattr(model_class, name, False) for name in ("_supports_attention_backend", "_supports_sdpa"))
    return is_plain and not getattr(model_class, "_is_stateful", True)


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Causal attention within each sample, with the signature that transformers calls.

    query (1, H, T, D), key and value (1, H or fewer, T, D) to (1, T, H, D). `packing` covers the T tokens, without
    shared ones on CUDA; without it every row is one sample, and may be padded on the right. The masks of
    transformers are not needed.
    Raises NotImplementedError for features that only the model's own attention has.
    """
    if attention_mask is not None or options.get("softcap") is not None or not getattr(module, "is_causal", True):
        raise NotImplementedError("packed rows are for plain causal attention")
    if options.get("packing") is _PROBE:
        raise _ReachedError
    packing: Packing | None = options.get("packing")
    scale, window = options.get("scaling"), options.get("sliding_window")
    if packing is not None and query.is_cuda and fits_kernel(query):
        return attend_at_once(query, key, value, packing, scale, window), None
    if packing is None:
        return _attend_one(query, key, value, scale, window).transpose(1, 2), None
    lengths, key_lengths = list(packing.lengths), list(packing.key_lengths)
    if packing.keys is not None:
        key, value = key.index_select(2, packing.keys), value.index_select(2, packing.keys)
    samples = zip(query.split(lengths, 2), key.split(key_lengths, 2), value.split(key_lengths, 2), strict=True)
    return torch.cat([_attend_one(*each, scale, window) for each in samples], 2).transpose(1, 2), None


def fits_kernel(query: Tensor) -> bool:
    """Whether the variable-length kernel takes these numbers: 16 bits each, in heads of a supported size."""
    return query.dtype in _KERNEL_DTYPES and query.shape[-1] <= _KERNEL_HEAD and query.shape[-1] % 8 == 0


def attend_at_once(
    query: Tensor, key: Tensor, value: Tensor, packing: Packing, scale: float | None, window: int | None
) -> Tensor:
    """`attend` by one kernel for all samples of the row. CUDA, and tensors that `fits_kernel` accepts."""
    q, k, v = (each[0].transpose(0, 1) for each in (query, key, value))  # (T, H, D)
    attended = varlen_attn(
        q,
        k,
        v,
        packing.offsets,
        packing.offsets,
        packing.longest,
        packing.longest,
        scale=scale,
        window_size=reach(window),
        enable_gqa=True,
    )
    return cast(Tensor, attended)[None]


def reach(window: int | None) -> tuple[int, int]:
    """How many tokens before and after itself a token attends to; -1 is no limit. A window includes the token.

    >>> reach(None), reach(4)
    ((-1, 0), (3, 0))
    """
    return (-1 if window is None else window - 1, 0)


def _attend_one(query: Tensor, key: Tensor, value: Tensor, scale: float | None, window: int | None) -> Tensor:
    """The queries are of the last tokens that there are keys for."""
    mask = _mask(query.shape[2], key.shape[2], window, query.device)
    return scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=True
    )


def _mask(queries: int, keys: int, window: int | None, device: torch.device) -> Tensor | None:
    """(queries, keys) bool: a token sees itself and the window - 1 tokens before it. None for plain causal."""
    if queries == keys and (window is None or keys <= window):
        return None
    positions = torch.arange(keys, device=device)
    distance = positions[keys - queries :, None] - positions[None, :]
    return (distance >= 0) & (distance < (window or keys))
