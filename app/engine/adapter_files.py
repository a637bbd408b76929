"""The files of an adapter, read without torch: that they are complete, finite, and fit the base model, although
the names of its modules may have other prefixes there.

Model servers do not check: some load NaN, half a width or missing layers, and answer 200. So every adapter is
checked here first.
"""

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from io import SEEK_CUR
from itertools import accumulate, takewhile
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from app.base.errors import AdapterError, UnreadableAdapterError

Shapes = Mapping[str, tuple[int, ...] | None]
"""Weight shapes by module name. None if the files do not show them, as for packed weights."""

_LAYER = re.compile(r"(?P<tower>.*?\blayers)\.(?P<number>\d+)\.(?P<part>.+)")
CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
LORA_KEY = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<half>[AB])\.weight")
_UNSUPPORTED = (  # settings for which PEFT does more than multiply two matrices
    *("use_dora", "modules_to_save", "lora_bias", "target_parameters", "trainable_token_indices"),
    *("layer_replication", "alora_invocation_tokens"),
)
_MODULE = re.compile(r"\w+(\.\w+)*")  # PEFT takes patterns of names for regular expressions: these are none
_MAX_MAGNITUDE = 1 << 16  # of weights and scale: half precision overflows here, and NaN spoils other requests
# The unsigned integer of the same width, the exponent's bits, and the first exponent that is too large.
_FLOAT_FORMATS: dict[str, tuple[type[np.generic], int, int]] = {
    "F64": (np.uint64, 0x7FF0 << 48, (1023 + 16) << 52),
    "F32": (np.uint32, 0x7F80 << 16, (127 + 16) << 23),
    "F16": (np.uint16, 0x7C00, 0x7C00),
    "BF16": (np.uint16, 0x7F80, (127 + 16) << 7),
}
_CHUNK = 1 << 24  # numbers checked together


def _match_modules(adapted: Shapes, base: Shapes) -> dict[str, str]:
    """Names in the base by names in the adapter, without modules that the base lacks.

    `adapted` has the shapes that the weights must have. A tower of the adapter matches the tower of the base with
    the longest common suffix, and among several the one whose shapes fit.
    """
    towers = _towers(base)
    matches: dict[str, str] = {}

    def similarity(candidate: tuple[int, dict[str, str]]) -> tuple[bool, int, int]:
        shared_end, pairs = candidate
        return bool(pairs), shared_end, sum(base[other] in (None, adapted[own]) for own, other in pairs.items())

    for tower, modules in _towers(adapted).items():
        candidates = []
        for name, others in towers.items():
            pairs = {own: others[place] for place, own in modules.items() if place in others}
            candidates.append((_common_suffix(tower, name), pairs))
        matches |= max(candidates, key=similarity, default=(0, {}))[1]
    return matches


def _unadapted_modules(changed: Collection[str], base: Iterable[str]) -> list[str]:
    """Modules that are not adapted, although the same module in another layer of their tower is."""
    parts = {_part(name) for name in changed} - {None}
    return sorted(name for name in base if name not in changed and _part(name) in parts)


def _towers(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Full names by tower and position. A module outside the layers is positioned in its parent module."""
    towers: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for name in names:
        if match := _LAYER.fullmatch(name):
            towers[match["tower"]][f"{match['number']}.{match['part']}"] = name
        else:
            parent, _, place = name.rpartition(".")
            towers[parent][place] = name
    return towers


def _common_suffix(one: str, other: str) -> int:
    """
    >>> _common_suffix("language_model.model.layers", "model.layers")
    2
    """
    pairs = zip(reversed(one.split(".")), reversed(other.split(".")), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _part(name: str) -> tuple[str, str] | None:
    match = _LAYER.fullmatch(name)
    return (match["tower"], match["part"]) if match else None


class _Tensor(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]


class AdapterFiles(msgspec.Struct, frozen=True):
    """The properties of a valid adapter."""

    path: Path
    hash: str  # of the content
    rank: int
    base: str | None = None  # the base model's name on model servers, where the adapter carries it


def content_hash(path: Path) -> str:
    """The name of an adapter with these files. Raises OSError if one of them cannot be read."""
    digest = sha256()
    for name in (CONFIG, WEIGHTS):
        with (path / name).open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()[:32]


def check_present(path: Path) -> None:
    """Raises UnreadableAdapterError if a file is missing, or cannot be read."""
    with _reading(path):
        for name in (CONFIG, WEIGHTS):
            if not (path / name).is_file():
                raise UnreadableAdapterError(
                    f"there is no adapter in {path}: it needs {name}. Put it back, or serve another release"
                )


def inspect(path: Path, base: Shapes | None = None) -> AdapterFiles:
    """Raises AdapterError for an adapter that must not be served, UnreadableAdapterError if that does not show,
    since its files are missing or cannot be read; `base` are the shapes that it must fit.
    """
    check_present(path)
    with _reading(path):
        digest, config, tensors = content_hash(path), _config(path), _header(path / WEIGHTS)
        _check_finite(path / WEIGHTS, tensors)
    rank = _rank(path, config)
    _check_scale(path, config)
    _check_shapes(path, config, tensors, base)
    base_name = config.get("base_model_name_or_path")
    return AdapterFiles(path, digest, rank, base_name if isinstance(base_name, str) else None)


def verify(path: Path, base: Shapes | None = None) -> AdapterFiles:
    """Like `inspect`, and checks that its name is its content hash, so it has not changed since it was written."""
    files = inspect(path, base)
    if files.hash != path.name:
        raise AdapterError(
            f"the files in {path} are not those that were written there: their content has the hash {files.hash}. "
            "Copy the adapter again from where it was made, or serve another release"
        )
    return files


def base_shapes(model_dir: Path) -> Shapes | None:
    """The shapes in the headers of a model directory's weights. None if there are no weights on this machine."""
    shapes: dict[str, tuple[int, ...] | None] = {}
    for file in sorted(model_dir.glob("model*.safetensors")):
        for name, tensor in _header(file).items():
            module, _, kind = name.rpartition(".")
            for parent in accumulate(module.split("."), "{}.{}".format):
                shapes.setdefault(parent, None)
            if kind == "weight" and tensor.dtype.startswith(("F", "BF")):  # integers are packed
                shapes[module] = tensor.shape
    return shapes or None


def _config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads((path / CONFIG).read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise AdapterError(f"{path / CONFIG} cannot be read as JSON: {error}") from error
    if not isinstance(config, dict) or config.get("peft_type", "LORA") != "LORA":
        raise AdapterError(f"{path / CONFIG} does not describe a LoRA adapter: only LoRA is supported")
    unsupported = [name for name in _UNSUPPORTED if config.get(name)]
    if config.get("bias") not in (None, "none"):
        unsupported.insert(0, "bias")
    if unsupported:
        raise AdapterError(f"{path / CONFIG} sets {unsupported[0]}: only plain LoRA is supported")
    return config


def _header(file: Path) -> dict[str, _Tensor]:
    """Tensors in the order of the file, which has no gaps: safetensors' own reader checks that.

    Raises AdapterError for a file that is truncated or not in safetensors format.
    """
    try:
        with safe_open(file, "np") as opened:
            slices = {name: opened.get_slice(name) for name in opened.offset_keys()}
            return {name: _Tensor(each.get_dtype(), tuple(each.get_shape())) for name, each in slices.items()}
    except SafetensorError as error:
        raise AdapterError(
            f"{file} cannot be read: it was cut off, or it is not a safetensors file ({error})"
        ) from error


def _check_finite(file: Path, tensors: Mapping[str, _Tensor]) -> None:
    with file.open("rb") as opened:
        opened.seek(int.from_bytes(opened.read(8), "little"), SEEK_CUR)
        for name, tensor in tensors.items():
            if tensor.dtype not in _FLOAT_FORMATS:
                raise AdapterError(f"{file} holds {name} as {tensor.dtype}: only floats are supported")
            kind, exponent, limit = _FLOAT_FORMATS[tensor.dtype]
            if any(((bits & exponent) >= limit).any() for bits in _chunks(opened, prod(tensor.shape), kind)):
                raise AdapterError(
                    f"the adapter in {file.parent} has weights that are not finite: {name} "
                    f"(or not below {_MAX_MAGNITUDE}, which overflows in half precision)"
                )


def _chunks(opened: Any, count: int, kind: type[np.generic]) -> Iterator[NDArray[Any]]:
    for start in range(0, count, _CHUNK):
        yield np.fromfile(opened, kind, min(count - start, _CHUNK))


def _rank(path: Path, config: Mapping[str, Any]) -> int:
    rank = config.get("r")
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        raise AdapterError(f"{path / CONFIG} does not set r, the rank")
    return rank


def _check_scale(path: Path, config: Mapping[str, Any]) -> None:
    patterns = config.get("alpha_pattern") or {}
    alphas = [config.get("lora_alpha", 8), *(patterns.values() if isinstance(patterns, dict) else [patterns])]
    for alpha in alphas:
        number = isinstance(alpha, int | float) and not isinstance(alpha, bool)
        if not number or not abs(alpha) <= _MAX_MAGNITUDE:
            raise AdapterError(
                f"{path / CONFIG} has lora_alpha {alpha}: it must be a number up to {_MAX_MAGNITUDE}"
            )


def _check_shapes(
    path: Path, config: Mapping[str, Any], tensors: Mapping[str, _Tensor], base: Shapes | None
) -> None:
    halves, ranks = _halves(path, tensors), _own_ranks(path, config)
    base = None if config.get("fan_in_fan_out") else base  # such a base stores its weights transposed
    same = _match_modules({module: (up[0], down[1]) for module, (down, up) in halves.items()}, base or {})
    for module, (down, up) in halves.items():
        rank = next((rank for name, rank in ranks.items() if f".{module}".endswith(f".{name}")), ranks[""])
        own = (up[0], down[1])
        height, width = own if base is None else _base_shape(path, config, module, same, base) or own
        if (down, up) != ((rank, width), (height, rank)):
            raise AdapterError(
                f"the adapter in {path} does not fit {module}: it has the shapes {down} and {up}, but rank {rank} "
                f"and this base model need {(rank, width)} and {(height, rank)}{_of_base(config)}"
            )
    if base is not None and not config.get("layers_to_transform") and not config.get("exclude_modules"):
        _check_complete(path, set(same.values()), base)


def _own_ranks(path: Path, config: Mapping[str, Any]) -> dict[str, int]:
    """By the end of a module's name; under "" the rank of all others."""
    most, pattern = _rank(path, config), config.get("rank_pattern") or {}
    ranks = pattern.items() if isinstance(pattern, dict) else [(str(pattern), 0)]
    for name, rank in ranks:
        whole = isinstance(rank, int) and not isinstance(rank, bool)
        if not whole or not 1 <= rank <= most or not _MODULE.fullmatch(name):
            raise AdapterError(
                f"{path / CONFIG} has a rank_pattern with {name[:80]!r}: only names of modules with ranks from 1 "
                f"to r, {most}, are supported"
            )
    return {**dict(ranks), "": most}


def _halves(path: Path, tensors: Mapping[str, _Tensor]) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """The shapes of both matrices, by module."""
    shapes: defaultdict[str, dict[str, tuple[int, ...]]] = defaultdict(dict)
    for name, tensor in tensors.items():
        match = LORA_KEY.fullmatch(name)
        if match is None or len(tensor.shape) != 2:
            raise AdapterError(f"the adapter in {path} holds {name}, which is not a LoRA weight of a linear layer")
        shapes[match["module"]][match["half"]] = tensor.shape
    if not shapes:
        raise AdapterError(f"the adapter in {path} holds no LoRA weights")
    for module, halves in shapes.items():
        if len(halves) != 2:
            raise AdapterError(f"the adapter in {path} lacks one of lora_A and lora_B of {module}")
    return {module: (halves["A"], halves["B"]) for module, halves in shapes.items()}


def _base_shape(
    path: Path, config: Mapping[str, Any], module: str, same: Mapping[str, str], base: Shapes
) -> tuple[int, ...] | None:
    """The shape of the module's weights; None if unknown."""
    shape = base[same[module]] if module in same else ()
    if shape is not None and len(shape) != 2:
        raise AdapterError(
            f"the adapter in {path} changes {module}, which this base model does not have as a linear layer"
            f"{_of_base(config)}"
        )
    return shape


def _of_base(config: Mapping[str, Any]) -> str:
    """What to do about an adapter that fits another model."""
    name = config.get("base_model_name_or_path")
    made = f". It was made for {name[:200]}" if isinstance(name, str) and name else ""
    return f"{made}: set SAGE_MODEL to its model, or SAGE_DATA_DIR to another directory, or serve another release"


def _check_complete(path: Path, changed: Collection[str], base: Shapes) -> None:
    """A module that is adapted in one layer must be adapted in all layers that have it."""
    if missing := _unadapted_modules(changed, base):
        raise AdapterError(f"the adapter in {path} lacks weights of {len(missing)} layers, such as {missing[0]}")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UnreadableAdapterError(
            f"the adapter in {path} cannot be read ({error}): check the disk and the permissions"
        ) from error
