"""How much memory a model needs: known before the kernel would kill what loads it."""

from math import prod
from pathlib import Path

import msgspec
from safetensors import SafetensorError, safe_open

from app.errors import ModelError, ModelMemoryError

_PROCESS = 850 << 20  # bytes: interpreter, torch, embeddings, buffers; measured with SmolLM2-135M
_GPU_PASSES = 1 << 30  # bytes: logits, activations, gathered keys and values; an estimate
_EMBEDDINGS, _OUTPUT = "model.embed_tokens.weight", "lm_head.weight"


class MemoryNeed(msgspec.Struct, frozen=True):
    """Bytes, and what each part of them is for."""

    parts: tuple[tuple[int, str], ...]

    @property
    def total(self) -> int:
        return sum(size for size, _ in self.parts)

    def __str__(self) -> str:
        """
        >>> str(MemoryNeed(((3 << 30, "weights"), (0, "KV cache"), (1 << 30, "the process"))))
        '4,096 MB (3,072 MB for weights, 1,024 MB for the process)'
        """
        parts = ", ".join(f"{size >> 20:,} MB for {use}" for size, use in self.parts if size)
        return f"{self.total >> 20:,} MB ({parts})"


class PlacedNeeds(msgspec.Struct, frozen=True):
    """Where a model needs memory."""

    host: MemoryNeed
    gpu: MemoryNeed | None = None


def served_needs(
    path: Path, bytes_per_weight: int, *, bytes_to_read: int, copied: int = 0, cache: int = 0, gpu: bool = False
) -> PlacedNeeds:
    """Of a model that is served. The host reads the weights first, also those that a GPU then keeps.

    `copied` weights are kept twice. Raises ModelError as `weights_in`.
    """
    process, count = (_PROCESS, "the process"), weights_in(path)
    reading = MemoryNeed(((count * bytes_to_read, f"reading {count:,} weights"), process))
    weights = ((count + copied) * bytes_per_weight, f"{count + copied:,} weights")
    kept = (weights, (cache, "the KV cache"))
    if gpu:
        return PlacedNeeds(reading, MemoryNeed((*kept, (_GPU_PASSES, "passes"))))
    serving = MemoryNeed((*kept, process))
    return PlacedNeeds(max(serving, reading, key=lambda need: need.total))


def trained_needs(path: Path, bytes_per_weight: int, *, gpu: bool = False) -> PlacedNeeds:
    """Of a model that is trained. Weights are read straight into a GPU."""
    process, count = (_PROCESS, "the process"), weights_in(path)
    weights = (count * bytes_per_weight, f"{count:,} weights")
    if gpu:
        return PlacedNeeds(MemoryNeed((process,)), MemoryNeed((weights, (_GPU_PASSES, "passes"))))
    return PlacedNeeds(MemoryNeed((weights, process)))


def check_fits(path: Path, need: MemoryNeed, available: int | None, memory: str = "memory") -> None:
    """Raises ModelMemoryError if `available` bytes, where they are known, are fewer than the model needs."""
    if available is not None and need.total > available:
        raise ModelMemoryError(
            f"the model in {path} needs {need} of {memory}, {available >> 20:,} MB are free: stop other programs, "
            "choose a smaller model or a smaller SAGE_ENGINE_KV_MB, or serve it on another machine (ENGINE_URLS)"
        )


def memory_needed(path: Path, bytes_per_weight: int, copied: int = 0) -> int:
    """Bytes for the weights, `copied` of them twice, and the process, without caches."""
    return (weights_in(path) + copied) * bytes_per_weight + _PROCESS


def weights_in(path: Path) -> int:
    """The number of weights, by the headers of the files. Raises ModelError for a damaged one."""
    return sum(_sizes(path).values())


def loading(model: str | Path, path: Path) -> str:
    """What is loaded, for those who wait: `model` as it was named, and the size of its files in `path`."""
    size = sum(file.stat().st_size for file in path.glob("model*.safetensors"))
    return f"loading {model}, {max(1, size >> 20):,} MB"


def tied_weights(path: Path) -> int:
    """Those that the output layer shares with the embeddings; 0 if it has its own. Raises as `weights_in`."""
    sizes = _sizes(path)
    return 0 if _OUTPUT in sizes else sizes.get(_EMBEDDINGS, 0)


def _sizes(path: Path) -> dict[str, int]:
    """The number of weights of each tensor."""
    sizes: dict[str, int] = {}
    for file in sorted(path.glob("model*.safetensors")):
        try:
            with safe_open(file, "np") as opened:
                sizes |= {name: prod(opened.get_slice(name).get_shape()) for name in opened.offset_keys()}
        except (SafetensorError, OSError) as error:
            raise ModelError(
                f"the model in {path} cannot be loaded: {file.name} was cut off or damaged ({error}). "
                "Copy the model directory again."
            ) from error
    return sizes
