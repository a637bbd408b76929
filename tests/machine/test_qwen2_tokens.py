"""The tokenizer of a converted Qwen2 gives the ids of transformers' own tokenizer of that architecture."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import Qwen2Tokenizer

from app.engine.tokenizer import ChatTokenizer
from tests.machine.test_convert_gguf import converted
from tests.machine.test_smollm2_tokens import STRINGS, strings
from tests.support.tiny_gguf import write_gguf
from tests.support.tiny_model import SPECIAL, make_model_dir

VOCABULARY = 2000
PIECES = (
    "'s",
    "'THE",
    "'re",
    "'Very",
    "'mine",
    "'LLama",
    "'D",
    "'\u017fo",
    "\u2019s",
    "e\u0301",
    "\u212b",
    *SPECIAL,
)


@pytest.mark.slow
def test_ten_thousand_strings_have_the_same_ids(tmp_path: Path) -> None:
    texts = strings(list(PIECES))
    assert len(texts) == STRINGS
    merges = merges_across_splits(texts)
    vocabulary = json.loads((make_model_dir(tmp_path / "model", merges=merges) / "tokenizer.json").read_text())
    as_text = [" ".join(pair) for pair in merges]
    gguf = write_gguf(tmp_path / "tiny.gguf", tmp_path / "model", tokenizer__ggml__merges=as_text)
    own = ChatTokenizer.load(converted(gguf, tmp_path / "out"))
    pairs: Any = merges  # annotated as texts, but read as pairs
    theirs = Qwen2Tokenizer(vocabulary["model"]["vocab"], pairs, extra_special_tokens=list(SPECIAL))
    for text in texts:
        assert own.encode(text) == theirs.encode(text, add_special_tokens=False), text


def merges_across_splits(texts: list[str]) -> list[tuple[str, str]]:
    """Learned from text that was split nowhere: many cross the ends of words, numbers and lines, so that another
    split gives other ids.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, initial_alphabet=alphabet, max_token_length=8, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    learned = json.loads(tokenizer.to_str())["model"]["merges"]
    first = {left + right: (left, right) for left, right in reversed(learned)}  # two may give one token
    return [pair for pair in map(tuple, learned) if first[pair[0] + pair[1]] == pair]
