"""LoRA adapters on a model: attached, with weights drawn from a seed or copied from an adapter on disk."""

import math
import warnings
from pathlib import Path
from typing import cast

import torch
from peft import LoraConfig, PeftConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from peft.tuners.lora import Linear
from torch import Tensor, nn
from transformers import PreTrainedModel

from app.errors import InvalidError, first_line
from trainer.learning.fused_lora import fuse
from trainer.learning.publishing import check_adapter

_ANOTHER = "Start from one that was made for this model, or from none (start=base)"


def with_lora(
    model: PreTrainedModel, rank: int, alpha: int, start: Path | None = None, *, seed: int = 0
) -> PeftModel:
    """The model with an adapter on all linear layers, in float32: a new one that changes nothing yet, or a copy of
    `start`, which keeps its own rank. The same seed gives the same new adapter.

    Raises InvalidError if `start` cannot be read, is not finite, or does not fit the model.
    """
    policy = attach_lora(model, rank, alpha, start)
    weights = initial_weights(policy, start, seed)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if name in weights:
                parameter.copy_(weights[name])
    return policy


def attach_lora(model: PreTrainedModel, rank: int, alpha: int, start: Path | None = None) -> PeftModel:
    """The model with LoRA layers whose weights are still to be set to `initial_weights`.

    On the device "meta" the layers are created there as well. Raises InvalidError as `with_lora` does.
    """
    if start is None:
        config = LoraConfig(r=rank, lora_alpha=alpha, target_modules="all-linear", task_type="CAUSAL_LM")
        return _wrapped(model, config)
    check_adapter(start)
    config = PeftConfig.from_pretrained(str(start))
    config.inference_mode = False
    config.lora_dropout = 0.0  # the logprobs of an update are those of the policy, and a resumed run repeats them
    config.base_model_name_or_path = None  # the name on model servers, which PEFT would look up on the Hub
    try:
        return _wrapped(model, config)
    except ValueError as error:
        reason = first_line(error)
        raise InvalidError(f"the adapter at {start} is for another base model: {reason}. {_ANOTHER}") from error


def _wrapped(model: PreTrainedModel, config: PeftConfig) -> PeftModel:
    with warnings.catch_warnings():
        message = ".is_gradient_checkpointing. is deprecated"  # PEFT 0.21 still asks for it by that name
        warnings.filterwarnings("ignore", message, FutureWarning)
        policy = get_peft_model(model, config, low_cpu_mem_usage=model.device.type == "meta")
    return fuse(policy)


def initial_weights(policy: PeftModel, start: Path | None, seed: int) -> dict[str, Tensor]:
    """The weights that training begins with, float32 on the CPU, by the names of the policy's parameters."""
    return _drawn(policy, seed) if start is None else _copied(policy, start)


def _drawn(policy: PeftModel, seed: int) -> dict[str, Tensor]:
    """A from PEFT's distribution, B zero.

    The draws are those of PEFT's own constructors, in their order. Made here, they do not depend on the number
    format of the base, or on whether this process holds any of it.
    """
    weights: dict[str, Tensor] = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for name, layer in policy.named_modules():
            if isinstance(layer, Linear):
                (adapter,) = layer.active_adapters
                rank = layer.r[adapter]
                rows, columns = cast(nn.Linear, layer.get_base_layer()).weight.shape
                a, b = nn.Linear(columns, rank, bias=False), nn.Linear(rank, rows, bias=False)
                nn.init.kaiming_uniform_(a.weight, a=math.sqrt(5))
                weights[f"{name}.lora_A.{adapter}.weight"] = a.weight.detach()
                weights[f"{name}.lora_B.{adapter}.weight"] = torch.zeros_like(b.weight)
    return weights


def _copied(policy: PeftModel, start: Path) -> dict[str, Tensor]:
    theirs = check_adapter(start)
    shapes = {name: tuple(each.shape) for name, each in theirs.items()}
    needed = {name: tuple(each.shape) for name, each in get_peft_model_state_dict(policy).items()}
    misfits = [name for name in needed.keys() | shapes.keys() if needed.get(name) != shapes.get(name)]
    if misfits:
        name = min(misfits)
        raise InvalidError(
            f"the adapter at {start} is for another base model: of {name} it has {shapes.get(name, 'nothing')},"
            f" this model needs {needed.get(name, 'nothing')}. {_ANOTHER}"
        )
    return {name: theirs[key] for key, name in _file_keys(policy).items()}


def _file_keys(policy: PeftModel) -> dict[str, str]:
    """The policy's LoRA parameters by the keys that PEFT writes them under."""
    names = [name for name, _ in policy.named_parameters() if "lora_" in name]
    numbered = {name: torch.tensor(number) for number, name in enumerate(names)}
    return {key: names[int(each)] for key, each in get_peft_model_state_dict(policy, state_dict=numbered).items()}
