"""Converts a GGUF file to a model directory in transformers format, whole or not at all, always the same bytes:
its header, its tokenizer, its weights in bfloat16. Specification:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import json
import shutil
import struct
from collections.abc import Callable, Iterator
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from gguf import GGUFReader, ReaderField, ReaderTensor
from gguf.quants import dequantize
from numpy.typing import NDArray
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from app.base.errors import GgufError, ModelError, ModelTokenizerError, StorageError, first_line
from app.base.files import publish
from app.machine.model_checks import check_directory

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
_NO_SCALING = (None, "none")
_VALUES = 2_000_000  # of metadata; a vocabulary of 152,000 tokens takes 460,000
_TENSORS = 100_000
_DIMENSIONS = 4  # of a tensor, as the specification allows
_ARRAYS = 3  # within each other
_STRING_BYTES = 16 << 20

T = TypeVar("T")
_CONTROL, _USER_DEFINED = 3, 4  # kinds of tokens: llama.cpp's llama_token_type
_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_ASCII = [chr(byte) for byte in range(0x21, 0x7F)] + ["Ġ", "Ċ"]  # space and newline, as byte-level BPE writes them
_PROBE = "def f(x):\n\treturn {'a': x * 12.5}  # naïve, 東京, 🙂\n"
_CHUNK = 1 << 24  # numbers that are dequantized at a time
_SPARE = 50 << 20  # bytes on the disk for everything but weights


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


def _shape_of(file: GgufFile) -> Shape:
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


def _config_of(file: GgufFile, shape: Shape) -> dict[str, Any]:
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


def _tokenizer_of(file: GgufFile) -> Tokenizer:
    """Raises GgufError for an unknown kind, and ModelTokenizerError for one that cannot represent all text."""
    if (kind := file.value("tokenizer.ggml.model", str)) != "gpt2":
        raise GgufError(f"{file.path} has a tokenizer of kind {kind!r}: only byte-level BPE ('gpt2') is supported")
    tokens = file.value("tokenizer.ggml.tokens", list)
    vocabulary = {token: number for number, token in enumerate(tokens)}
    _check_vocabulary(file, tokens, vocabulary)
    tokenizer = Tokenizer(_merges(file, vocabulary))
    _split(file, tokenizer)
    tokenizer.decoder = decoders.ByteLevel()
    kinds = file.optional("tokenizer.ggml.token_type", list) or []
    tokenizer.add_special_tokens(_added(tokens, kinds, _CONTROL))
    tokenizer.add_tokens(_added(tokens, kinds, _USER_DEFINED))
    if tokenizer.get_vocab_size(with_added_tokens=True) != len(tokens):
        raise ModelTokenizerError(f"{file.path} has special tokens twice: name another GGUF file of this model")
    if tokenizer.decode(tokenizer.encode(_PROBE).ids, skip_special_tokens=False) != _PROBE:
        raise ModelTokenizerError(f"the tokenizer in {file.path} changes text: name another file of this model")
    return tokenizer


def _tokenizer_config(file: GgufFile) -> dict[str, Any]:
    """The content of tokenizer_config.json. Raises ModelTokenizerError for ids outside of the vocabulary."""
    tokens = file.value("tokenizer.ggml.tokens", list)
    options: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    names = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
    for own, other in names.items():
        number = file.optional(f"tokenizer.ggml.{own}_token_id", int)
        if number is not None and not 0 <= number < len(tokens):
            raise ModelTokenizerError(
                f"{file.path} names token {number} as its {other}_token, of {len(tokens)}: they do not match"
            )
        if number is not None:
            options[f"{other}_token"] = tokens[number]
    length = file.own("context_length", int)
    return options | {"model_max_length": length}


def _added(tokens: list[str], kinds: list[int], kind: int) -> list[AddedToken]:
    return [AddedToken(token, normalized=False) for token, own in zip(tokens, kinds, strict=False) if own == kind]


def _check_vocabulary(file: GgufFile, tokens: list[str], vocabulary: dict[str, int]) -> None:
    rows = int(file.tensors["token_embd.weight"].shape[1]) if "token_embd.weight" in file.tensors else 0
    if rows != len(tokens):
        raise ModelTokenizerError(
            f"{file.path} has a tokenizer of {len(tokens)} tokens and embeddings of {rows}: they do not match"
        )
    if len(vocabulary) != len(tokens):
        raise ModelTokenizerError(f"{file.path} has {len(tokens) - len(vocabulary)} tokens twice")
    if missing := [letter for letter in _ASCII if letter not in vocabulary]:
        raise ModelTokenizerError(f"{file.path} has no tokens for {len(missing)} letters, such as {missing[0]!r}")


def _merges(file: GgufFile, vocabulary: dict[str, int]) -> models.BPE:
    pairs = []
    for merge in file.value("tokenizer.ggml.merges", list):
        left, _, right = str(merge).partition(" ")
        if not {left, right, left + right} <= vocabulary.keys():
            raise ModelTokenizerError(f"{file.path} merges {merge!r}, which is not in its vocabulary")
        pairs.append((left, right))
    return models.BPE(vocabulary, pairs)


def _split(file: GgufFile, tokenizer: Tokenizer) -> None:
    """What the official tokenizer.json of the models with this name does before it merges."""
    match file.value("tokenizer.ggml.pre", str):
        case "smollm":
            digits = pre_tokenizers.Digits(individual_digits=True)
            tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
                [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
            )
        case "qwen2":
            tokenizer.normalizer = normalizers.NFC()
            split = pre_tokenizers.Split(Regex(_QWEN), "isolated")
            tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
                [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
            )
        case name:
            raise GgufError(
                f"{file.path} splits text like {name!r}: only 'smollm' and 'qwen2' are supported. Name a model "
                "directory in transformers format instead"
            )


class _Target(msgspec.Struct, frozen=True):
    """Where a tensor of the GGUF file goes."""

    name: str
    shape: tuple[int, ...]
    heads: int = 0  # of rows that are interleaved


def _write_weights(file: GgufFile, shape: Shape, path: Path, advance: Callable[[int], object]) -> None:
    """Write all tensors in the order of their names; `advance` is told the bytes written.

    Raises GgufError for a tensor that is missing, unknown, of another shape or not finite.
    """
    layout = _layout(shape, rotated=file.architecture == "llama")
    targets = dict(sorted(layout.items(), key=lambda item: item[1].name))
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


def _weights_size(shape: Shape) -> int:
    """Bytes that the file of these weights will have, without its header."""
    return sum(2 * int(np.prod(target.shape)) for target in _layout(shape, rotated=False).values())


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


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """What the model's card says."""

    title: str
    licence: str
    source: str  # a repository, a package or a file
    sha256: str  # of the GGUF file
    prompt_profile: str


def convert(gguf: Path, target: Path, origin: Origin, progress: Callable[[int, int], object]) -> Path:
    """Make `target`, or leave it as it is. `progress` gets the bytes written, and all of them.

    Raises GgufError, ModelTokenizerError, ChatTemplateError, and StorageError for a full disk.
    """
    file = GgufFile(gguf)
    shape = _shape_of(file)
    needed = _weights_size(shape)
    partial = target.with_name(f".{target.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)  # of a conversion that was killed
        partial.mkdir(parents=True)
        check_disk_space(partial, needed + _SPARE)
        _write_json(partial / "config.json", _config_of(file, shape))
        _tokenizer_of(file).save(str(partial / "tokenizer.json"))
        _write_json(partial / "tokenizer_config.json", _tokenizer_config(file))
        template = file.value("tokenizer.chat_template", str)
        (partial / "chat_template.jinja").write_text(template, "utf-8")
        (partial / "README.md").write_text(_card(origin), "utf-8")
        check_directory(partial)
        _write_weights(file, shape, partial / "model.safetensors", lambda size: progress(size, needed))
        publish(partial, target)
    except OSError as error:
        raise StorageError(f"{target} could not be written ({first_line(error)}): free disk space") from error
    except GgufError:
        raise
    except ModelError as error:
        raise type(error)(str(error).replace(str(partial), str(gguf))) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def origin_of(gguf: Path, sha256: str) -> Origin:
    """Of a file that the catalogue does not have. Raises GgufError."""
    file = GgufFile(gguf)
    return Origin(
        title=file.optional("general.name", str) or gguf.stem,
        licence=file.optional("general.license", str) or "unknown",
        source=gguf.name,
        sha256=sha256,
        prompt_profile="full",
    )


def check_disk_space(place: Path, needed: int) -> None:
    """Raises StorageError before a write that cannot end."""
    free = shutil.disk_usage(place).free
    if free < needed:
        raise StorageError(
            f"{needed >> 20} MB are needed in {place}, {free >> 20} MB are free: free some, or set SAGE_DATA_DIR"
        )


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _card(origin: Origin) -> str:
    return f"""---
license: {json.dumps(origin.licence)}
library_name: transformers
pipeline_tag: text-generation
prompt_profile: {origin.prompt_profile}
---
# {origin.title}

Converted from {origin.source}, a GGUF file with the SHA-256 `{origin.sha256}`: dequantized to bfloat16, with the
tokenizer and the chat template that it contains.
"""
