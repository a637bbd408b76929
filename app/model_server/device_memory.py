"""The memory of host and GPU, before a model is loaded and when it runs out."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from app.engine.available_memory import memory_available
from app.engine.model_memory import SERVE_LESS, PlacedNeeds, check_fits
from app.errors import ModelMemoryError, first_line


def check_memory(path: Path, needs: PlacedNeeds, device: torch.device, advice: str = SERVE_LESS) -> None:
    """Raises ModelMemoryError if the host or the GPU has less than the model in `path` needs."""
    check_fits(path, needs.host, memory_available(), advice=advice)
    if needs.gpu is not None:
        check_fits(path, needs.gpu, free_gpu_memory(device), f"memory of {device}", advice=advice)


def has_own_memory(device: torch.device) -> bool:
    return device.type == "cuda"


def free_gpu_memory(device: torch.device) -> int:
    """Bytes that no program uses."""
    free, _ = torch.cuda.mem_get_info(device)
    return free


@contextmanager
def report_exhaustion(doing: str, advice: str) -> Iterator[None]:
    """Raise ModelMemoryError if a device has no memory left."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ModelMemoryError(f"memory ran out {doing} ({first_line(error)}): {advice}") from error
