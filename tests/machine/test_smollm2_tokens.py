"""The tokenizer of a converted SmolLM2 gives the ids that transformers' own reading of the file gives."""

import random
import re
from pathlib import Path

import pytest
from gguf import GGUFReader
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

from app.base.files import sha256_of
from app.engine.tokenizer import ChatTokenizer
from app.machine.models import pull
from tests.support.smollm2 import SMOL, download

STRINGS = 10_000
BEFORE_A_NUMBER = re.compile(r"\s{2}[^\W_a-zA-Z]")  # two spaces and a digit of any script
ALPHABETS = (
    "abc XYZ'",
    "0123456789.,-",
    " \t\n\r\u00a0\u2003",
    "äöüßéñçøœ",
    "中文日本語한국어",
    "العربية עברית",
    "\U0001f642\U0001f469\u200d\U0001f467\U0001f3f3\ufe0f\u200d\U0001f308e\u0301",
)


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return download(tmp_path_factory.mktemp("smollm2"))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_ten_thousand_strings_have_the_same_ids(gguf: Path, tmp_path: Path) -> None:
    """transformers reads vocabulary, merges and special tokens, not `tokenizer.ggml.pre`: the official tokenizer
    and llama.cpp split off every digit first. Without that, only white space before digits is encoded otherwise.
    """
    converted = pull(SMOL.name, tmp_path, given=gguf)
    assert sha256_of(converted / "model.safetensors") == SMOL.weights, "the adapter that comes with it needs these"
    own = ChatTokenizer.load(converted)
    theirs = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    texts = strings(GGUFReader(gguf).fields["tokenizer.ggml.tokens"].contents())
    assert len(texts) == STRINGS
    mine = [own.encode(text) for text in texts]
    as_read = [theirs.encode(text, add_special_tokens=False) for text in texts]
    others = [text for text, one, other in zip(texts, mine, as_read, strict=True) if one != other]
    assert len(others) < STRINGS // 100
    assert all(BEFORE_A_NUMBER.search(text) for text in others)
    tokenizer = theirs.backend_tokenizer
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, tokenizer.pre_tokenizer])
    for text, one in zip(texts, mine, strict=True):
        assert one == theirs.encode(text, add_special_tokens=False), text


def strings(tokens: list[str]) -> list[str]:
    """Code, prose, digits, white space, any Unicode, special tokens, and mixtures of them; the same each time."""
    generator = random.Random(0)
    source = [
        line
        for path in sorted(Path(__file__).parents[1].rglob("test_*.py"))
        for line in path.read_text().split("\n")
    ]

    def piece() -> str:
        match generator.randrange(6):
            case 0:
                return generator.choice(source)
            case 1:
                return "".join(generator.choices(generator.choice(ALPHABETS), k=generator.randint(1, 20)))
            case 2:
                return "".join(
                    chr(generator.choice((generator.randrange(0x300), scalar(generator)))) for _ in range(8)
                )
            case 3:
                return str(generator.randrange(10 ** generator.randint(1, 18)))
            case 4:
                return generator.choice(tokens).replace("Ġ", " ").replace("Ċ", "\n")
        return " " * generator.randint(1, 9) + generator.choice(
            ("if", "return x", "'ll", "I'VE", "<|im_start|>user")
        )

    return ["".join(piece() for _ in range(generator.randint(1, 6))) for _ in range(STRINGS)]


def scalar(generator: random.Random) -> int:
    """Any code point but the surrogates."""
    return generator.choice((generator.randrange(0xD800), generator.randrange(0xE000, 0x110000)))
