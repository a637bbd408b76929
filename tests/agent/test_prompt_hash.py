"""The prompt hash changes with any word that the policy reads around its task."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from app.agent.prompts import PROFILES, Compact, prompt_hash, prompt_text
from app.apis.listing import ListedApp
from app.base.values import Offer, Task
from app.engine.tokenizer import ChatTokenizer, Message
from app.sandbox.protocol import Observation

SEED_POLICY = Path(__file__).parents[2] / "app" / "seed_policy"


class Polite:
    """The compact profile with one more word at `where`."""

    name = Compact.name
    stop_strings = Compact.stop_strings
    look_up_chars = Compact.look_up_chars

    def __init__(self, where: str) -> None:
        self._where = where
        self._plain = Compact()

    def opening(self, task: Task, offers: Sequence[Offer], apps: Sequence[ListedApp]) -> list[Message]:
        messages = self._plain.opening(task, offers, apps)
        if self._where == "opening" or (self._where == "skills" and offers):
            messages = [Message(each.role, f"{each.content} please") for each in messages]
        return messages

    def observation(self, observation: Observation) -> str:
        shown = self._plain.observation(observation)
        return f"{shown} thanks" if self._where == "observation" else shown


@pytest.fixture(scope="module")
def tokenizer() -> ChatTokenizer:
    return ChatTokenizer.load(SEED_POLICY)


def test_the_same_prompt_has_the_same_hash_in_every_process(tokenizer: ChatTokenizer) -> None:
    again = ChatTokenizer.load(SEED_POLICY)
    assert prompt_hash(Polite("nowhere"), again) == prompt_hash(Compact(), tokenizer)


@pytest.mark.parametrize("where", ["opening", "skills", "observation"])
def test_a_different_word_anywhere_is_another_prompt(tokenizer: ChatTokenizer, where: str) -> None:
    assert prompt_hash(Polite(where), tokenizer) != prompt_hash(Compact(), tokenizer)


def test_what_differs_can_be_read(tokenizer: ChatTokenizer) -> None:
    plain = prompt_text(Polite("nowhere"), tokenizer).splitlines()
    for where, more in (("skills", "please"), ("observation", "thanks")):
        other = prompt_text(Polite(where), tokenizer).splitlines()
        assert {line.rpartition(" ")[2] for line in other if line not in plain} == {more}
    assert tokenizer.source in "\n".join(plain)


def test_each_profile_is_another_prompt(tokenizer: ChatTokenizer) -> None:
    assert len({prompt_hash(profile, tokenizer) for profile in PROFILES.values()}) == len(PROFILES)


def test_another_variable_of_the_template_is_another_prompt(tokenizer: ChatTokenizer) -> None:
    other = ChatTokenizer.load(SEED_POLICY, {"enable_thinking": False})
    assert prompt_hash(Compact(), other) != prompt_hash(Compact(), tokenizer)
    assert "enable_thinking: False" in prompt_text(Compact(), other)


def test_another_chat_template_is_another_prompt(tmp_path: Path, tokenizer: ChatTokenizer) -> None:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SEED_POLICY / name, tmp_path)
    (tmp_path / "chat_template.jinja").write_text(tokenizer.source + "{{ messages | length }}")
    assert prompt_hash(Compact(), ChatTokenizer.load(tmp_path)) != prompt_hash(Compact(), tokenizer)
