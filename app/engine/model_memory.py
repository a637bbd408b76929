"""How much memory a model needs, and how much there is: known before the kernel would kill what loads it."""

import resource
from math import prod
from pathlib import Path

from safetensors import SafetensorError, safe_open

from app.errors import ModelError, ModelMemoryError

_PROCESS = 850 << 20  # bytes: interpreter, torch, embeddings, buffers; measured with SmolLM2-135M
_EMBEDDINGS, _OUTPUT = "model.embed_tokens.weight", "lm_head.weight"
_CGROUP = Path("/sys/fs/cgroup")


def check_memory(
    path: Path, bytes_per_weight: int, *, copied: int = 0, caches: int = 0, bytes_to_read: int = 0
) -> None:
    """Raises ModelMemoryError if this process may use less than the model and `caches` bytes need, or than reading
    the model needs with `bytes_to_read` for a weight. `copied` weights are held twice once it is read.
    """
    available = memory_available()
    needed = memory_needed(path, bytes_per_weight, copied) + caches
    if (reading := memory_needed(path, bytes_to_read)) > needed:
        needed, bytes_per_weight, copied, caches = reading, bytes_to_read, 0, 0
    if available is not None and needed > available:
        twice = f", {copied:,} of them twice" if copied else ""
        cached = f", {caches >> 20:,} MB of KV cache" if caches else ""
        raise ModelMemoryError(
            f"the model in {path} needs {needed >> 20:,} MB of memory ({weights_in(path):,} weights of "
            f"{bytes_per_weight} bytes{twice}{cached}, {_PROCESS >> 20} MB for the process), "
            f"{available >> 20:,} MB are free: stop other programs, choose a smaller model, or serve it on "
            "another machine (ENGINE_URLS)"
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
