"""A published adapter with its weights in bfloat16: half of the size, and what is evaluated is what is shipped."""

import shutil
from pathlib import Path
from tempfile import mkdtemp

import torch
from safetensors.torch import save_file

from app.adapters.files import CONFIG, WEIGHTS
from app.errors import StorageError
from trainer.learning.publishing import check_adapter


def write_half(source: Path, target: Path) -> None:
    """Write `target` whole or not at all, unless it is there. The same adapter gives the same files.

    Raises StorageError if the disk is full.
    """
    if target.exists():
        return
    weights = {name: each.to(torch.bfloat16).contiguous() for name, each in check_adapter(source).items()}
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(mkdtemp(prefix=".partial-", dir=target.parent))
    try:
        save_file(weights, partial / WEIGHTS, metadata={"format": "pt"})
        shutil.copyfile(source / CONFIG, partial / CONFIG)
        partial.chmod(0o755)
        partial.rename(target)
    except OSError as error:
        raise StorageError(f"{target} could not be written ({error.strerror}): free disk space") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
