"""LoRA layers in two multiplications that add in place: PEFT's own need six passes over the activations.

    y = x W' + b + s (x A') B'      W' is the transpose of W; only A and B learn

Same weights, same files: only the computation of PEFT's layers is replaced. Saves about an eighth of an update.
"""

from types import MethodType
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora import Linear
from torch import Tensor, nn


class LoraLinear(torch.autograd.Function):
    """Of x (N, I), weight (O, I), bias (O,), a (R, I), b (O, R): y (N, O). Gradients for x, a and b."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float
    ) -> Tensor:
        low = x @ a.t()
        y = torch.addmm(bias, x, weight.t()) if bias is not None else x @ weight.t()
        y.addmm_(low, b.t(), alpha=scale)
        ctx.save_for_backward(x, weight, a, b, low)
        ctx.scale = scale
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        x, weight, a, b, low = ctx.saved_tensors
        of_low = (gradient @ b).mul_(ctx.scale)
        of_x = torch.addmm(gradient @ weight, of_low, a) if ctx.needs_input_grad[0] else None
        return of_x, None, None, of_low.t() @ x, (gradient.t() @ low).mul_(ctx.scale), None


def fuse(model: PeftModel) -> PeftModel:
    """Replaces the computation of every LoRA layer that is plain: one adapter, no dropout, one data type."""
    for module in model.modules():
        if isinstance(module, Linear) and _is_plain(module):
            module.forward = MethodType(_forward, module)  # type: ignore[method-assign]
    return model


def _forward(layer: Any, x: Tensor) -> Tensor:
    if layer.disable_adapters or layer.merged or torch.is_autocast_enabled(x.device.type):
        return Linear.forward(layer, x)
    (name,) = layer.active_adapters
    base, a, b = layer.base_layer, layer.lora_A[name].weight, layer.lora_B[name].weight
    flat = x.reshape(-1, x.shape[-1])
    y: Tensor = LoraLinear.apply(flat, base.weight, base.bias, a, b, layer.scaling[name])
    return y.view(*x.shape[:-1], -1)


def _is_plain(layer: Any) -> bool:
    if len(layer.active_adapters) != 1:
        return False
    (name,) = layer.active_adapters
    weights = {layer.base_layer.weight.dtype, layer.lora_A[name].weight.dtype}
    return (
        type(layer.base_layer) is nn.Linear
        and isinstance(layer.lora_dropout[name], nn.Identity)
        and layer.lora_A[name].bias is None
        and layer.lora_B[name].bias is None
        and name not in layer.lora_variant
        and len(weights) == 1
    )
