"""A chat expert in the real loop: its prompts, the recorded turns, and the failures of its endpoint."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from app.agent.prompts import Compact
from app.base.errors import EngineError, EngineRefusalError
from app.base.model_catalog import SEED_DIR
from app.engine.hosted.client import OpenAiChatModel
from app.engine.tokenizer import ChatTokenizer, Message
from app.sandbox.forked_sandbox import ForkedSandbox
from tests.support.chat_server import KEY, MODEL, ChatServer, chat_server
from tests.support.trajectory_samples import sample_of
from trainer.environment import Scenario
from trainer.rollouts.episode import ExpertContext
from trainer.sft.collection import ChatExpert, UntokenizableError, load_expert
from trainer.worlds.office.environment import OfficeEnvironment
from trainer.worlds.office.expert import FLAWLESS
from trainer.worlds.office.rollouts import ScriptRunner, demonstrate

HELLO = [Message("user", "hello")]


@pytest.fixture(scope="module")
def tokenizer() -> ChatTokenizer:
    return ChatTokenizer.load(SEED_DIR)


@pytest.fixture(scope="module")
def scenarios() -> Sequence[Scenario]:
    return OfficeEnvironment().scenarios("train", 2, seed=8)


@pytest.fixture(scope="module")
async def sandbox() -> AsyncIterator[ForkedSandbox]:
    async with ForkedSandbox() as opened:
        yield opened


@pytest.fixture
async def served(scenarios: Sequence[Scenario]) -> AsyncIterator[tuple[str, ChatServer]]:
    async with chat_server(scenarios) as served:
        yield served


@pytest.fixture
async def expert(
    served: tuple[str, ChatServer], tokenizer: ChatTokenizer, sandbox: ForkedSandbox
) -> AsyncIterator[ChatExpert]:
    async with OpenAiChatModel(served[0], MODEL, key=KEY, patience=3) as chat_model:
        yield ChatExpert(
            chat_model,
            MODEL,
            ExpertContext(
                environment=OfficeEnvironment(),
                tokenizer=tokenizer,
                profile=Compact(),
                sandbox=sandbox,
            ),
            max_tokens=700,
        )


async def test_it_reads_the_full_profile_and_is_recorded_in_the_policys_format(
    expert: ChatExpert,
    served: tuple[str, ChatServer],
    scenarios: Sequence[Scenario],
    tokenizer: ChatTokenizer,
    sandbox: ForkedSandbox,
) -> None:
    """The same expert without chat and HTTP leaves the same samples."""
    outcomes = await expert.play(scenarios[0], 0.7)
    assert [each.verdict.success for each in outcomes] == [True, True, True]
    runner = ScriptRunner(environment=OfficeEnvironment(), tokenizer=tokenizer, sandbox=sandbox)
    direct = await demonstrate(runner, [scenarios[0]], FLAWLESS, seed=0)
    assert [sample_of(each.trajectory) for each in outcomes] == [sample_of(each.trajectory) for each in direct]
    first = served[1].requests[0]
    assert first["model"] == MODEL
    assert first["temperature"] == 0.7
    assert first["max_tokens"] == 700
    assert "You are an autonomous agent" in first["messages"][0]["content"]
    assert first["messages"][1]["content"].endswith(f"\n\nTask: {scenarios[0].tasks[0].instruction}")
    assert served[1].requests[1]["messages"][3]["content"].startswith("Output:\n")


async def test_skills_of_one_task_are_offered_in_the_next(
    expert: ChatExpert, served: tuple[str, ChatServer], scenarios: Sequence[Scenario]
) -> None:
    outcomes = await expert.play(scenarios[1], 0.0)
    assert [len(each.trajectory.offered) for each in outcomes] == [0, 1, 1]
    assert [sum(1 for _ in each.trajectory.used()) for each in outcomes] == [0, 1, 1]
    assert "Skills that are already defined:" in served[1].requests[-1]["messages"][1]["content"]


async def test_an_answer_that_was_cut_off_is_recorded_without_an_end(
    expert: ChatExpert, served: tuple[str, ChatServer], scenarios: Sequence[Scenario], tokenizer: ChatTokenizer
) -> None:
    served[1].finish = "length"
    turn = (await expert.play(scenarios[0], 0.0))[0].trajectory.turns[0]
    assert turn.finish == "length"
    assert turn.sampled_ids[-1] not in tokenizer.stop_ids


async def test_an_answer_with_a_token_of_the_template_is_not_recorded(
    expert: ChatExpert, served: tuple[str, ChatServer], scenarios: Sequence[Scenario]
) -> None:
    served[1].suffix = "<|end|>"
    with pytest.raises(UntokenizableError):
        await expert.play(scenarios[0], 0.0)


async def test_a_request_to_an_overloaded_endpoint_is_retried(
    expert: ChatExpert, served: tuple[str, ChatServer], scenarios: Sequence[Scenario]
) -> None:
    served[1].refusals = [(429, "{}")]
    outcomes = await expert.play(scenarios[0], 0.0)
    assert all(each.verdict.success for each in outcomes)
    assert served[1].requests[0] == served[1].requests[1]


async def test_retries_of_an_overloaded_endpoint_are_limited(
    expert: ChatExpert, served: tuple[str, ChatServer], scenarios: Sequence[Scenario]
) -> None:
    served[1].refusals = [(503, '{"error": {"message": "too many"}}')] * 10
    with pytest.raises(EngineError, match=r"is unable to answer \(503: too many\)"):
        await expert.play(scenarios[0], 0.0)
    assert 2 <= len(served[1].requests) <= 4


async def test_an_answer_that_the_endpoint_withholds_is_not_recorded(
    expert: ChatExpert, served: tuple[str, ChatServer], scenarios: Sequence[Scenario]
) -> None:
    served[1].finish = "content_filter"
    with pytest.raises(UntokenizableError, match="withheld its answer"):
        await expert.play(scenarios[0], 0.0)


async def test_its_errors_name_the_options_of_an_expert(
    expert: ChatExpert, served: tuple[str, ChatServer]
) -> None:
    context = replace(expert.context, key="bad")
    async with load_expert(context, url=served[0], model=MODEL) as refused:
        with pytest.raises(EngineRefusalError, match=r"refuses the key \(401: .*\): name .* with --api-key-env"):
            await refused.chat_model.answer(HELLO, max_tokens=9, temperature=0)
    context = replace(expert.context, key=KEY)
    async with load_expert(context, url=served[0], model="wiser-2") as unknown:
        with pytest.raises(EngineRefusalError, match="correct the option model or url"):
            await unknown.chat_model.answer(HELLO, max_tokens=9, temperature=0)
    served[1].pause = 0.5
    context = replace(context, timeout=0.1, patience=0)
    async with load_expert(context, url=served[0], model=MODEL) as slow:
        with pytest.raises(EngineError, match=r"did not answer within 0\.1 s: raise --timeout"):
            await slow.chat_model.answer(HELLO, max_tokens=9, temperature=0)
