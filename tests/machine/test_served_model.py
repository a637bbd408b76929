"""A model directory is checked before anything is started with it."""

import json
from pathlib import Path

import pytest

from app.base.errors import ChatTemplateError, ModelError, ModelTokenizerError
from app.base.model_catalog import SEED_DIR
from app.base.settings import Settings
from app.machine.doctor import check_model
from app.machine.model_checks import load_served
from tests.agent.test_chat import THOUGHTS_DROPPED
from tests.machine.test_refused_gguf import NUMBERED
from tests.support.tiny_model import TEMPLATE, write_tokenizer

LAST = "{{ messages[-1].content }}|"
THINKS = THOUGHTS_DROPPED.replace("assistant\\n", "assistant\\n<think>\\n")
THINKS_NOT = THOUGHTS_DROPPED.replace("assistant\\n", "assistant\\n<think>\\n\\n</think>\\n\\n")
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


@pytest.mark.parametrize("profile", ["full", "brief", "compact"])
@pytest.mark.parametrize("template", [LAST, NUMBERED], ids=["last message", "numbered"])
def test_a_template_that_rewrites_history_is_refused_with_every_profile(
    template: str, profile: str, directory: Path
) -> None:
    (directory / "chat_template.jinja").write_text(template)
    with pytest.raises(ChatTemplateError, match=rf"{directory} rewrites history.*Name another model"):
        load_served(directory, profile)
    finding = check_model(Settings(model=str(directory)))
    assert finding.verdict == "fault"
    assert "rewrites history" in finding.text


@pytest.mark.parametrize("template", [THOUGHTS_DROPPED, THINKS, THINKS_NOT], ids=["drops", "opens", "leaves out"])
def test_a_template_that_drops_the_thoughts_of_earlier_turns_is_served(template: str, directory: Path) -> None:
    (directory / "chat_template.jinja").write_text(template)
    assert load_served(directory, "full")[1].name == "full"


def test_a_template_with_channels_is_refused(directory: Path) -> None:
    channels = TEMPLATE.replace("message.content", "'<|channel|>final<|message|>' + message.content", 1)
    assert channels != TEMPLATE
    (directory / "chat_template.jinja").write_text(channels)
    with pytest.raises(ChatTemplateError, match=r"channels .*gpt-oss.*Name another model"):
        load_served(directory, "full")


def test_half_a_tokenizer_is_refused(directory: Path) -> None:
    file = directory / "tokenizer.json"
    file.write_text(file.read_text()[:-9])
    with pytest.raises(ModelError, match="is not a tokenizer file"):
        load_served(directory, "")
