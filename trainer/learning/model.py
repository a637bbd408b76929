"""The torch side of a policy: loading, saving, and the one forward pass that every loss is made of."""

import os
from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM, PreTrainedModel

from app.errors import ModelError, StorageError
from trainer.learning.batch import Batch
from trainer.learning.liger import use_liger
from trainer.learning.packing import PACKED, can_pack, register


def pick_device(name: str = "auto") -> torch.device:
    """The device called `name`; "auto" takes a GPU where there is one."""
    if name != "auto":
        return torch.device(name)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def load_model(path: Path, device: torch.device, *, liger: bool = False) -> PreTrainedModel:
    """A causal language model in float32, with attention over packed rows where its layers allow it.

    Raises ModelError where the directory holds none, and InvalidError where liger's kernels cannot run.
    """
    register()
    try:
        model = _load(path, device)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        said = str(error).strip().partition("\n")[0]
        raise ModelError(f"the model in {path} cannot be loaded to train it: {said}") from error
    if liger:
        use_liger(model, device)
    return model


def _load(path: Path, device: torch.device) -> PreTrainedModel:
    kind = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(AutoConfig.from_pretrained(path)), None)
    attention = PACKED if can_pack(kind) else None  # None: what transformers thinks best
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation=attention, device_map=device
    )
    return model


def sampled_logprobs(model: PreTrainedModel, batch: Batch) -> Tensor:
    """log p of each sampled token, shape (N,), in row-major order of `batch.sampled`.

    One forward pass over whole trajectories, end to end in one row where the model can, so that padding is free.
    The vocabulary projection, the widest layer of a small model, is applied only where a token was sampled.
    """
    packs = model.config._attn_implementation == PACKED
    hidden = (_packed if packs else _padded)(model, batch)  # (N, D)
    logits = model.get_output_embeddings()(hidden).float()  # (N, V)
    return -cross_entropy(logits, batch.ids[batch.sampled], reduction="none")


def _packed(model: PreTrainedModel, batch: Batch) -> Tensor:
    """The hidden states (N, D) that predict the sampled tokens."""
    sampled = batch.sampled[batch.present]
    places = torch.arange(batch.ids.shape[1], device=batch.ids.device).expand_as(batch.ids)
    hidden = model.get_decoder()(
        input_ids=batch.ids[batch.present][None],
        position_ids=places[batch.present][None],
        lengths=batch.present.sum(1).tolist(),
        use_cache=False,
    ).last_hidden_state  # (1, tokens, D)
    return cast(Tensor, hidden[0, sampled.roll(-1)])  # the first token of a row was not sampled: no row gains one


def _padded(model: PreTrainedModel, batch: Batch) -> Tensor:
    hidden = model.get_decoder()(
        input_ids=batch.ids, attention_mask=batch.present.long(), use_cache=False
    ).last_hidden_state  # (B, T, D)
    return cast(Tensor, hidden[batch.sampled.roll(-1, dims=1)])


def save_atomically(state: object, path: Path) -> None:
    """Write a checkpoint so that a crash leaves the old one or the new one, never half of one.

    Raises StorageError if the disk does not take it.
    """
    temporary = path.with_suffix(".partial")
    try:
        torch.save(state, temporary)
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:  # torch tells of a full disk with a RuntimeError
        temporary.unlink(missing_ok=True)
        raise StorageError(f"the checkpoint {path} could not be written: {error}") from error
