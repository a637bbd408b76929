"""Decoder layers of the Llama family in few calls: a step of a small model takes as long as the calls it makes."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer

from app.engine.model_memory import WeightFormat, is_fused
from app.model_server.joined_layers import JoinedLinear, packing
from app.model_server.kv_cache import PagedCache
from app.model_server.model_dtype import saved_dtype

_FUSED = (LlamaDecoderLayer, Qwen2DecoderLayer)


def fuse_layers(model: PreTrainedModel) -> None:
    """Replace the layers of a Llama or Qwen2 and its output layer, one by one, if it computes in float32.

    Others stay transformers' modules: in half precision each order of operations has roundings of its own, which
    would be told from an error no longer.
    """
    body: Any = model.base_model
    layers = getattr(body, "layers", ())
    if not layers or type(layers[0]) not in _FUSED or model.config.hidden_act != "silu":
        return
    if model.dtype != torch.float32:
        return
    for index, layer in enumerate(layers):
        layers[index] = FusedLayer(layer)
    body.rotary_emb = SignedRotary(body.rotary_emb)
    whole: Any = model
    whole.lm_head = JoinedLinear({"lm_head": whole.lm_head})


def weight_format(model_dir: Path, device: torch.device, dtype: torch.dtype) -> WeightFormat:
    """How weights are kept once `fuse_layers` has replaced the layers."""
    saved = saved_dtype(model_dir)
    fused = is_fused(model_dir) and dtype in (torch.float32, torch.int8)
    return WeightFormat(
        bytes_per_weight=dtype.itemsize,
        bytes_to_read=saved.itemsize if dtype == torch.int8 else dtype.itemsize,
        packing=packing(dtype, saved) if fused and device.type == "cpu" else "none",
        joined=fused,
    )


class SignedRotary(nn.Module):
    """Cosines, and sines with the sign of what `roll` by half of the width brings: (rows, tokens, 1, width)."""

    def __init__(self, plain: nn.Module) -> None:
        super().__init__()
        self.plain = plain

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = self.plain(x, position_ids=position_ids)
        lower, upper = sin.chunk(2, -1)
        return cos.unsqueeze(2), torch.cat((-lower, upper), -1).unsqueeze(2)


class FusedLayer(nn.Module):
    def __init__(self, layer: Any) -> None:
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        self.index, self.scaling, self.width = attention.layer_idx, attention.scaling, attention.head_dim
        self.qkv = _joined("self_attn", attention, "q_proj", "k_proj", "v_proj")
        self.output = _joined("self_attn", attention, "o_proj")
        self.gate_up = _joined("mlp", mlp, "gate_proj", "up_proj")
        self.down = _joined("mlp", mlp, "down_proj")
        self.heads, self.key_heads = (size // self.width for size in list(self.qkv.parts.values())[:2])
        self.before_attention, self.before_mlp = layer.input_layernorm, layer.post_attention_layernorm

    def forward(
        self, x: Tensor, *, position_embeddings: tuple[Tensor, Tensor], paged_cache: PagedCache, **_: object
    ) -> Tensor:
        """x: (rows, tokens, hidden)."""
        cos, sin = position_embeddings
        lanes = self.qkv(_normalize(x, self.before_attention)).unflatten(-1, (-1, self.width))
        turned = lanes[:, :, : self.heads + self.key_heads]
        torch.addcmul(turned * cos, turned.roll(self.width // 2, -1), sin, out=turned)
        paged_cache.write(self.index, lanes[:, :, self.heads :])
        query, key, value = lanes.transpose(1, 2).split((self.heads, self.key_heads, self.key_heads), 1)
        mixed = paged_cache.attend(self.index, query, key, value, self.scaling)
        x = x + self.output(mixed.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(_normalize(x, self.before_mlp)).chunk(2, -1)
        y: Tensor = x + self.down(functional.silu(gate).mul_(up))
        return y


def _joined(parent: str, module: Any, *names: str) -> JoinedLinear:
    return JoinedLinear({f"{parent}.{name}": getattr(module, name) for name in names})


def _normalize(x: Tensor, norm: Any) -> Tensor:
    return functional.rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)
