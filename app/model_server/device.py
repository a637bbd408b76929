"""What a device sets: the dtype of the weights, and how far it may move a distribution of next tokens; the memory
of host and GPU, before a model is loaded and when it runs out.
"""

import timeit
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from app.base.errors import ModelError, ModelMemoryError, first_line
from app.engine.memory import SERVE_LESS, PlacedNeeds, check_fits, memory_available
from app.engine.tokenizer import read_json

Rows: TypeAlias = Literal["few", "many"]

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.15, torch.int8: 0.02}
"""Of `moved_mass` between this engine's passes and those of transformers with the same weights, which for int8 are
the integers. Measured for SmolLM2-135M on a CPU with AMX: 4e-5, 0.07 and 0.002."""
INT8_TOLERANCE = 0.25
"""Of `moved_mass` between the integers and the weights as they were saved. SmolLM2-135M: 0.13."""
_CLEARLY = 1.3  # times as fast
_NAMED = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "int8": torch.int8}


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


def resolve_dtype(name: str, device: str, model_dir: Path, rows: Rows = "few") -> torch.dtype:
    """`auto` is bfloat16 where that is faster, for weights that were saved in half precision; else float32.

    Raises ModelError for int8 on another device than a CPU.
    """
    if name == "int8" and device != "cpu":
        raise ModelError(
            f"SAGE_ENGINE_DTYPE=int8 (--dtype int8) is for CPUs, but the device is {device}: choose bfloat16."
        )
    if name != "auto":
        return _NAMED[name]
    half = saved_dtype(model_dir) != torch.float32
    return torch.bfloat16 if half and fast_bfloat16(device, rows) else torch.float32


def saved_dtype(model_dir: Path) -> torch.dtype:
    config = read_json(model_dir, "config.json")
    saved = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    return _NAMED.get(saved, torch.float32)


def fast_bfloat16(device: str, rows: Rows = "few") -> bool:
    """Whether bfloat16 is faster for passes of few rows, as in decoding, or of many, as in training.

    On CPUs for many rows alone, where products of AVX-512 are: on an AMD EPYC 2.2 times as fast, by tiles (AMX) 4
    times, but on an Intel Xeon without them half as fast. In decoding the engine's own float32 layers are 1.3 to 2
    times as fast.
    """
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device == "cpu" and rows == "many" and _multiplies_bfloat16_faster()


@cache
def _multiplies_bfloat16_faster() -> bool:
    """Measured, as having instructions for it does not say so. By a clear margin: noise must not decide."""
    if not torch.cpu.get_capabilities().get("avx512_bf16"):
        return False
    return product_seconds(torch.float32) > _CLEARLY * product_seconds(torch.bfloat16)


def product_seconds(dtype: torch.dtype) -> float:
    """The shortest of several products of two matrices, a gigaflop each."""
    left, right = torch.ones(512, 1024, dtype=dtype), torch.ones(1024, 1024, dtype=dtype)
    with torch.inference_mode():
        return min(timeit.repeat(lambda: functional.linear(left, right), number=1, repeat=8))


def moved_mass(logprobs: Tensor, expected: Tensor) -> float:
    """The mean total variation distance of two distributions: the part of the probability that they place on
    other tokens. Both (n, vocabulary).

    A difference of logprobs would be ruled by words that no one samples, the more so the larger the vocabulary,
    and the largest distance by one token: in bfloat16, the same weights place a third of the probability otherwise
    after a token that SmolLM2-135M rarely met.
    """
    return float((logprobs.exp() - expected.exp()).abs().sum(-1).mean().item() / 2)
