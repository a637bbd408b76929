"""Loading a policy's base model, and the one forward pass that every loss is made of."""

import platform
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.configuration_utils import PretrainedConfig

from app.engine.model_memory import trained_needs
from app.errors import ModelError, StorageError, first_line
from app.model_server.device_memory import check_memory, has_own_memory, report_exhaustion
from app.publish import publish
from trainer.learning.batch import Batch
from trainer.learning.liger import use_liger
from trainer.learning.output_layer import (
    changes_logits,
    mark_changed_logits,
    prepare_output_layer,
    token_logprobs,
)
from trainer.learning.packing import PACKED, Packing, can_pack, passes_packing, register


def pick_device(name: str = "auto") -> torch.device:
    """The device called `name`; "auto" is a GPU if there is one."""
    if name != "auto":
        return torch.device(name)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def describe(device: torch.device) -> str:
    """What computes, as the records of a training say it."""
    if device.type == "cuda":
        return f"one {torch.cuda.get_device_name(device)}"
    if device.type != "cpu":
        return f"the {device.type} device of a {platform.machine()} machine"
    return f"{torch.get_num_threads()} threads of a {platform.machine()} processor"


def load_model(
    path: Path, device: torch.device, *, dtype: torch.dtype = torch.float32, liger: bool = False
) -> PreTrainedModel:
    """A causal language model, with attention over packed rows where its layers allow it.

    Raises ModelError if the directory contains none, ModelMemoryError if host or device have no room for
    it, and InvalidError if liger's kernels cannot run.
    """
    needs = trained_needs(path, dtype.itemsize, gpu=has_own_memory(device))
    check_memory(path, needs, device, "choose a smaller model, or train it on another machine")
    register()
    try:
        with report_exhaustion(f"while the model in {path} was loaded", "stop other programs on this device"):
            config = AutoConfig.from_pretrained(path)
            model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
                path, dtype=dtype, attn_implementation=attention_of(config), device_map=device
            )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        reason = first_line(error)
        raise ModelError(f"the model in {path} cannot be loaded for training: {reason}") from error
    if model.config._attn_implementation == PACKED and not passes_packing(model):
        model.set_attn_implementation("eager")
    if liger:
        use_liger(model, device)
    prepare_output_layer(model)
    with within_memory():
        mark_changed_logits(model)
    return model


def within_memory() -> AbstractContextManager[None]:
    """Of an update: raises ModelMemoryError if its device has no memory left."""
    return report_exhaustion("in an update", "lower micro_batch_tokens, or set gradient_checkpointing")


def attention_of(config: PretrainedConfig) -> str | None:
    """The attention implementation to train with. None is the default of transformers."""
    return PACKED if can_pack(MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)) else None


def sampled_logprobs(model: PreTrainedModel, batch: Batch) -> Tensor:
    """log p of each sampled token, shape (N,), float32, in row-major order of `batch.sampled`.

    One forward pass over whole trajectories, packed end to end in one row where the model can, so that padding
    costs nothing. The vocabulary projection, the widest layer of a small model, is applied only where a token was
    sampled.
    """
    ids = batch.ids[batch.sampled]
    if changes_logits(model):
        return -cross_entropy(sampled_logits(model, batch), ids, reduction="none")
    return token_logprobs(model.get_output_embeddings(), _hidden(model, batch), ids)


def sampled_logits(model: PreTrainedModel, batch: Batch) -> Tensor:
    """The logits (N, V), float32, that predict each sampled token."""
    if changes_logits(model):
        inputs, predicts = _inputs(model, batch)
        columns = predicts.any(0).nonzero()[:, 0]
        logits = model(**inputs, logits_to_keep=columns).logits[predicts[:, columns]]
    else:
        logits = model.get_output_embeddings()(_hidden(model, batch))
    return cast(Tensor, logits.float())


def _hidden(model: PreTrainedModel, batch: Batch) -> Tensor:
    """The hidden states (N, D) that predict the sampled tokens."""
    inputs, predicts = _inputs(model, batch)
    return cast(Tensor, model.get_decoder()(**inputs).last_hidden_state[predicts])


def _inputs(model: PreTrainedModel, batch: Batch) -> tuple[dict[str, Any], Tensor]:
    """What the model is called with, and which of its places, (rows, tokens) bool, predict a sampled token."""
    return (_packed if model.config._attn_implementation == PACKED else _padded)(batch)


def _packed(batch: Batch) -> tuple[dict[str, Any], Tensor]:
    device = batch.ids.device
    shared = batch.shared if device.type == "cpu" else (0,) * len(batch.shared)  # kernels have no shared keys
    positions = torch.arange(batch.ids.shape[1], device=device).expand_as(batch.ids)
    encoded = batch.present & (positions >= torch.tensor(shared, device=device)[:, None])
    inputs = {
        "input_ids": batch.ids[encoded][None],
        "position_ids": positions[encoded][None],
        "packing": Packing.of(batch.present.sum(1).tolist(), device, shared),
        "use_cache": False,
    }
    # The first encoded token of a sample was not sampled: no sample gains one of the next.
    return inputs, batch.sampled[encoded].roll(-1)[None]


def _padded(batch: Batch) -> tuple[dict[str, Any], Tensor]:
    inputs = {"input_ids": batch.ids, "attention_mask": batch.present.long(), "use_cache": False}
    return inputs, batch.sampled.roll(-1, dims=1)


def save_atomically(state: object, path: Path) -> None:
    """Write a checkpoint: after a crash, also of the machine, the file has its old content or its new one.

    Raises StorageError if the write fails.
    """
    temporary = path.with_suffix(".partial")
    try:
        torch.save(state, temporary)
        publish(temporary, path)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        temporary.unlink(missing_ok=True)
        raise StorageError(f"the checkpoint {path} could not be written: {error}") from error
