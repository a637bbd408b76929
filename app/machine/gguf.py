"""Reads a GGUF file: its architecture as a config of transformers, and the tensors that it must have.

Specification: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import struct
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from gguf import GGUFReader, ReaderField, ReaderTensor

from app.errors import GgufError, first_line

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
_NO_SCALING = (None, "none")
_VALUES = 2_000_000  # of metadata; a vocabulary of 152,000 tokens takes 460,000
_TENSORS = 100_000
_DIMENSIONS = 4  # of a tensor, as the specification allows
_ARRAYS = 3  # within each other
_STRING_BYTES = 16 << 20

T = TypeVar("T")


class _BoundedReader(GGUFReader):  # type: ignore[misc]  # without types
    """Believes no count of the file: all that is read lies in it, and takes a bounded time.

    Raises ValueError beyond that.
    """

    def __init__(self, path: Path) -> None:
        self._values_left, self._tensors_left, self._arrays = _VALUES, _TENSORS, 0
        super().__init__(path)

    def _get(self, offset: Any, dtype: Any, count: Any = 1, override_order: Any = None) -> Any:
        start, size = int(offset), int(count) * np.dtype(dtype).itemsize
        if not 0 <= start <= start + size <= len(self.data):
            raise ValueError(f"{size} bytes at {start} are not in it")
        return super()._get(start, dtype, count, override_order)

    def _get_str(self, offset: int) -> Any:
        if (size := int(self._get(offset, np.uint64)[0])) > _STRING_BYTES:
            raise ValueError(f"a string of {size} bytes")
        return super()._get_str(offset)

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        self._values_left -= 1
        self._arrays += 1
        if self._values_left < 0:
            raise ValueError(f"it has more than {_VALUES:,} values")
        if self._arrays > _ARRAYS + 1:
            raise ValueError(f"it has more than {_ARRAYS} arrays within each other")
        try:
            return super()._get_field_parts(orig_offs, raw_type)
        finally:
            self._arrays -= 1

    def _get_tensor_info_field(self, orig_offs: int) -> ReaderField:
        self._tensors_left -= 1
        if self._tensors_left < 0:
            raise ValueError(f"it has more than {_TENSORS:,} tensors")
        field = super()._get_tensor_info_field(orig_offs)
        if len(field.parts[3]) > _DIMENSIONS:
            raise ValueError(f"it has a tensor of {len(field.parts[3])} dimensions")
        return field


class GgufFile:
    """The metadata and the memory-mapped tensors of a file of a known architecture."""

    def __init__(self, path: Path) -> None:
        """Raises GgufError."""
        try:
            with np.errstate(all="ignore"):  # what overflows is out of the file
                reader = _BoundedReader(path)
            self._values = {key: field.contents() for key, field in reader.fields.items()}
            self.tensors: dict[str, ReaderTensor] = {tensor.name: tensor for tensor in reader.tensors}
            if sum(int(tensor.n_bytes) for tensor in reader.tensors) > path.stat().st_size:
                raise ValueError("its tensors overlap")
        except (OSError, ValueError, LookupError, OverflowError, struct.error) as error:
            raise GgufError(
                f"{path} cannot be read as GGUF: it was cut off or damaged ({first_line(error)}). Copy it again"
            ) from error
        self.path = path
        if (parts := self.optional("split.count", int) or 1) > 1:
            raise GgufError(
                f"{path} is one of {parts} parts: merge them with `llama-gguf-split --merge`, or name a file that "
                "has the model whole"
            )
        self.architecture = self.value("general.architecture", str)
        if self.architecture not in ARCHITECTURES:
            raise GgufError(
                f"{path} is of the architecture {self.architecture!r}: only {', '.join(ARCHITECTURES)} can be "
                "converted. Name a model directory in transformers format instead"
            )

    def value(self, key: str, kind: type[T]) -> T:
        """Raises GgufError if the metadata lacks it, or has it in another type."""
        found = self.optional(key, kind)
        if found is None:
            raise GgufError(f"{self.path} does not set {key}. Name another GGUF file of this model")
        return found

    def optional(self, key: str, kind: type[T]) -> T | None:
        found = self._values.get(key)
        if kind is float and isinstance(found, int):
            found = float(found)
        if isinstance(found, float) and not isfinite(found):
            raise GgufError(f"{self.path} sets {key} to {found}: it is damaged. Copy it again")
        if found is not None and (not isinstance(found, kind) or (kind is int and isinstance(found, bool))):
            raise GgufError(f"{self.path} sets {key} to no {kind.__name__}. Name another GGUF file of this model")
        return found

    def own(self, key: str, kind: type[T]) -> T:
        """A value of the architecture."""
        return self.value(f"{self.architecture}.{key}", kind)


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of a decoder."""

    vocabulary: int
    hidden: int
    mlp: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    tied: bool  # one matrix is both the embedding and the output layer
    biased: bool  # queries, keys and values have a bias


def shape_of(file: GgufFile) -> Shape:
    """Raises GgufError for what the architecture of transformers does not compute."""
    if (scaling := file.optional(f"{file.architecture}.rope.scaling.type", str)) not in _NO_SCALING:
        raise GgufError(f"{file.path} scales its positions ({scaling}), which is not supported")
    if file.optional(f"{file.architecture}.expert_count", int):
        raise GgufError(f"{file.path} is a mixture of experts, which is not supported")
    hidden, heads = file.own("embedding_length", int), file.own("attention.head_count", int)
    kv_heads = file.optional(f"{file.architecture}.attention.head_count_kv", int) or heads
    head = file.optional(f"{file.architecture}.attention.key_length", int) or hidden // max(heads, 1)
    turned = file.optional(f"{file.architecture}.rope.dimension_count", int) or head
    if (layers := file.own("block_count", int)) > len(file.tensors):
        raise GgufError(f"{file.path} names {layers} layers and has {len(file.tensors)} tensors: it is damaged")
    if min(hidden, heads) < 1 or heads % kv_heads or turned != head or head % 2:
        raise GgufError(f"{file.path} has {heads} heads of {head} numbers and turns {turned}: not supported")
    return Shape(
        vocabulary=len(file.value("tokenizer.ggml.tokens", list)),
        hidden=hidden,
        mlp=file.own("feed_forward_length", int),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head=head,
        tied="output.weight" not in file.tensors,
        biased=file.architecture == "qwen2",
    )


def config_of(file: GgufFile, shape: Shape) -> dict[str, Any]:
    """The content of config.json."""
    theta = file.optional(f"{file.architecture}.rope.freq_base", float) or 10_000.0
    return {
        "architectures": [ARCHITECTURES[file.architecture]],
        "model_type": file.architecture,
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.mlp,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head,
        "hidden_act": "silu",
        "max_position_embeddings": file.own("context_length", int),
        "rms_norm_eps": _shortest(file.own("attention.layer_norm_rms_epsilon", float)),
        "rope_theta": theta,
        "rope_parameters": {"rope_theta": theta, "rope_type": "default"},
        "tie_word_embeddings": shape.tied,
        "bos_token_id": file.optional("tokenizer.ggml.bos_token_id", int),
        "eos_token_id": file.value("tokenizer.ggml.eos_token_id", int),
        "pad_token_id": file.optional("tokenizer.ggml.padding_token_id", int),
        "dtype": "bfloat16",
    }


def _shortest(value: float) -> float:
    """A float32 as people write it.

    >>> _shortest(9.999999747378752e-06)
    1e-05
    """
    return float(f"{value:.7g}")
