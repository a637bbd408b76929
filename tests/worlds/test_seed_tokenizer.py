"""The seed policy's tokenizer: every text survives a round trip, and a word is the same token everywhere."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from app.apis.look_ups import show_signatures
from app.engine.tokenizer import ChatTokenizer, Message
from trainer.worlds.office import solution
from trainer.worlds.office.apps import APP_NAMES, Site
from trainer.worlds.office.environment import catalog_of
from trainer.worlds.office.expert import vocabulary
from trainer.worlds.office.scenarios import TEMPLATES
from trainer.worlds.recipes import Recipe
from trainer.worlds.seed_policy.bootstrap import prepare
from trainer.worlds.seed_policy.tokenizer import SPECIAL

TEXTS = (
    "",
    " ",
    "archive all mails from iris",
    "Grüße, naïve café, Ωμέγα, 東京, нет",
    "🙂🧑‍🚀 e\u0301 \u200b\ufeff",
    "\ttabs\tand\r\nlines\n\n\n   indented  twice ",
    "\x00\x01\x7f\x1b[0m",
    "def f(x: int) -> dict[str, float]:\n\treturn {'a': 1e-9, \"b\": ~x ^ 0xFF}  # `#`",
    "<0x41><0xE9> spelled out, and <| nearly special |>",
    "CamelCase snake_case kebab-case 1234567890 3.14",
    "x" * 500,
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("seed")
    prepare(work, Recipe(hidden=32, heads=1, layers=1, mlp=32))
    return work


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> ChatTokenizer:
    return ChatTokenizer.load(directory)


@pytest.fixture(scope="module")
def theirs(directory: Path) -> PreTrainedTokenizerFast:
    """As vLLM loads it."""
    loaded = AutoTokenizer.from_pretrained(directory)
    assert isinstance(loaded, PreTrainedTokenizerFast)
    return loaded


def random_texts() -> Iterator[str]:
    rng = Random(3)
    planes = [(32, 126), (0, 31), (0xA0, 0x2FF), (0x4E00, 0x4FFF), (0x1F300, 0x1FAFF)]
    for _ in range(200):
        yield "".join(chr(rng.randint(*rng.choice(planes))) for _ in range(rng.randint(1, 40)))


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_survives_a_round_trip(tokenizer: ChatTokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_random_text_of_all_planes_survives_a_round_trip(tokenizer: ChatTokenizer) -> None:
    for text in random_texts():
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_every_word_of_the_office_is_one_token(tokenizer: ChatTokenizer) -> None:
    assert [word for word in vocabulary() if len(tokenizer.encode(word)) != 1] == []


def test_a_value_is_the_same_token_in_the_prompt_and_in_code(tokenizer: ChatTokenizer) -> None:
    """Or copying it would be translation."""
    for template in TEMPLATES:
        for value in template.values:
            (token,) = tokenizer.encode(value)
            for phrasing in template.phrasings:
                assert token in tokenizer.encode(phrasing.format(value=value)), phrasing
            assert token in tokenizer.encode(solution.call(template, value))


def test_an_operation_is_the_same_token_in_documents_and_in_code(tokenizer: ChatTokenizer) -> None:
    for template in TEMPLATES:
        site = Site.of(TEMPLATES.index(template) + 1)
        here = site.apps[template.app]
        code = tokenizer.encode(solution.function(template, site))
        documents = tokenizer.encode(show_signatures(catalog_of(site.seed), template.app))
        for name in (here.names["login"], here.names["list"], *here.fields.values()):
            (token,) = tokenizer.encode(name)
            assert token in documents, name
        for role in ("login", "list"):
            assert tokenizer.encode(here.names[role])[0] in code


def test_the_documents_and_code_of_a_task_are_short(tokenizer: ChatTokenizer) -> None:
    """Or training would cost many times more."""
    for template in TEMPLATES:
        assert len(tokenizer.encode(solution.function(template, Site.of(1)))) < 150
    for app in APP_NAMES:
        assert len(tokenizer.encode(show_signatures(catalog_of(1), app))) < 250


def test_transformers_reads_the_same_ids_and_the_same_text(
    tokenizer: ChatTokenizer, theirs: PreTrainedTokenizerFast
) -> None:
    for text in (*TEXTS, *random_texts()):
        ids = theirs.encode(text, add_special_tokens=False)
        assert ids == tokenizer.encode(text)
        assert theirs.decode(ids) == text


def test_transformers_renders_the_same_chat(tokenizer: ChatTokenizer, theirs: PreTrainedTokenizerFast) -> None:
    said = [("user", "count my mails"), ("assistant", "Done.\n```python\n1\n```"), ("user", "ok\n")]
    messages = [Message(role, content) for role, content in said]
    dicts = [{"role": role, "content": content} for role, content in said]
    for generate in (True, False):
        rendered = theirs.apply_chat_template(dicts, tokenize=False, add_generation_prompt=generate)
        assert rendered == tokenizer.render(messages, generate=generate)


def test_a_turn_ends_with_the_end_token_only(tokenizer: ChatTokenizer) -> None:
    assert [tokenizer.decode([stop]) for stop in tokenizer.stop_ids] == ["<|end|>"]
    assert [len(tokenizer.encode(token)) for token in SPECIAL] == [1, 1, 1, 1]
    assert tokenizer.vocab_size == tokenizer.tokenizer.get_vocab_size()
