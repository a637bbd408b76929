"""Dequantizes the tensors of a GGUF file into one safetensors file, in bfloat16.

Why bfloat16: GPUs serve in it and CPUs compute in float32, so rounding once, here, gives all of them the same
weights, and adapters one base. Its error, 2^-9, is far below that of four bits, and it takes half the space.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from gguf import ReaderTensor
from gguf.quants import dequantize
from numpy.typing import NDArray

from app.errors import GgufError
from app.model_store.gguf_header import GgufFile, Shape

_CHUNK = 1 << 24  # numbers that are dequantized at a time


class _Target(msgspec.Struct, frozen=True):
    """Where a tensor of the GGUF file goes."""

    name: str
    shape: tuple[int, ...]
    heads: int = 0  # of rows that are interleaved


def write_weights(file: GgufFile, shape: Shape, path: Path, advance: Callable[[int], object]) -> None:
    """Write all tensors in the order of their names; `advance` is told the bytes written.

    Raises GgufError for a tensor that is missing, unknown, of another shape or not finite.
    """
    targets = dict(sorted(_targets(file, shape).items(), key=lambda item: item[1].name))
    _check(file, targets)
    with path.open("wb") as out:
        out.write(_header(list(targets.values())))
        for source, target in targets.items():
            for chunk in _numbers(file.tensors[source], target):
                if not np.isfinite(chunk).all():
                    raise GgufError(f"{file.path} has numbers in {source} that are not finite. Copy it again")
                out.write(to_bfloat16(chunk).tobytes())
                advance(2 * chunk.size)


def to_bfloat16(numbers: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of the nearest bfloat16; of two at the same distance, the even one."""
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def weights_size(shape: Shape) -> int:
    """Bytes that the file of these weights will have, without its header."""
    return sum(2 * int(np.prod(target.shape)) for target in _layout(shape, rotated=False).values())


def _targets(file: GgufFile, shape: Shape) -> dict[str, _Target]:
    return _layout(shape, rotated=file.architecture == "llama")


def _layout(shape: Shape, *, rotated: bool) -> dict[str, _Target]:
    """All tensors of a model: the name in GGUF, and what transformers calls it.

    llama.cpp turns neighboring numbers of a head, transformers those half a head apart, so files of llama have the
    rows of queries and keys in another order.
    """
    queries, keys = shape.heads * shape.head, shape.kv_heads * shape.head
    targets = {
        "token_embd.weight": _Target("model.embed_tokens.weight", (shape.vocabulary, shape.hidden)),
        "output_norm.weight": _Target("model.norm.weight", (shape.hidden,)),
    }
    if not shape.tied:
        targets["output.weight"] = _Target("lm_head.weight", (shape.vocabulary, shape.hidden))
    linear = {
        "attn_q": ("self_attn.q_proj", queries, shape.hidden, shape.heads * rotated),
        "attn_k": ("self_attn.k_proj", keys, shape.hidden, shape.kv_heads * rotated),
        "attn_v": ("self_attn.v_proj", keys, shape.hidden, 0),
        "attn_output": ("self_attn.o_proj", shape.hidden, queries, 0),
        "ffn_gate": ("mlp.gate_proj", shape.mlp, shape.hidden, 0),
        "ffn_up": ("mlp.up_proj", shape.mlp, shape.hidden, 0),
        "ffn_down": ("mlp.down_proj", shape.hidden, shape.mlp, 0),
    }
    for layer in range(shape.layers):
        own, others = f"blk.{layer}", f"model.layers.{layer}"
        for source, target in (("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm")):
            targets[f"{own}.{source}.weight"] = _Target(f"{others}.{target}.weight", (shape.hidden,))
        for source, (target, height, width, heads) in linear.items():
            targets[f"{own}.{source}.weight"] = _Target(f"{others}.{target}.weight", (height, width), heads)
            if shape.biased and source in ("attn_q", "attn_k", "attn_v"):
                targets[f"{own}.{source}.bias"] = _Target(f"{others}.{target}.bias", (height,))
    return targets


def _check(file: GgufFile, targets: dict[str, _Target]) -> None:
    missing, unknown = targets.keys() - file.tensors.keys(), file.tensors.keys() - targets.keys()
    if missing:
        raise GgufError(f"{file.path} lacks {len(missing)} tensors, such as {min(missing)}. Copy it again")
    if unknown:
        raise GgufError(
            f"{file.path} has {len(unknown)} tensors that a {file.architecture} of transformers does not have, "
            f"such as {min(unknown)}: it cannot be converted"
        )
    for source, target in targets.items():
        found = tuple(int(size) for size in reversed(file.tensors[source].shape))
        if found != target.shape:
            raise GgufError(f"{file.path} has {source} in the shape {found}, its metadata ask for {target.shape}")


def _header(targets: list[_Target]) -> bytes:
    """The head of a safetensors file: its length in 8 bytes, then JSON."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for target in targets:
        end = offset + 2 * int(np.prod(target.shape))
        entries[target.name] = {"dtype": "BF16", "shape": target.shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _numbers(tensor: ReaderTensor, target: _Target) -> Iterator[NDArray[np.float32]]:
    """The tensor in float32, in pieces of whole rows."""
    if len(target.shape) == 1 or target.heads:
        whole = _dequantized(tensor, tensor.data)
        yield _uninterleaved(whole, target.heads) if target.heads else whole
        return
    step = max(_CHUNK // target.shape[1], 1)
    for start in range(0, target.shape[0], step):
        yield _dequantized(tensor, tensor.data[start : start + step])


def _dequantized(tensor: ReaderTensor, data: NDArray[Any]) -> NDArray[np.float32]:
    try:
        return np.asarray(dequantize(data, tensor.tensor_type), np.float32)
    except NotImplementedError as error:
        raise GgufError(
            f"{tensor.name} is stored as {tensor.tensor_type.name}, which cannot be read: name another "
            "quantization of this model, such as Q4_K_M or Q8_0"
        ) from error


def _uninterleaved(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """(heads * d, c): the even numbers of each head, then the odd ones."""
    height, width = rows.shape
    return rows.reshape(heads, height // heads // 2, 2, width).swapaxes(1, 2).reshape(height, width)
