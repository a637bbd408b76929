"""Applies several LoRA adapters in one model: each row of a batch uses its own or none."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from app.base.errors import InvalidError, ModelError, NotFoundError
from app.engine.adapter_files import LORA_KEY
from app.engine.tokenizer import read_json
from app.model_server.layers import Int8Linear, JoinedLinear

_NEUTRAL: dict[str, Any] = {
    "bias": "none",
    "use_dora": False,
    "fan_in_fan_out": False,
    "lora_bias": False,
    "modules_to_save": None,
    "rank_pattern": {},
    "alpha_pattern": {},
    "target_parameters": None,
}
BASE = 0


class LoraDelta(msgspec.Struct, frozen=True):
    """The update of one linear layer: x @ down @ up, with the scale folded into `up`."""

    down: Tensor  # (in, rank)
    up: Tensor  # (rank, out)


class AdapterRouting:
    """The adapter of each row in the next forward pass. Read by every AdaptedLinear."""

    def __init__(self) -> None:
        self.groups: list[tuple[int, Tensor | None]] = []  # adapter and its rows; None for all rows
        self.rows = 0

    def set(self, adapters: Sequence[int], device: torch.device) -> None:
        """One adapter number per row; BASE for none."""
        in_use, self.rows = set(adapters), len(adapters)
        if len(in_use) == 1:
            self.groups = [] if BASE in in_use else [(adapters[0], None)]
            return
        self.groups = [
            (number, torch.tensor([row for row, other in enumerate(adapters) if other == number], device=device))
            for number in sorted(in_use - {BASE})
        ]


class AdaptedLinear(nn.Module):
    """A linear layer with per-row adapters."""

    def __init__(self, plain: nn.Module, routing: AdapterRouting) -> None:
        super().__init__()
        self.plain, self.routing = plain, routing
        self.out_features: int = plain.out_features  # type: ignore[assignment]
        self.deltas: dict[int, LoraDelta] = {}

    def forward(self, x: Tensor) -> Tensor:
        """x: (rows, ..., in), or (rows x tokens, in), as in a mixture of experts."""
        if x.dim() == 2 and len(x) != self.routing.rows:
            return self.forward(x.unflatten(0, (self.routing.rows, -1))).flatten(0, 1)
        y: Tensor = self.plain(x)
        for number, rows in self.routing.groups:
            delta = self.deltas.get(number)
            if delta is None:
                continue
            if rows is None:
                y = y + x @ delta.down @ delta.up
            else:
                y = y.index_add(0, rows, x[rows] @ delta.down @ delta.up)
        return y


class LinearPart(msgspec.Struct, frozen=True):
    """What adapters know as one linear layer: some outputs of a layer of the model."""

    layer: str
    in_features: int
    out_features: int
    start: int = 0  # its first output


class AdapterSet:
    """All adapters in a decoder's model. Numbers are never reused, so cached keys and values of an old one never
    match.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model, self.routing = model, AdapterRouting()
        self._parts = dict(_linear_parts(model))
        self._adapted: dict[str, AdaptedLinear] = {}  # by layer

    def read(self, path: Path) -> dict[str, LoraDelta]:
        """The deltas of a PEFT LoRA directory by module name. Changes nothing, so any thread may call it.

        Raises NotFoundError if there is no adapter, InvalidError if it does not fit the model.
        """
        if not (path / "adapter_config.json").is_file():
            raise NotFoundError(f"no adapter found at {path}: it needs adapter_config.json and weights.")
        scale, config = _scale(path)
        halves = _read_weights(path)
        first = next(self.model.parameters())  # of what the layers compute with, whatever their weights are
        deltas: dict[str, LoraDelta] = {}
        for module in sorted({module for module, _ in halves}):
            down, up = halves.get((module, "A")), halves.get((module, "B"))
            self._check_shapes(path, module, down, up)
            if down is not None and up is not None:
                up = up.float() * scale(down.shape[0])
                deltas[module] = LoraDelta(
                    down.t().to(first.device, first.dtype).contiguous(),
                    up.t().to(first.device, first.dtype).contiguous(),
                )
        self._check_complete(path, config, set(deltas))
        return deltas

    def install(self, number: int, deltas: dict[str, LoraDelta]) -> None:
        by_layer: dict[str, list[tuple[LinearPart, LoraDelta]]] = {}
        for module, delta in deltas.items():
            part = self._parts[module]
            by_layer.setdefault(part.layer, []).append((part, delta))
        for layer, parts in by_layer.items():
            if layer not in self._adapted:
                self._adapted[layer] = AdaptedLinear(self.model.get_submodule(layer), self.routing)
                parent, _, leaf = layer.rpartition(".")
                setattr(self.model.get_submodule(parent), leaf, self._adapted[layer])
            self._adapted[layer].deltas[number] = _join(parts, self._adapted[layer].out_features)

    def remove(self, number: int) -> None:
        for adapted in self._adapted.values():
            adapted.deltas.pop(number, None)

    def _check_shapes(self, path: Path, module: str, down: Tensor | None, up: Tensor | None) -> None:
        linear = self._parts.get(module)
        if linear is None:
            raise InvalidError(
                f"the adapter at {path} changes {module}, which is not a linear layer of this model."
            )
        if down is None or up is None:
            raise InvalidError(f"the adapter at {path} has only one of lora_A and lora_B for {module}.")
        expected = [(down.shape[0], linear.in_features), (linear.out_features, down.shape[0])]
        if [tuple(down.shape), tuple(up.shape)] != expected:
            raise InvalidError(
                f"the adapter at {path} does not fit {module}: shapes {tuple(down.shape)} and {tuple(up.shape)}, "
                f"but this model needs {expected[0]} and {expected[1]}."
            )
        if not (torch.isfinite(down).all() and torch.isfinite(up).all()):
            raise InvalidError(f"the adapter at {path} has weights of {module} that are not finite.")

    def _check_complete(self, path: Path, config: dict[str, Any], present: set[str]) -> None:
        if not present:
            raise InvalidError(f"the adapter at {path} holds no weights.")
        targets = config.get("target_modules")
        if not isinstance(targets, list) or config.get("layers_to_transform") or config.get("exclude_modules"):
            return
        wanted = {name for name in self._parts if any(f".{name}".endswith(f".{target}") for target in targets)}
        if missing := sorted(wanted - present):
            raise InvalidError(
                f"the adapter at {path} lacks weights of {len(missing)} layers, such as {missing[0]}."
            )


def _linear_parts(model: nn.Module) -> Iterator[tuple[str, LinearPart]]:
    """By the names that adapters have for them."""
    joined = {name: module for name, module in model.named_modules() if isinstance(module, JoinedLinear)}
    for name, module in joined.items():
        parent, start = name.rpartition(".")[0], 0
        for part, size in module.parts.items():
            yield f"{parent}.{part}".lstrip("."), LinearPart(name, module.in_features, size, start)
            start += size
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | Int8Linear) and name.rpartition(".")[0] not in joined:
            yield name, LinearPart(name, module.in_features, module.out_features)


def _join(parts: list[tuple[LinearPart, LoraDelta]], out_features: int) -> LoraDelta:
    """One update of the whole layer, whose rank is the sum of theirs."""
    down = torch.cat([delta.down for _, delta in parts], 1)
    up = down.new_zeros(down.shape[1], out_features)
    rank = 0
    for part, delta in parts:
        end = rank + delta.down.shape[1]
        up[rank:end, part.start : part.start + part.out_features] = delta.up
        rank = end
    return LoraDelta(down, up)


def _scale(path: Path) -> tuple[Any, dict[str, Any]]:
    """The scale as a function of the rank, and the configuration."""
    try:
        config = read_json(path, "adapter_config.json")
    except ModelError as error:
        raise InvalidError(str(error)) from error
    if config.get("peft_type") != "LORA":
        raise InvalidError(f"the adapter at {path} is of type {config.get('peft_type')}: only LORA is supported.")
    for name, neutral in _NEUTRAL.items():
        if config.get(name) not in (neutral, None, [], {}):
            raise InvalidError(f"the adapter at {path} sets {name}, which the embedded engine does not support.")
    alpha = config.get("lora_alpha")
    if not isinstance(alpha, int | float):
        raise InvalidError(f"adapter_config.json in {path} does not set lora_alpha.")
    if config.get("use_rslora"):
        return (lambda rank: alpha / math.sqrt(rank)), config
    return (lambda rank: alpha / rank), config


def _read_weights(path: Path) -> dict[tuple[str, str], Tensor]:
    file = path / "adapter_model.safetensors"
    if not file.is_file():
        raise NotFoundError(f"no adapter found at {path}: it has no adapter_model.safetensors.")
    try:
        tensors = load_file(file)
    except (SafetensorError, OSError) as error:
        raise InvalidError(f"{file} cannot be read: {error}") from error
    halves: dict[tuple[str, str], Tensor] = {}
    for key, tensor in tensors.items():
        match = LORA_KEY.fullmatch(key)
        if match is None or tensor.dim() != 2:
            raise InvalidError(f"{file} holds {key}, which is not a LoRA weight of a linear layer.")
        halves[match["module"], match["half"]] = tensor
    return halves
