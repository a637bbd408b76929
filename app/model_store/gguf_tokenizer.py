"""Builds a tokenizer of the tokenizers library from the vocabulary and the merges in a GGUF file.

GGUF names how text is split before merging (`tokenizer.ggml.pre`) but does not contain it.
"""

from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from app.errors import GgufError, ModelTokenizerError
from app.model_store.gguf_header import GgufFile

_CONTROL, _USER_DEFINED = 3, 4  # kinds of tokens: llama.cpp's llama_token_type
_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_ASCII = [chr(byte) for byte in range(0x21, 0x7F)] + ["Ġ", "Ċ"]  # space and newline, as byte-level BPE writes them
_PROBE = "def f(x):\n\treturn {'a': x * 12.5}  # naïve, 東京, 🙂\n"


def tokenizer_of(file: GgufFile) -> Tokenizer:
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


def tokenizer_config(file: GgufFile) -> dict[str, Any]:
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
