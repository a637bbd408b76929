"""How much memory a model needs, known before the kernel would kill what loads it, and how much this process may
still use.
"""

import platform
import re
import resource
from collections import defaultdict
from math import prod
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
from safetensors import SafetensorError, safe_open

from app.base.errors import ModelError, ModelMemoryError
from app.base.settings import EngineDtype, Settings
from app.engine.tokenizer import read_json

_CGROUP = Path("/sys/fs/cgroup")
Packing: TypeAlias = Literal["none", "copied", "halved"]
_PROCESS = 850 << 20  # bytes: interpreter, torch, embeddings, buffers; measured with SmolLM2-135M
_GPU_PASSES = 1 << 30  # bytes: logits, activations, gathered keys and values; an estimate
_EMBEDDINGS, _OUTPUT = "model.embed_tokens.weight", "lm_head.weight"
SERVE_LESS = (
    "choose a smaller model, a smaller SAGE_ENGINE_KV_MB, fewer SAGE_ENGINE_ADAPTERS or, on a CPU, "
    "SAGE_ENGINE_DTYPE=int8, or serve it on another machine (ENGINE_URLS)"
)
_TRAINED_BYTES = 20  # of a number of an adapter in training: itself, its start, its gradient and two moments
_ADAPTER_RANK = 16  # the default of a run
_LAYER = re.compile(r"\.\d+\.")  # in the names of weights that layers have
_JOINED = re.compile(r"(.+\.)(?:[qkv]|gate|up)_proj\.weight")  # read the same input
_FUSED = ("llama", "qwen2")
_HALVES = ("bfloat16", "float16")
_SECONDS_PER_GB = 30.0


def memory_available() -> int | None:
    """Bytes that this process may still use: of the host, of its cgroup, of its own limit. None if unknown."""
    limits = [_of_host(), _of_cgroup(), _of_process()]
    return min((limit for limit in limits if limit is not None), default=None)


def _of_host() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:  # not Linux
        return None
    kilobytes = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(kilobytes[0]) << 10 if kilobytes else None


def _of_cgroup() -> int | None:
    """What a container's limit leaves; files that the kernel can drop again count as free."""
    try:
        limit = (_CGROUP / "memory.max").read_text("ascii").strip()
        used = int((_CGROUP / "memory.current").read_text("ascii"))
        stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text("ascii").splitlines())
    except (OSError, ValueError):  # no limit of this version
        return None
    return None if limit == "max" else int(limit) - used + int(stat.get("inactive_file", 0))


def _of_process() -> int | None:
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


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


class WeightFormat(msgspec.Struct, frozen=True, kw_only=True):
    """How the embedded engine keeps weights.

    `packing`: "copied" if the output layer has weights of its own besides the embeddings, "halved" if linear
    layers have 2 bytes in addition. `joined`: layers that read the same input are one, adapters included.
    """

    bytes_per_weight: int
    bytes_to_read: int  # of a weight, before it is packed
    packing: Packing = "none"
    joined: bool = False


def usual_format(path: Path, dtype: EngineDtype) -> WeightFormat:
    """What the engine chooses on CPUs of this kind, known without torch."""
    halved = saved_in_half(path) and platform.machine().lower() in ("x86_64", "amd64")
    fused = is_fused(path)
    match dtype:
        case "bfloat16":
            return WeightFormat(bytes_per_weight=2, bytes_to_read=2)
        case "int8":
            read = 2 if saved_in_half(path) else 4
            return WeightFormat(
                bytes_per_weight=1, bytes_to_read=read, packing="copied" if fused else "none", joined=fused
            )
        case _:
            kept: Packing = "halved" if halved else "copied"
            return WeightFormat(
                bytes_per_weight=4, bytes_to_read=4, packing=kept if fused else "none", joined=fused
            )


def usual_need(path: Path, settings: Settings) -> MemoryNeed:
    """Of the host that serves the model on its CPU. Raises ModelError as `weights_in`."""
    form = usual_format(path, settings.engine_dtype)
    return served_needs(path, form, cache=settings.engine_kv_mb << 20, adapters=settings.engine_adapters).host


def served_needs(
    path: Path, form: WeightFormat, *, cache: int = 0, adapters: int = 0, gpu: bool = False
) -> PlacedNeeds:
    """Of a model that is served, with so many adapters of rank 16 at once. The host reads the weights first, also
    those that a GPU then keeps.

    Raises ModelError as `weights_in`.
    """
    process, count = (_PROCESS, "the process"), weights_in(path)
    reading = MemoryNeed(((count * form.bytes_to_read, f"reading {count:,} weights"), process))
    weights = (kept_bytes(path, form), f"{count:,} weights")
    kept = (weights, (cache, "the KV cache"), (adapters * adapter_bytes(path, form), f"{adapters} adapters"))
    if gpu:
        return PlacedNeeds(reading, MemoryNeed((*kept, (_GPU_PASSES, "passes"))))
    serving = MemoryNeed((*kept, process))
    return PlacedNeeds(max(serving, reading, key=lambda need: need.total))


def trained_needs(
    path: Path,
    bytes_per_weight: int,
    *,
    gpu: bool = False,
    rank: int = 0,
    kept_tokens: int = 0,
    most_kept: int = 0,
) -> PlacedNeeds:
    """Of a process that trains an adapter of this rank, whose passes on a CPU keep activations of `kept_tokens`
    tokens, in at most `most_kept` bytes. Weights are read straight into a GPU.
    """
    linear = (shape for name, shape in _shapes(path).items() if _is_linear(name, shape))
    widths = sum(map(sum, linear))  # a layer keeps its input and what it makes of it
    adapter = (rank * widths * _TRAINED_BYTES, "the adapter and its optimizer")
    activations = (min(kept_tokens * widths * bytes_per_weight, most_kept), "activations")
    process, count = (_PROCESS, "the process"), weights_in(path)
    weights = (count * bytes_per_weight, f"{count:,} weights")
    if gpu:
        return PlacedNeeds(MemoryNeed((process,)), MemoryNeed((weights, adapter, (_GPU_PASSES, "passes"))))
    return PlacedNeeds(MemoryNeed((weights, adapter, activations, process)))


def check_fits(
    path: Path,
    need: MemoryNeed,
    available: int | None,
    memory: str = "memory",
    *,
    doing: str = "",
    advice: str = SERVE_LESS,
) -> None:
    """Raises ModelMemoryError if `available` bytes, where they are known, are fewer than the model needs."""
    if available is not None and need.total > available:
        raise ModelMemoryError(
            f"{doing}the model in {path} needs {need} of {memory}, {available >> 20:,} MB are free: stop other "
            f"programs, {advice}"
        )


def kept_bytes(path: Path, form: WeightFormat) -> int:
    """Of all weights, once they are packed. Raises as `weights_in`."""
    total, tied = weights_in(path), _tied_weights(path)
    match form.packing:
        case "none":
            return total * form.bytes_per_weight
        case "copied":
            return (total + tied) * form.bytes_per_weight
    shapes = _shapes(path).items()
    halved = sum(prod(shape) for name, shape in shapes if _is_linear(name, shape) or name == _OUTPUT)
    return (total - halved) * form.bytes_per_weight + 2 * (halved + tied)


def adapter_bytes(path: Path, form: WeightFormat) -> int:
    """Of an adapter of rank 16 for all linear layers, as the engine keeps it. Raises as `weights_in`.

    Layers that are joined have one update of the sum of their ranks.
    """
    layers: defaultdict[str, list[tuple[int, ...]]] = defaultdict(list)
    for name, shape in _shapes(path).items():
        if _is_linear(name, shape):
            match = _JOINED.fullmatch(name) if form.joined else None
            layers[match[1] if match else name].append(shape)
    numbers = sum(
        _ADAPTER_RANK * len(parts) * (parts[0][1] + sum(out for out, _ in parts)) for parts in layers.values()
    )
    return numbers * (2 if form.bytes_per_weight == 2 else 4)


def is_fused(path: Path) -> bool:
    """Whether the embedded engine has layers of its own for this model in float32."""
    return read_json(path, "config.json").get("model_type") in _FUSED


def saved_in_half(path: Path) -> bool:
    config = read_json(path, "config.json")
    return (config.get("dtype") or config.get("torch_dtype")) in _HALVES


def weights_in(path: Path) -> int:
    """The number of weights, by the headers of the files. Raises ModelError for a damaged one."""
    return sum(map(prod, _shapes(path).values()))


def loading(model: str | Path, path: Path) -> str:
    """What is loaded, for those who wait: `model` as it was named, and the size of its files in `path`."""
    return f"loading {model}, {max(1, _file_bytes(path) >> 20):,} MB"


def loading_seconds(path: Path) -> float:
    """The most that reading and packing the weights takes: on a CPU, from a slow disk."""
    return _file_bytes(path) / 1e9 * _SECONDS_PER_GB


def _tied_weights(path: Path) -> int:
    """Those that the output layer shares with the embeddings; 0 if it has its own. Raises as `weights_in`."""
    shapes = _shapes(path)
    return 0 if _OUTPUT in shapes else prod(shapes.get(_EMBEDDINGS, (0,)))


def _file_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.glob("model*.safetensors"))


def _is_linear(name: str, shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 and _LAYER.search(name) is not None


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Of each tensor."""
    shapes: dict[str, tuple[int, ...]] = {}
    for file in sorted(path.glob("model*.safetensors")):
        try:
            with safe_open(file, "np") as opened:
                shapes |= {name: tuple(opened.get_slice(name).get_shape()) for name in opened.offset_keys()}
        except (SafetensorError, OSError) as error:
            raise ModelError(
                f"the model in {path} cannot be loaded: {file.name} was cut off or damaged ({error}). "
                "Copy the model directory again."
            ) from error
    return shapes
