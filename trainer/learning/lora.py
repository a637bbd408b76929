"""LoRA adapters as the trainer makes them: put on, written once under the hash of their content, checked."""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import mkdtemp

import msgspec
import torch
from peft import (
    LoraConfig,
    PeftConfig,
    PeftModel,
    get_peft_model,
    get_peft_model_state_dict,
    set_peft_model_state_dict,
)
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from app.adapters.files import CONFIG, WEIGHTS, content_hash
from app.errors import InvalidError, StorageError
from app.records import Json, Probe
from trainer.learning.distributed import whole
from trainer.learning.fused_lora import fuse
from trainer.learning.probe import make_probe

__all__ = [
    "CONFIG",
    "WEIGHTS",
    "PublishedAdapter",
    "TrainingOutput",
    "check_adapter",
    "lora_weights",
    "publish",
    "with_lora",
]


class PublishedAdapter(msgspec.Struct, frozen=True):
    """An adapter that will not change any more."""

    hash: str  # the engine knows it by this name
    path: Path
    rank: int
    probe: Probe | None = None  # what it says of fixed tokens, for model servers to prove that they wear it


class TrainingOutput(msgspec.Struct, frozen=True):
    """What a run leaves before the gate."""

    adapter: PublishedAdapter
    data: dict[str, Json] = {}  # what it learned from, and why not from the rest


def with_lora(
    model: PreTrainedModel, rank: int, alpha: int, start: Path | None = None, *, seed: int = 0
) -> PeftModel:
    """The model with an adapter on all linear layers: a new one that changes nothing yet, or a copy of `start`,
    which keeps its own rank. The same seed gives the same new one.

    Raises InvalidError where `start` cannot be read, is not finite, or does not fit the model.
    """
    if start is not None:
        return fuse(_continued(model, start))
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules="all-linear", task_type="CAUSAL_LM")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return fuse(get_peft_model(model, config))


def _continued(model: PreTrainedModel, start: Path) -> PeftModel:
    tensors = check_adapter(start)
    config = PeftConfig.from_pretrained(str(start))
    config.inference_mode = False
    try:
        policy: PeftModel = get_peft_model(model, config)
    except ValueError as error:
        raise InvalidError(f"the adapter at {start} is for another base model: {_first_line(error)}") from error
    own = get_peft_model_state_dict(policy)
    strange = [name for name in own.keys() | tensors.keys() if _shape(own, name) != _shape(tensors, name)]
    if strange:
        name = min(strange)
        raise InvalidError(
            f"the adapter at {start} is for another base model: of {name} it has {_shape(tensors, name)},"
            f" this model needs {_shape(own, name)}"
        )
    set_peft_model_state_dict(policy, tensors)
    return policy


def _shape(tensors: dict[str, Tensor], name: str) -> str:
    return str(tuple(tensors[name].shape)) if name in tensors else "nothing"


def lora_weights(model: PeftModel) -> dict[str, Tensor]:
    """On the CPU, whole. Where processes share the model's weights, all of them must ask."""
    return {name: whole(each) for name, each in model.state_dict().items() if "lora_" in name}


def publish(
    model: PeftModel, root: Path, opening: Sequence[int] = (), *, weights: dict[str, Tensor] | None = None
) -> PublishedAdapter:
    """Write the adapter to `root`/<hash>, whole or not at all; the same weights give the same directory.

    `opening` is the prompt of its probe; without one it has none. `weights` are the model's `lora_weights`, by
    default asked for here.

    Raises InvalidError if a weight is not finite, StorageError if the disk does not take it.
    """
    try:
        written = _publish(model, root, lora_weights(model) if weights is None else weights)
    except (OSError, SafetensorError) as error:
        raise StorageError(f"the adapter could not be written to {root}: {_first_line(error)}") from error
    return msgspec.structs.replace(written, probe=make_probe(model, opening)) if opening else written


def _publish(model: PeftModel, root: Path, weights: dict[str, Tensor]) -> PublishedAdapter:
    root.mkdir(parents=True, exist_ok=True)
    partial = Path(mkdtemp(prefix=".partial-", dir=root))
    try:
        model.save_pretrained(str(partial), state_dict=weights)
        config = _plain_config(partial)
        check_adapter(partial)
        name = content_hash(partial)
        final = root / name
        contents = partial / name
        contents.mkdir()
        for file in (CONFIG, WEIGHTS):
            (partial / file).rename(contents / file)
        _settle(contents, final)
        return PublishedAdapter(name, final, config["r"])
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _settle(contents: Path, final: Path) -> None:
    """The same weights may have been published before, or a moment ago by another process."""
    try:
        os.replace(contents, final)
    except OSError:
        if not final.is_dir():
            raise


def check_adapter(path: Path) -> dict[str, Tensor]:
    """The weights. Raises InvalidError for what must never be served: missing, unreadable or not finite."""
    if not (path / CONFIG).is_file() or not (path / WEIGHTS).is_file():
        raise InvalidError(f"no adapter at {path}: it needs {CONFIG} and {WEIGHTS}")
    try:
        tensors = load_file(path / WEIGHTS)
    except (SafetensorError, OSError) as error:
        raise InvalidError(f"the adapter at {path} cannot be read: {_first_line(error)}") from error
    if not tensors:
        raise InvalidError(f"the adapter at {path} holds no weights")
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise InvalidError(f"the adapter at {path} has weights that are not finite: {name}")
    return tensors


def _plain_config(path: Path) -> dict[str, int]:
    """The configuration without what differs between machines, so that equal adapters are equal files."""
    config = json.loads((path / CONFIG).read_text())
    config["base_model_name_or_path"] = None
    config["target_modules"] = sorted(config["target_modules"])
    (path / CONFIG).write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    return dict(config)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
