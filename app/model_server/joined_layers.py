"""Linear layers with a common input as one, with weights in the format that the CPU multiplies fastest."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from app.engine.model_memory import Packing
from app.model_server.int8_layers import Int8Linear, PackedInt8Linear, can_pack

_HALF_STEP = 2**-25  # of the smallest numbers in float16


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
