"""A model directory is checked before anything is started with it."""

import json
from pathlib import Path

import pytest

from app.errors import ChatTemplateError, ModelError, ModelTokenizerError
from app.model_catalog import SEED_DIR
from app.model_store.model_checks import load_served
from tests.tiny_model import TEMPLATE, write_tokenizer

NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Without weights: they are the model server's."""
    size = write_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 99, "vocab_size": size}))
    return tmp_path


@pytest.mark.parametrize("profile", ["full", "brief", "compact"])
def test_an_instruct_model_is_served_with_every_profile(directory: Path, profile: str) -> None:
    assert load_served(directory, profile)[1].name == profile


def test_the_seed_policy_has_the_profile_of_its_card() -> None:
    assert load_served(SEED_DIR, "")[1].name == "compact"


def test_a_tokenizer_with_more_ids_than_the_model_is_refused(directory: Path) -> None:
    config = directory / "config.json"
    config.write_text(json.dumps({"max_position_embeddings": 99, "vocab_size": 200}))
    with pytest.raises(ModelTokenizerError, match="has ids up to 258, its model 200 tokens"):
        load_served(directory, "")


def test_a_template_that_takes_no_system_prompt_is_refused_with_the_profile_that_has_one(directory: Path) -> None:
    (directory / "chat_template.jinja").write_text(NO_SYSTEM + TEMPLATE)
    with pytest.raises(ChatTemplateError, match=r"profile full: .*System role.*SAGE_PROMPT_PROFILE"):
        load_served(directory, "full")
    assert load_served(directory, "compact")[1].name == "compact"


def test_half_a_tokenizer_is_refused(directory: Path) -> None:
    file = directory / "tokenizer.json"
    file.write_text(file.read_text()[:-9])
    with pytest.raises(ModelError, match="is not a tokenizer file"):
        load_served(directory, "")
