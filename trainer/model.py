"""The torch side of a policy: loading, saving, and the one forward pass that every loss is made of."""

import os
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from trainer.batch import Batch


def pick_device(name: str = "auto") -> torch.device:
    """The device called `name`; "auto" takes a GPU where there is one."""
    if name != "auto":
        return torch.device(name)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def load_model(path: Path, device: torch.device) -> PreTrainedModel:
    """A causal language model in float32. Eager attention: fastest for models of a few million parameters."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager", device_map=device
    )
    return model


def sampled_logprobs(model: PreTrainedModel, batch: Batch) -> Tensor:
    """log p of each sampled token, shape (N,), in row-major order of `batch.sampled`.

    One forward pass over whole trajectories. The vocabulary projection, the widest layer of a small model, is
    applied only where a token was sampled.
    """
    hidden = model.get_decoder()(
        input_ids=batch.ids, attention_mask=batch.present.long(), use_cache=False
    ).last_hidden_state  # (B, T, D)
    before = batch.sampled.roll(-1, dims=1)  # the position that predicts each sampled token
    logits = model.get_output_embeddings()(hidden[before]).float()  # (N, V)
    logprobs: Tensor = logits.log_softmax(-1)
    return logprobs.gather(1, batch.ids[batch.sampled][:, None])[:, 0]


def save_atomically(state: object, path: Path) -> None:
    """Write a checkpoint so that a crash leaves the old one or the new one, never half of one."""
    temporary = path.with_suffix(".partial")
    torch.save(state, temporary)
    os.replace(temporary, path)
