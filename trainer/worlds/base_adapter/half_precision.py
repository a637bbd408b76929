"""A published adapter with its weights in bfloat16: half of the size, and what is evaluated is what is shipped."""

import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from app.adapters.files import CONFIG, WEIGHTS
from app.errors import StorageError
from app.scratch import scratch_directory
from trainer.learning.publishing import check_adapter


def write_half(source: Path, target: Path) -> None:
    """Write `target` whole or not at all, unless it is there. The same adapter gives the same files.

    Raises StorageError if the disk is full.
    """
    if target.exists():
        return
    weights = {name: each.to(torch.bfloat16).contiguous() for name, each in check_adapter(source).items()}
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with scratch_directory(target.parent) as scratch:
            partial = scratch / target.name
            partial.mkdir()
            save_file(weights, partial / WEIGHTS, metadata={"format": "pt"})
            shutil.copyfile(source / CONFIG, partial / CONFIG)
            partial.rename(target)
    except OSError as error:
        raise StorageError(f"{target} could not be written ({error.strerror}): free disk space") from error
