"""Models too large for one process: built without weights, then every process reads only its own part of them.

    empty_model ─► attach_lora ─► ProcessGroup.place (FSDP2 by `shard_units`) ─► read_shards

Each parameter is split by rows, and a process reads its rows from the safetensors files. No process ever holds all
of the model: during a pass the layers are gathered one by one.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import init_empty_weights
from peft import PeftModel
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from app.base.errors import InvalidError, ModelError, first_line
from trainer.learning.model import attention_of, prepare_output_layer, register, use_liger

_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"
_PREFIX = "base_model.model."  # that PEFT puts before the base model's names
_LOGIT_CHANGES = ("logits_scaling", "logit_scale", "lm_head_multiplier", "final_logit_softcapping")


def empty_model(path: Path, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """The model of a directory with its parameters on the device "meta", for training on `device`; its buffers are
    real.

    Raises ModelError if the directory contains none.
    """
    register()
    try:
        config = AutoConfig.from_pretrained(path)
        if getattr(config, "quantization_config", None) is not None:
            raise ValueError("its weights are quantized")
        if changed := [name for name in _LOGIT_CHANGES if getattr(config, name, None) not in (None, 1)]:
            raise ValueError(f"its {changed[0]} changes logits after the output layer; set SAGE_TRAIN_SHARD=0")
        with init_empty_weights():
            model: PreTrainedModel = AutoModelForCausalLM.from_config(
                config, dtype=dtype, attn_implementation=attention_of(config)
            )
    except (OSError, ValueError) as error:
        reason = first_line(error)
        raise ModelError(f"the model in {path} cannot be sharded: {reason}") from error
    model.tie_weights()
    use_liger(model, device)
    prepare_output_layer(model)
    return model


def shard_units(policy: PeftModel) -> list[nn.Module]:
    """The modules that are gathered one at a time: layers, and input and output embeddings if they are two.

    Raises InvalidError for a model whose layers transformers does not name.
    """
    base = cast(PreTrainedModel, policy.get_base_model())
    names = base._no_split_modules or ()
    layers = [each for each in base.modules() if type(each).__name__ in names]
    if not layers:
        raise InvalidError(f"{type(base).__name__} names no layers to shard it by: set SAGE_TRAIN_SHARD=0")
    ends = [base.get_input_embeddings(), base.get_output_embeddings()]
    return layers if ends[0].weight is ends[1].weight else [*layers, *ends]


def read_shards(policy: PeftModel, path: Path, lora: dict[str, Tensor], device: torch.device) -> None:
    """Give a sharded policy its weights: the base's from the files in `path`, the adapter's from `lora`.

    `lora` are full tensors by the names of the policy's parameters. Raises ModelError if the files do not fit.
    """
    with ExitStack() as stack:
        files = _Files(path, stack)
        for parameter, owners in _parameters(policy):
            names = [name for name, _, _ in owners]
            rows = _own_rows(parameter)
            full = next((lora[name] for name in names if name in lora), None)
            local = files.rows(names, rows, parameter.shape) if full is None else full[rows]
            filled = _filled(parameter, local.to(device, parameter.dtype, copy=True))
            for _, module, attribute in owners:
                setattr(module, attribute, filled)


Owner = tuple[str, nn.Module, str]  # a name of the parameter, its module, its attribute there


def _parameters(policy: PeftModel) -> Iterator[tuple[DTensor, list[Owner]]]:
    """Each parameter once, with everything that refers to it: tied embeddings are one parameter of two modules."""
    owners: dict[nn.Parameter, list[Owner]] = {}
    for prefix, module in policy.named_modules():
        for attribute, parameter in module.named_parameters(recurse=False):
            owners.setdefault(parameter, []).append((f"{prefix}.{attribute}", module, attribute))
    for parameter, found in owners.items():
        yield cast(DTensor, parameter), found


def _own_rows(parameter: DTensor) -> slice:
    """This process's rows, split as FSDP2 does: equal parts in the order of the ranks, of which the last may be
    shorter or empty.
    """
    total, size = parameter.shape[0], -(-parameter.shape[0] // parameter.device_mesh.size())
    first = min(parameter.device_mesh.get_local_rank() * size, total)
    return slice(first, min(first + size, total))


def _filled(empty: DTensor, local: Tensor) -> nn.Parameter:
    if local.shape != empty.to_local().shape:
        raise ModelError(
            f"a part has the shape {tuple(local.shape)}, but {tuple(empty.to_local().shape)} is needed"
        )
    filled = DTensor.from_local(
        local.contiguous(),
        empty.device_mesh,
        empty.placements,
        run_check=False,
        shape=empty.shape,
        stride=empty.stride(),
    )
    return nn.Parameter(filled, requires_grad=empty.requires_grad)


class _Files:
    """The safetensors files of a model directory, one open at a time: an open file is mapped to memory.

    `stack` closes the last one.
    """

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._path = path
        self._stack = stack
        self._open: tuple[str, Any] = "", None
        if (path / _INDEX).is_file():
            self._files: dict[str, str] = json.loads((path / _INDEX).read_text())["weight_map"]
        elif (path / _SINGLE).is_file():
            self._files = dict.fromkeys(self._file(_SINGLE).keys(), _SINGLE)
        else:
            raise ModelError(f"the model in {path} cannot be sharded: it has neither {_SINGLE} nor {_INDEX}")

    def rows(self, names: list[str], rows: slice, shape: torch.Size) -> Tensor:
        """Some rows of the first parameter that the files have of `names`, which are the policy's."""
        plain = [name.removeprefix(_PREFIX).replace(".base_layer.", ".") for name in names]
        name = next((each for each in plain if each in self._files), None)
        if name is None:
            raise ModelError(
                f"the model in {self._path} cannot be sharded: its files name no {plain[0]}. Save it once with "
                "transformers' save_pretrained, or set SAGE_TRAIN_SHARD=0"
            )
        tensor = self._file(self._files[name]).get_slice(name)
        found, needed = tuple(tensor.get_shape()), tuple(shape)
        if found != needed:
            raise ModelError(f"{name} in {self._path} has the shape {found}, but config.json asks for {needed}")
        return cast(Tensor, tensor[rows]) if rows.stop > rows.start else torch.empty(0, *shape[1:])

    def _file(self, name: str) -> Any:
        if name != self._open[0]:
            self._stack.close()
            try:
                self._open = name, self._stack.enter_context(safe_open(self._path / name, framework="pt"))
            except (OSError, SafetensorError) as error:
                raise ModelError(f"{self._path / name} cannot be read: {error}") from error
        return self._open[1]
