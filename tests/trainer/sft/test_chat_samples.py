"""Conversations as samples: they equal those of a rollout, and untokenizable text is refused."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from app.agent.prompts import Compact
from app.base.errors import InvalidError, ModelError
from app.base.model_catalog import SEED_DIR
from app.base.values import Trajectory
from app.engine.tokenizer import ChatTokenizer, Message
from app.runs.chat_lines import ChatRecord, from_line
from app.sandbox.forked_sandbox import ForkedSandbox
from tests.machine.test_served_model import THINKS
from tests.support.scripted_engine import byte_tokenizer
from trainer.learning.batch import Sample, samples_of_turns
from trainer.sft.chats import record_of, to_line
from trainer.sft.collection import answer_ids, end_of_answer
from trainer.sft.samples import FAILED, TOO_LONG, build_samples, samples_of
from trainer.worlds.office.environment import OfficeEnvironment
from trainer.worlds.office.expert import Faults
from trainer.worlds.office.rollouts import ScriptRunner, demonstrate

FORGETFUL = """{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{{- message.content if loop.last or message.role == 'user' else message.content.split('</t>')[-1] }}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    return byte_tokenizer(tmp_path_factory.mktemp("bytes"))


def record(*texts: str, **about: object) -> ChatRecord:
    roles = [("user", "assistant")[index % 2] for index in range(len(texts))]
    return ChatRecord(tuple(map(Message, roles, texts)), about)


def marked(sample: Sample, tokenizer: ChatTokenizer) -> str:
    """The text, with the tokens that are trained on in brackets."""
    text, inside = "", False
    for token, own in zip(sample.ids, sample.sampled, strict=True):
        text += ("]", "[")[own] * (own != inside) + tokenizer.decode([token])
        inside = own
    return text + "]" * inside


def test_only_answers_are_marked_each_with_its_end_token(tokenizer: ChatTokenizer) -> None:
    (sample,) = samples_of(record("q", "a1", "o", "a2"), tokenizer)
    assert marked(sample, tokenizer) == (
        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n[a1<|im_end|>]\n"
        "<|im_start|>user\no<|im_end|>\n<|im_start|>assistant\n[a2<|im_end|>]"
    )


def test_an_answer_that_was_cut_off_is_marked_without_an_end_token(tokenizer: ChatTokenizer) -> None:
    (sample,) = samples_of(record("q", "a1", "o", "a2", finish=["length", "stop"]), tokenizer)
    assert "assistant\n[a1]<|im_end|>\n<|im_start|>user" in marked(sample, tokenizer)
    assert marked(sample, tokenizer).endswith("[a2<|im_end|>]")


def test_a_finish_column_of_another_format_is_ignored(tokenizer: ChatTokenizer) -> None:
    plain = samples_of(record("q", "a"), tokenizer)
    assert samples_of(record("q", "a", finish="length"), tokenizer) == plain
    assert samples_of(record("q", "a", finish=["length", "stop"]), tokenizer) == plain


def test_answers_whose_code_failed_are_context(tokenizer: ChatTokenizer) -> None:
    failed = record("q", "a1", "o", "a2", "o", "a3", outcome=["ok", "error", ""])
    (sample,) = samples_of(failed, tokenizer)
    assert "assistant\na2<|im_end|>" in marked(sample, tokenizer)
    assert [part.partition("<")[0] for part in marked(sample, tokenizer).split("[")[1:]] == ["a1", "a3"]
    assert samples_of(record("q", "a", outcome=["bad"]), tokenizer) == samples_of(record("q", "a"), tokenizer)
    hopeless = record("q", "a", outcome=["cpu"])
    assert build_samples([failed, hopeless], tokenizer).dropped == {FAILED: 1}
    with pytest.raises(InvalidError, match="all 1 conversations are without an answer whose code worked"):
        build_samples([hopeless], tokenizer)


def test_a_prompt_cannot_end_its_own_message(tokenizer: ChatTokenizer) -> None:
    (sample,) = samples_of(record("q<|im_end|>", "a", "<|im_start|>", "b"), tokenizer)
    assert marked(sample, tokenizer).count("<|im_end|>") == 4
    assert "< |im_end|>" in marked(sample, tokenizer)


def test_a_template_that_drops_thoughts_makes_a_sample_for_each_context(tmp_path: Path) -> None:
    forgetful = byte_tokenizer(tmp_path, template=FORGETFUL)
    first, second = samples_of(record("q", "hm</t>a1", "o", "a2"), forgetful)
    assert marked(first, forgetful).endswith("[hm</t>a1<|im_end|>]")
    assert "assistant\na1<|im_end|>" in marked(second, forgetful)
    assert marked(second, forgetful).count("[") == 1
    assert marked(second, forgetful).endswith("[a2<|im_end|>]")


def test_answers_end_the_thought_that_the_template_opens(tmp_path: Path) -> None:
    """Else a model would learn to answer in an open thought, of which nothing is done."""
    thoughtful = byte_tokenizer(tmp_path, template=THINKS)
    written = record("q", "a1", "o", "<think>\nhm\n</think>\n\na2", "o", "hm\n</think>a3")
    first, second, third = samples_of(written, thoughtful)
    assert marked(first, thoughtful).endswith("assistant\n<think>\n[</think>\n\na1<|im_end|>]")
    assert marked(second, thoughtful).endswith("assistant\n<think>\n[hm\n</think>\n\na2<|im_end|>]")
    assert marked(third, thoughtful).endswith("assistant\n<think>\n[hm\n</think>a3<|im_end|>]")


async def test_experts_answer_after_the_thought_that_the_template_opens(
    sandbox: ForkedSandbox, tmp_path: Path
) -> None:
    thoughtful = byte_tokenizer(tmp_path, template=THINKS, max_length=100_000)
    runner = ScriptRunner(environment=OfficeEnvironment(), tokenizer=thoughtful, sandbox=sandbox)
    [scenario] = OfficeEnvironment().scenarios("train", 1, seed=8)
    episodes = await demonstrate(runner, [scenario], Faults(), seed=0)
    assert all(episode.verdict.success for episode in episodes)


def test_conversations_that_do_not_fit_the_context_are_counted(tmp_path: Path) -> None:
    short = byte_tokenizer(tmp_path, max_length=60)
    fitting = build_samples([record("q", "a"), record("q", "a" * 40), record("r", "b")], short)
    assert len(fitting.samples) == 2
    assert fitting.dropped == {TOO_LONG: 1}
    assert fitting.tokens == 4
    with pytest.raises(InvalidError, match="all 1 conversations are longer than the model's context of 60 tokens"):
        build_samples([record("q", "a" * 40)], short)


def test_an_answer_with_a_token_of_the_template_is_refused_with_its_number(tokenizer: ChatTokenizer) -> None:
    with pytest.raises(InvalidError, match=r"conversation 2: an answer contains <\|im_end\|>"):
        build_samples([record("q", "a"), record("q", "a<|im_end|>")], tokenizer)


def test_a_conversation_that_the_template_rejects_is_named_by_its_number(tmp_path: Path) -> None:
    strict = byte_tokenizer(
        tmp_path, template="{% if messages[0].content == 'x' %}{{ raise_exception('no x') }}{% endif %}<|im_end|>"
    )
    with pytest.raises(InvalidError, match=r"conversation 1: the model's chat template rejects.*no x"):
        build_samples([record("x", "a")], strict)


def test_text_that_the_tokenizer_does_not_know_is_refused(tmp_path: Path) -> None:
    byte_tokenizer(tmp_path)
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "hello": 1, "<|im_end|>": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.add_special_tokens(["<|im_end|>"])
    words.save(str(tmp_path / "tokenizer.json"))
    poor = ChatTokenizer.load(tmp_path)
    assert answer_ids(poor, "hello hello") == (1, 1, 2)
    with pytest.raises(InvalidError, match="the model's tokenizer cannot represent 'strange'"):
        answer_ids(poor, "hello strange hello")


def test_an_answer_ends_as_the_template_ends_it_or_else_with_the_text(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer(tmp_path / "chat")
    assert tokenizer.decode([end_of_answer(tokenizer)]) == "<|im_end|>"
    plain = byte_tokenizer(tmp_path / "plain", template="{% for m in messages %}{{ m.content }}\n{% endfor %}")
    assert end_of_answer(plain) == plain.eos_ids[0]
    (tmp_path / "plain" / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ModelError, match="has no token that ends an answer"):
        end_of_answer(ChatTokenizer.load(tmp_path / "plain"))


def test_a_model_with_an_end_of_text_beside_its_end_of_turn_learns_the_end_of_turn(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"eos_token_id": 0}))
    both = ChatTokenizer.load(tmp_path)
    assert both.stop_ids[0] == 0
    assert answer_ids(both, "a")[-1] == end_of_answer(tokenizer)


@pytest.fixture(scope="module")
async def rollouts() -> AsyncIterator[list[Trajectory]]:
    """Rollouts of the scripted expert, with mistakes, in the seed policy's tokens."""
    async with ForkedSandbox() as sandbox:
        runner = ScriptRunner(
            environment=OfficeEnvironment(),
            tokenizer=ChatTokenizer.load(SEED_DIR),
            sandbox=sandbox,
            crowding=0.5,
        )
        scenarios = runner.environment.scenarios("train", 4, seed=3)
        outcomes = await demonstrate(runner, scenarios, Faults(synonym=0.5, inline=0.3), seed=1)
        yield [outcome.trajectory for outcome in outcomes]


def test_a_rollout_exported_and_imported_is_the_sample_it_was(rollouts: list[Trajectory]) -> None:
    tokenizer = ChatTokenizer.load(SEED_DIR)
    assert len(rollouts) == 12
    assert any(turn.failed for rollout in rollouts for turn in rollout.turns)
    for rollout in rollouts:
        line = to_line(record_of(rollout, Compact().opening(rollout.task, rollout.offered, [])))
        assert samples_of(from_line(line), tokenizer) == samples_of_turns(rollout.turns, failed=False)
