"""Mends two faults of vLLM 0.32 on the CPU. vLLM loads this by its entry point; `VLLM_PLUGINS=none` leaves it out.

1. A request without an adapter has index -1, which PyTorch reads as the last slot: when that slot is taken, base
   requests are answered by its adapter. Here their rows are zero between the adapter's two matrices.
2. An adapter that was once loaded with `load_inplace` is read from its directory again at every step. Here only
   the load is in place, and the requests that follow are ordinary ones.
"""

from typing import Any

import torch
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.lora.ops import torch_ops
from vllm.lora.ops.torch_ops import lora_ops
from vllm.lora.punica_wrapper import punica_cpu

_shrink = lora_ops.bgmv_shrink
_load = OpenAIServingModels.load_lora_adapter


def mend() -> None:
    """Safe to call twice: vLLM does, in some of its processes."""
    for module in (lora_ops, torch_ops, punica_cpu):  # each has imported the name
        module.bgmv_shrink = _shrink_adapters_alone
    OpenAIServingModels.load_lora_adapter = _load_in_place_once


def _shrink_adapters_alone(
    inputs: torch.Tensor,
    weights: torch.Tensor,
    output: torch.Tensor,
    indices: torch.Tensor,
    scaling: float = 1.0,
) -> None:
    """inputs (T, H) by the A of (slots, 1, R, H) that `indices` (T) name, into output (T, R); 0 where it is -1."""
    bare = indices < 0
    if bool(bare.all()):
        output.zero_()
        return
    _shrink(inputs, weights, output, indices, scaling)
    output.masked_fill_(bare[:, None], 0)


async def _load_in_place_once(self: Any, request: Any, base_model_name: str | None = None) -> Any:
    answer = await _load(self, request, base_model_name)
    loaded = self.lora_requests.get(request.lora_name)
    if loaded is not None:
        loaded.load_inplace = False
    return answer
