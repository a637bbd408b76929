"""GGUF files that cannot become a model here: each refusal has a name, and nothing is installed."""

import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.base.errors import ChatTemplateError, GgufError, ModelError, ModelTokenizerError
from app.machine import gguf as gguf
from app.machine.gguf import convert
from tests.machine.test_convert_gguf import ORIGIN
from tests.support.every_row import every_row
from tests.support.tiny_gguf import write_gguf

ONLY_LAST = "{{ messages[-1].content }}{% if add_generation_prompt %}|{% endif %}"
NUMBERED = "{{ messages | length }}{% for each in messages %}<{{ each.role }}>{{ each.content }}{% endfor %}"
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system prompts') }}{% endif %}"


def refuse(gguf: Path, kind: type[ModelError], message: str) -> None:
    """The error has this very class, and names the file."""
    target = gguf.parent / "models" / "out"
    with pytest.raises(ModelError, match=message) as raised:
        convert(gguf, target, ORIGIN, lambda *_: None)
    assert type(raised.value) is kind
    assert str(gguf) in str(raised.value)
    assert not list(gguf.parent.glob("models/*"))
    assert not list(gguf.parent.glob("models/.*"))


DOUBLING = (
    "{% set text = namespace(of='again and again') %}"
    "{% for each in range(60) %}{% set text.of = text.of ~ text.of %}{% endfor %}{{ text.of }}"
)
REFUSED: list[tuple[dict[str, Any], type[ModelError], str]] = [
    ({"general_architecture": "gemma3"}, GgufError, "'gemma3': only llama, qwen2"),
    ({"qwen2__rope__scaling__type": "yarn"}, GgufError, "scales its positions"),
    ({"qwen2__expert_count": 8}, GgufError, "mixture of experts"),
    ({"qwen2__attention__head_count": 3}, GgufError, "not supported"),
    ({"qwen2__block_count": 4}, GgufError, "lacks 12 tensors, such as blk.3"),
    ({"qwen2__block_count": 1 << 31}, GgufError, "names 2147483648 layers"),
    ({"qwen2__block_count": 2}, GgufError, "has 12 tensors that a qwen2 of transformers does not have"),
    ({"qwen2__feed_forward_length": 96}, GgufError, "its metadata ask for"),
    ({"qwen2__context_length": "long"}, GgufError, "context_length to no int"),
    ({"tokenizer__ggml__model": "llama"}, GgufError, "only byte-level BPE"),
    ({"tokenizer__ggml__pre": "tekken"}, GgufError, "splits text like 'tekken'"),
    (
        {"tokenizer__ggml__tokens": ["a", "b"]},
        ModelTokenizerError,
        "tokenizer of 2 tokens and embeddings of 265",
    ),
    ({"tokenizer__ggml__tokens": ["a"] * 265}, ModelTokenizerError, "264 tokens twice"),
    (
        {"tokenizer__ggml__tokens": [f"t{n}" for n in range(265)]},
        ModelTokenizerError,
        "no tokens for 96 letters",
    ),
    (
        {"tokenizer__ggml__merges": ["d e", "q q"]},
        ModelTokenizerError,
        "'q q', which is not in its vocabulary",
    ),
    ({"tokenizer__ggml__eos_token_id": 265}, ModelTokenizerError, "names token 265 as its eos_token"),
    ({"template": ONLY_LAST}, ChatTemplateError, "rewrites history"),
    ({"template": NUMBERED}, ChatTemplateError, "rewrites history"),
    ({"template": NO_SYSTEM}, ChatTemplateError, "no system prompts"),
    ({"template": "{% for each in messages %}"}, ModelError, "does not compile"),
    ({"template": "{{ 'a' * 10 ** 11 }}"}, ModelError, "cannot be read within 4 GB"),
    ({"template": DOUBLING}, ModelError, r"cannot be read within 4 GB .*MemoryError"),
    ({"leave_out": "output_norm.weight"}, GgufError, "lacks 1 tensors, such as output_norm.weight"),
    ({"tensors": {"rope_freqs.weight": np.ones(8, np.float32)}}, GgufError, "such as rope_freqs.weight"),
    ({"tensors": {"blk.0.attn_q.bias": np.full(64, np.inf, np.float32)}}, GgufError, "not finite"),
]


def test_a_file_that_cannot_be_converted_is_refused_by_name(tmp_path: Path) -> None:
    with every_row() as row:
        for at, (values, kind, message) in enumerate(REFUSED):
            with row(values, message):
                directory = tmp_path / str(at)
                directory.mkdir()
                refuse(write_gguf(directory / "tiny.gguf", directory / "model", **values), kind, message)


def head(kind: int, value: bytes, *, tensors: int = 0, keys: int = 1) -> bytes:
    """The beginning of a GGUF file with one key, `k`, of this kind."""
    return b"GGUF" + struct.pack("<IQQQ", 3, tensors, keys, 1) + b"k" + struct.pack("<I", kind) + value


def array(of: int, count: int) -> bytes:
    return struct.pack("<IQ", of, count)


STRING, ARRAY, BYTE = 8, 9, 0
HOSTILE: list[tuple[str, bytes]] = [
    ("a long array of bytes", head(ARRAY, array(BYTE, 1 << 62))),
    ("a long array of strings", head(ARRAY, array(STRING, 1 << 40))),
    ("an array of arrays", head(ARRAY, array(ARRAY, 1 << 40))),
    ("nested arrays", head(ARRAY, array(ARRAY, 1) * 20_000)),
    ("a wide and nested array", head(ARRAY, array(ARRAY, 30_000) + array(ARRAY, 0) * 30_000)),
    ("many values", head(ARRAY, array(BYTE, 30_000) + bytes(30_000))),
    ("a long string", head(STRING, struct.pack("<Q", (1 << 64) - 1))),
    ("a large string", head(STRING, struct.pack("<Q", 32 << 20) + bytes(32 << 20))),
    ("many keys", head(BYTE, b"\0", keys=1 << 60)),
    ("many tensors", head(BYTE, b"\0", tensors=1 << 60)),
    (
        "many dimensions",
        head(BYTE, b"\0" + struct.pack("<Q", 0) + struct.pack("<I", 1 << 20) + bytes(9 << 20), tensors=1),
    ),
    (
        "a tensor beyond all numbers",
        head(BYTE, b"\0" + struct.pack("<QIQIQ", 0, 1, (1 << 63) + 8, 0, (1 << 64) - 32) + bytes(99), tensors=1),
    ),
    (
        "tensors over each other",
        head(
            BYTE,
            b"\0" + b"".join(struct.pack("<Q1sIQIQ", 1, name, 1, 64, 0, 0) for name in (b"a", b"b")) + bytes(300),
            tensors=2,
        ),
    ),
]


def test_counts_of_a_file_that_are_not_true_end_in_a_refusal_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf, "_VALUES", 20_000)
    with every_row() as row:
        for name, content in HOSTILE:
            with row(name):
                directory = tmp_path / name
                directory.mkdir()
                (directory / "tiny.gguf").write_bytes(content)
                began = time.thread_time()
                refuse(directory / "tiny.gguf", GgufError, "cannot be read as GGUF")
                assert time.thread_time() - began < 60


@pytest.mark.parametrize("part", [0, 3, 100, 5_000, 100_000])
def test_a_file_that_was_cut_off_is_refused(part: int, tmp_path: Path) -> None:
    gguf = write_gguf(tmp_path / "tiny.gguf", tmp_path / "model")
    gguf.write_bytes(gguf.read_bytes()[:part])
    refuse(gguf, GgufError, "cut off or damaged")


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    gguf = tmp_path / "page.gguf"
    gguf.write_bytes(b"<html>" * 1000)
    refuse(gguf, GgufError, "cut off or damaged")
