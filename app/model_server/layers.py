"""Layers that are faster than those of transformers: weights of 8 bits for CPUs, linear layers with a common
input as one, and decoder layers of the Llama family in few calls, since a step of a small model takes as long
as the calls it makes.
"""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer

from app.engine.memory import Packing, WeightFormat, is_fused
from app.model_server.device import saved_dtype
from app.model_server.kv_cache import PagedCache

_LEVELS = 127  # of a weight
_HALF = 63  # of half an activation: CPUs without VNNI add two products in 16 bits
_LOW = 2 * _HALF  # a step of the upper half in steps of the lower one
_ROWS = 4096  # quantized at a time, which bounds the memory for it
_HALF_STEP = 2**-25  # of the smallest numbers in float16
_FUSED = (LlamaDecoderLayer, Qwen2DecoderLayer)


class Int8Activations:
    """The latest input as integers, shared by layers that read the same tensor: those of query, key and value."""

    def __init__(self) -> None:
        self._input: Tensor | None = None
        self._halves = self._scale = torch.empty(0)

    def quantize(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x: (rows, ..., in). Returns the upper halves, then the lower ones, whole numbers as floats, (2 x rows,
        ..., in), and the scales, (rows, ..., 1). That of a token that is not finite is not finite either.
        """
        if x is not self._input:
            top = x.abs().amax(-1, keepdim=True).clamp_min_(1e-30)
            steps = x * (_HALF / top)
            upper = steps.round()
            lower = steps.sub_(upper).mul_(_LOW).round_()
            self._input = x
            self._halves, self._scale = torch.cat((upper, lower)), top.mul_(1 / _HALF)
        return self._halves, self._scale


class Int8Linear(nn.Module):
    weight: Tensor
    scale: Tensor

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None, activations: Int8Activations) -> None:
        """weight: (out, in), int8; scale: (out,)."""
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)
        self.bias = None if bias is None else nn.Parameter(bias.float(), requires_grad=False)
        self.out_features, self.in_features = weight.shape
        self.activations = activations

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., in)."""
        halves, scale = self.activations.quantize(x)
        upper, lower = self._multiply(halves.flatten(0, -2)).chunk(2)
        y = upper.add_(lower, alpha=1 / _LOW).view(*x.shape[:-1], -1).mul_(scale)
        return y if self.bias is None else y + self.bias

    def _multiply(self, x: Tensor) -> Tensor:
        """x: (n, in), whole numbers."""
        return torch._int_mm(x.to(torch.int8), self.weight.t()).float().mul_(self.scale)


class PackedInt8Linear(Int8Linear):
    """With weights in the order of fbgemm, whose products of few rows take half the time of oneDNN's."""

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None, activations: Int8Activations) -> None:
        super().__init__(weight, scale, bias, activations)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a deprecated type of tensors: `can_pack` asks whether it is there
            zeros = torch.zeros(len(scale), dtype=torch.long)
            quantized = torch._make_per_channel_quantized_tensor(weight, scale.double(), zeros, 0)
            self._packed = torch.ops.quantized.linear_prepack(quantized, None)
        self._product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default
        self.packed_bytes = weight.nbytes
        del self.weight

    def _multiply(self, x: Tensor) -> Tensor:
        y: Tensor = self._product(x, 1.0, _HALF + 1, self._packed)
        return y


def can_pack() -> bool:
    return torch.backends.quantized.engine == "x86" and hasattr(torch, "_make_per_channel_quantized_tensor")


class Int8Embedding(nn.Module):
    weight: Tensor
    scale: Tensor

    def __init__(self, weight: Tensor, scale: Tensor) -> None:
        """weight: (words, width), int8; scale: (words,)."""
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)

    def forward(self, ids: Tensor) -> Tensor:
        return self.weight[ids] * self.scale[ids, None]


def quantize_layers(model: nn.Module) -> None:
    """Replace linear layers and embeddings, one by one, and compute all else in float32. A layer that is tied to
    an embedding stays so.
    """
    activations = Int8Activations()
    embeddings: list[tuple[Tensor, tuple[Tensor, Tensor]]] = []
    for name in [name for name, part in model.named_modules() if type(part) in (nn.Linear, nn.Embedding)]:
        part = model.get_submodule(name)
        weight: Tensor = part.weight  # type: ignore[assignment]
        integers = next((found for tied, found in embeddings if tied is weight), None) or quantize(weight)
        if isinstance(part, nn.Linear):
            replacement: nn.Module = Int8Linear(*integers, part.bias, activations)
        else:
            embeddings.append((weight, integers))
            replacement = Int8Embedding(*integers)
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, replacement)
    model.float()


def is_quantized(model: nn.Module) -> bool:
    return any(isinstance(part, Int8Linear) for part in model.modules())


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight: (out, in). Returns integers and the scale of each row."""
    integers, scales = [], []
    for rows in weight.detach().split(_ROWS):
        scale = rows.float().abs().amax(1).clamp_min_(1e-30) / _LEVELS
        integers.append((rows.float() / scale[:, None]).round_().to(torch.int8))
        scales.append(scale)
    return torch.cat(integers), torch.cat(scales)


class JoinedLinear(nn.Module):
    """The outputs of its parts, one after the other. `parts`: their sizes, by name."""

    def __init__(self, layers: Mapping[str, nn.Linear | Int8Linear]) -> None:
        """Layers of one kind, all with a bias or none."""
        super().__init__()
        first, *_ = layers.values()
        self.parts = {name: layer.out_features for name, layer in layers.items()}
        self.in_features, self.out_features = first.in_features, sum(self.parts.values())
        weight = _joined([layer.weight for layer in layers.values()])
        biases = [layer.bias for layer in layers.values() if layer.bias is not None]
        bias = _joined(biases) if biases else None
        if isinstance(first, Int8Linear):
            scale = _joined([layer.scale for layer in layers.values() if isinstance(layer, Int8Linear)])
            kind = PackedInt8Linear if can_pack() else Int8Linear
            self.product: nn.Module = kind(weight, scale, bias, first.activations)
        elif fits_half(weight):
            self.product = HalfLinear(weight, bias)
        elif weight.device.type == "cpu" and torch.backends.mkldnn.is_available():
            self.product = PackedLinear(weight, bias)
        else:
            self.product = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, weight.device)
            self.product.load_state_dict(
                {"weight": weight} | ({} if bias is None else {"bias": bias}), assign=True
            )

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., in)."""
        y: Tensor = self.product(x)
        return y


class HalfLinear(nn.Module):
    """Weights in float16, computed with in float32: half of the memory to read, which takes most of the time of a
    pass of few rows.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """weight: (out, in)."""
        super().__init__()
        self._packed = torch.ops.quantized.linear_prepack_fp16(weight, bias)
        self._multiply = torch.ops.quantized.linear_dynamic_fp16.default
        self.packed_bytes = 2 * weight.numel()

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., in)."""
        y: Tensor = self._multiply(x, self._packed)
        return y


class PackedLinear(nn.Module):
    """Weights in the order of oneDNN, whose products take half the time of those of MKL on CPUs of AMD."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """weight: (out, in)."""
        super().__init__()
        self.register_buffer("weight", torch.ops.mkldnn._reorder_linear_weight(weight, None))
        self.register_buffer("bias", bias)
        self._multiply = torch.ops.mkldnn._linear_pointwise.default

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., in)."""
        y: Tensor = self._multiply(x, self.weight, self.bias, "none", [], "")
        return y


def packing(dtype: torch.dtype, saved: torch.dtype) -> Packing:
    """How layers on the CPU keep their weights. All but "none" copy those that others use too."""
    if dtype == torch.int8:
        return "copied" if can_pack() else "none"
    if saved != torch.float32 and "fbgemm" in torch.backends.quantized.supported_engines:
        return "halved"
    return "copied" if torch.backends.mkldnn.is_available() else "none"


def fits_half(weight: Tensor) -> bool:
    """Whether float16 holds these weights, as those that were saved in half precision, and the CPU has products
    for them.
    """
    if weight.device.type != "cpu" or "fbgemm" not in torch.backends.quantized.supported_engines:
        return False
    return all(bool(((rows.half() - rows).abs() <= _HALF_STEP).all()) for rows in weight.split(4096))


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.detach() for tensor in tensors]) if len(tensors) > 1 else tensors[0].detach()


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
        self.qkv = _fused_joined("self_attn", attention, "q_proj", "k_proj", "v_proj")
        self.output = _fused_joined("self_attn", attention, "o_proj")
        self.gate_up = _fused_joined("mlp", mlp, "gate_proj", "up_proj")
        self.down = _fused_joined("mlp", mlp, "down_proj")
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


def _fused_joined(parent: str, module: Any, *names: str) -> JoinedLinear:
    return JoinedLinear({f"{parent}.{name}": getattr(module, name) for name in names})


def _normalize(x: Tensor, norm: Any) -> Tensor:
    return functional.rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)
