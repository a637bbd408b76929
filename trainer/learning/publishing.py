"""Publish adapters: written once, under the hash of their content, checked and probed."""

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch
from peft import PeftModel
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from app.adapters.files import CONFIG, WEIGHTS, content_hash
from app.adapters.place import place
from app.errors import InvalidError, StorageError, first_line
from app.records import Json, Probe
from app.scratch import scratch_directory
from trainer.learning.distributed import gather_full
from trainer.learning.logprob_model import LogprobModel
from trainer.learning.probe import make_probe


class PublishedAdapter(msgspec.Struct, frozen=True):
    """An adapter on disk, which never changes again."""

    hash: str  # the engine knows it by this name
    path: Path
    rank: int
    probe: Probe | None = None  # by which model servers prove that they serve it


class TrainingOutput(msgspec.Struct, frozen=True):
    """The result of a run before its gate."""

    adapter: PublishedAdapter
    data: dict[str, Json] = {}  # what it learned from, and why the rest was left out


def lora_weights(model: PeftModel) -> dict[str, Tensor]:
    """The adapter's weights in full, on the CPU; the base model's are not touched.

    Where processes share the model's weights, all of them must ask together.
    """
    return {name: gather_full(each) for name, each in model.named_parameters() if "lora_" in name}


def publish(
    model: PeftModel, root: Path, probe_prompt: Sequence[int] = (), *, base: str | None = None
) -> PublishedAdapter:
    """Write the adapter to `root`/<hash> and probe it; without a prompt it gets no probe. `base` is the name of
    the base model on model servers, which can then load the adapter by its name alone.

    Raises InvalidError if a weight is not finite, StorageError if the files cannot be written.
    """
    written = write_adapter(model, root, lora_weights(model), base)
    if not probe_prompt:
        return written
    return msgspec.structs.replace(written, probe=make_probe(LogprobModel(model), probe_prompt))


def write_adapter(
    model: PeftModel, root: Path, weights: dict[str, Tensor], base: str | None = None
) -> PublishedAdapter:
    """Write the model's adapter with these `lora_weights` to `root`/<hash>, complete or not at all. The same
    weights and base give the same directory. Raises as `publish` does.
    """
    try:
        return _write(model, root, weights, base)
    except (OSError, SafetensorError) as error:
        raise StorageError(f"the adapter could not be written to {root}: {first_line(error)}") from error


def _write(model: PeftModel, root: Path, weights: dict[str, Tensor], base: str | None) -> PublishedAdapter:
    root.mkdir(parents=True, exist_ok=True)
    with scratch_directory(root) as partial:
        model.save_pretrained(str(partial), state_dict=weights)
        config = _portable_config(partial, base)
        check_adapter(partial)
        name = content_hash(partial)
        final = root / name
        contents = partial / name
        contents.mkdir()
        for file in (CONFIG, WEIGHTS):
            (partial / file).rename(contents / file)
        place(contents, final)
        return PublishedAdapter(name, final, config["r"])


def check_adapter(path: Path) -> dict[str, Tensor]:
    """The adapter's weights. Raises InvalidError if they are missing, unreadable or not finite: it must not be
    served.
    """
    if not (path / CONFIG).is_file() or not (path / WEIGHTS).is_file():
        raise InvalidError(f"no adapter at {path}: it needs {CONFIG} and {WEIGHTS}")
    try:
        tensors = load_file(path / WEIGHTS)
    except (SafetensorError, OSError) as error:
        raise InvalidError(f"the adapter at {path} cannot be read: {first_line(error)}") from error
    if not tensors:
        raise InvalidError(f"the adapter at {path} holds no weights")
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise InvalidError(f"the adapter at {path} has weights that are not finite: {name}")
    return tensors


def _portable_config(path: Path, base: str | None) -> dict[str, int]:
    """The configuration without machine-dependent values, so that equal adapters are equal files."""
    config = json.loads((path / CONFIG).read_text())
    config["base_model_name_or_path"] = base
    config["target_modules"] = sorted(config["target_modules"])
    (path / CONFIG).write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    return dict(config)
