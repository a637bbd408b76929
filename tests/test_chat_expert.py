"""A chat expert in the real loop: its prompts, the recorded turns, and the failures of its endpoint."""

from collections.abc import AsyncIterator, Sequence

import pytest

from app.agent.prompt_compact import Compact
from app.engine.tokenizer import ChatTokenizer, Message
from app.errors import EngineError, EngineRefusalError
from app.model_catalog import SEED_DIR
from app.sandbox.forked_sandbox import ForkedSandbox
from tests.chat_server import KEY, MODEL, ChatServer, chat_server
from tests.trajectory_samples import sample_of
from trainer.chat_endpoint import ChatEndpoint
from trainer.environment import Scenario
from trainer.environments.office.expert_script import FLAWLESS
from trainer.environments.office.office_environment import OfficeEnvironment
from trainer.environments.office.scripted_rollouts import ScriptRunner, demonstrate
from trainer.rollouts.expert import ExpertContext
from trainer.sft_data.answer_tokens import UntokenizableError
from trainer.sft_data.chat_expert import ChatExpert

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
    async with ChatEndpoint(served[0], MODEL, key=KEY, max_tokens=700) as endpoint:
        yield ChatExpert(
            endpoint,
            ExpertContext(
                environment=OfficeEnvironment(),
                tokenizer=tokenizer,
                profile=Compact(),
                sandbox=sandbox,
                patience=3,
            ),
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


@pytest.mark.parametrize(
    ("model", "key", "message"),
    [
        (MODEL, "bad", r"refuses the key \(401: Incorrect API key provided\): .* --api-key-env"),
        (MODEL, "", r"refuses the key \(401"),
        (
            "wiser-2",
            KEY,
            r"has no model 'wiser-2' \(404: The model `wiser-2` does not exist\): correct the option model or url",
        ),
    ],
)
async def test_a_wrong_key_or_model_is_reported_and_not_retried(
    served: tuple[str, ChatServer], model: str, key: str, message: str
) -> None:
    async with ChatEndpoint(served[0], model, key=key) as endpoint:
        with pytest.raises(EngineRefusalError, match=message):
            await endpoint.ask(HELLO, 0)


@pytest.mark.parametrize(
    ("status", "body", "message", "final"),
    [
        (400, '{"error": {"message": "no temperature"}}', r"refuses to answer \(400: no temperature\)", True),
        (400, "plain text", r"refuses to answer \(400: plain text\)", True),
        (500, '{"error": "odd"}', r"unable to answer \(500: \{\"error\": \"odd\"\}\)", False),
        (200, "<html>", "does not answer like a chat endpoint", True),
        (200, '{"choices": []}', "does not answer like a chat endpoint", True),
        (200, '{"choices": [{}]}', "does not answer like a chat endpoint", True),
    ],
)
async def test_an_unexpected_response_is_reported(
    served: tuple[str, ChatServer], status: int, body: str, message: str, final: bool
) -> None:
    served[1].refusals = [(status, body)]
    async with ChatEndpoint(served[0], MODEL, key=KEY) as endpoint:
        with pytest.raises(EngineError, match=message) as failure:
            await endpoint.ask(HELLO, 0)
        assert isinstance(failure.value, EngineRefusalError) == final


async def test_a_null_content_is_an_empty_answer(served: tuple[str, ChatServer]) -> None:
    served[1].refusals = [
        (200, '{"choices": [{"message": {"content": null}, "finish_reason": "content_filter"}]}')
    ]
    async with ChatEndpoint(served[0], MODEL, key=KEY) as endpoint:
        assert (await endpoint.ask(HELLO, 0)).text == ""


async def test_a_timeout_is_reported_with_what_to_do(served: tuple[str, ChatServer]) -> None:
    served[1].pause = 0.5
    async with ChatEndpoint(served[0], MODEL, key=KEY, timeout=0.1) as endpoint:
        with pytest.raises(EngineError, match=r"did not answer within 0\.1 s: raise --timeout"):
            await endpoint.ask(HELLO, 0)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "nonsense", "http://[::"])
async def test_an_endpoint_that_never_answered_is_reported_and_not_retried(url: str) -> None:
    async with ChatEndpoint(url, MODEL) as endpoint:
        with pytest.raises(EngineRefusalError, match="cannot be reached"):
            await endpoint.ask(HELLO, 0)


async def test_an_endpoint_that_went_away_may_come_back(scenarios: Sequence[Scenario]) -> None:
    async with chat_server(scenarios) as (url, server):
        server.refusals = [(503, "in a moment")]
        endpoint = ChatEndpoint(url, MODEL, key=KEY)
        with pytest.raises(EngineError, match="in a moment"):
            await endpoint.ask(HELLO, 0)
    async with endpoint:
        with pytest.raises(EngineError, match="cannot be reached") as failure:
            await endpoint.ask(HELLO, 0)
    assert not isinstance(failure.value, EngineRefusalError)
