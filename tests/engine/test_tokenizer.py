"""The app's tokenizer against transformers' own, on the same directory."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from app.base.errors import ModelError
from app.base.values import Json
from app.engine.tokenizer import ChatTokenizer, Message
from tests.support.tiny_model import MAX_LENGTH, SPECIAL, write_tokenizer

CHAT = [
    Message("system", "You write Python.  \n\n"),
    Message("user", "Schöne Grüße <b>&</b> 你好 <|im_end|> {{ not a template }}"),
    Message("assistant", "```python\nprint('hi')\n```\n"),
    Message("user", "more"),
]


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    size = write_tokenizer(tmp_path)
    config = {
        "model_type": "qwen2",
        "vocab_size": size,
        "max_position_embeddings": MAX_LENGTH,
        "eos_token_id": size - 3,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


@pytest.mark.parametrize("generate", [True, False])
def test_rendered_and_encoded_messages_equal_those_of_transformers(model_dir: Path, generate: bool) -> None:
    ours = ChatTokenizer.load(model_dir)
    theirs = AutoTokenizer.from_pretrained(model_dir)
    chat = [{"role": message.role, "content": message.content} for message in CHAT]
    options: dict[str, Any] = {"tokenize": True, "add_generation_prompt": generate, "return_dict": False}
    expected: Any = theirs.apply_chat_template(chat, **options)
    assert ours.encode(ours.render(CHAT, generate=generate)) == expected
    assert ours.decode(expected) == theirs.decode(expected)


def test_a_template_may_use_the_globals_of_transformers(model_dir: Path) -> None:
    template = (
        "{% generation %}{{ messages | tojson }}{% endgeneration %}{{ strftime_now('%Y') | length }}"
        "{{ eos_token }}{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}"
        "{{ m.role }}{% endfor %}"
    )
    (model_dir / "chat_template.jinja").write_text(template)
    expected = AutoTokenizer.from_pretrained(model_dir).apply_chat_template(
        [{"role": "user", "content": "<ä>"}], tokenize=False
    )
    assert ChatTokenizer.load(model_dir).render([Message("user", "<ä>")], generate=False) == expected


@pytest.mark.parametrize("given", [{}, {"enable_thinking": False}, {"enable_thinking": True, "eos_token": "!"}])
def test_variables_of_the_template_can_be_set(model_dir: Path, given: dict[str, Json]) -> None:
    source = "{{ enable_thinking | default('as it likes') }}{{ eos_token }}"
    (model_dir / "chat_template.jinja").write_text(source)
    options: dict[str, Any] = {"tokenize": False, **given}
    expected = AutoTokenizer.from_pretrained(model_dir).apply_chat_template(
        [{"role": "user", "content": ""}], **options
    )
    assert ChatTokenizer.load(model_dir, given).render([Message("user", "")], generate=False) == expected


def test_decoding_inverts_encoding_special_tokens_included(model_dir: Path) -> None:
    tokenizer = ChatTokenizer.load(model_dir)
    text = f"{SPECIAL[1]}user\ntab\there  two spaces €{SPECIAL[2]}"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert ids[0] == 257
    assert ids[-1] == 258


def test_generation_stops_at_every_eos_and_at_the_end_of_the_chats_turn(model_dir: Path) -> None:
    assert ChatTokenizer.load(model_dir).stop_ids == (256, 258)
    (model_dir / "generation_config.json").write_text('{"eos_token_id": [11, 256]}')
    assert ChatTokenizer.load(model_dir).stop_ids == (11, 256, 258)


def test_lengths_and_card_come_from_the_directory(model_dir: Path) -> None:
    assert ChatTokenizer.load(model_dir).card == {}
    (model_dir / "README.md").write_text("---\nprompt_profile: compact\ntags: [a, b]\n---\n# A policy\n")
    tokenizer = ChatTokenizer.load(model_dir)
    assert tokenizer.card == {"prompt_profile": "compact", "tags": ["a", "b"]}
    assert (tokenizer.max_length, tokenizer.vocab_size) == (MAX_LENGTH, 259)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_a_missing_file_is_named_with_the_files_a_directory_needs(model_dir: Path, name: str) -> None:
    (model_dir / name).unlink()
    with pytest.raises(ModelError, match=rf"has no {name}\. A model directory needs config\.json"):
        ChatTokenizer.load(model_dir)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_truncated_file_is_a_model_error(model_dir: Path, name: str) -> None:
    (model_dir / name).write_text((model_dir / name).read_text()[:-9])
    with pytest.raises(ModelError, match=name):
        ChatTokenizer.load(model_dir)


@pytest.mark.parametrize("name", ["vocab_size", "max_position_embeddings"])
def test_a_size_that_the_config_lacks_is_named_with_its_file(model_dir: Path, name: str) -> None:
    config = json.loads((model_dir / "config.json").read_text())
    (model_dir / "config.json").write_text(json.dumps(config | {name: None}))
    with pytest.raises(ModelError, match=rf"config\.json does not set {name}\. Add it"):
        ChatTokenizer.load(model_dir)


def test_a_template_that_rejects_the_messages_gives_its_reason(model_dir: Path) -> None:
    refusal = "{% if messages[0].role == 'system' %}{{ raise_exception('no system here') }}{% endif %}ok"
    (model_dir / "chat_template.jinja").write_text(refusal)
    tokenizer = ChatTokenizer.load(model_dir)
    with pytest.raises(ModelError, match="no system here"):
        tokenizer.render(CHAT, generate=True)


def test_a_template_cannot_escape_its_sandbox(model_dir: Path) -> None:
    (model_dir / "chat_template.jinja").write_text("{{ messages.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(ModelError, match="unsafe"):
        ChatTokenizer.load(model_dir)
