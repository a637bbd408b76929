"""Linear layers and embeddings with weights of 8 bits, for CPUs.

A weight is an integer times the scale of its output channel. Activations keep 14 bits, as two integers of 7 with
one scale per token, because seven bits for the outliers of a token leave too few for the rest. Products are sums
of integers, so that a token's results do not depend on the tokens beside it. Prompts run with the same integers as
completions: all logprobs are those of one policy.
"""

import warnings

import torch
from torch import Tensor, nn

_LEVELS = 127  # of a weight
_HALF = 63  # of half an activation: CPUs without VNNI add two products in 16 bits
_LOW = 2 * _HALF  # a step of the upper half in steps of the lower one
_ROWS = 4096  # quantized at a time, which bounds the memory for it


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
