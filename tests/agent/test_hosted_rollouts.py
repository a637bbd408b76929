"""Rollouts whose policy is a hosted model: messages in, text out, no token ids."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from app.agent.prompts import PROFILES, Compact, Full, prompt_hash
from app.agent.rollout import Agent, ResumeState, RolloutLimits, hosted_agent, run_rollout
from app.base.errors import EngineError
from app.base.settings import Settings
from app.base.values import CountedTokens, Policy, Stop, Trajectory, Turn, hosted
from app.engine.hosted.client import OpenAiChatModel
from app.engine.hosted.probe import probe
from app.engine.protocol import ChatAnswer, Tokens
from app.engine.tokenizer import ChatTokenizer, Message
from app.sandbox.forked_sandbox import ForkedSandbox
from tests.support.every_row import every_row
from tests.support.ledger import Ledger
from tests.support.odd_endpoint import OddEndpoint, said
from tests.support.rollout_bench import DONE, TASK, WRITE
from tests.support.scripted_chat import GENERATED_TOKENS, PROMPT_TOKENS, Said, ScriptedChatModel
from tests.support.scripted_engine import ScriptedEngine, block, byte_tokenizer

POLICY = Policy(hosted(UUID(int=7)))
ANSWERED = "apis.supervisor.complete_task(answer=1)"
INVENTED = "User: Output:\n1\nYou: I am done.\n```python\napis.supervisor.complete_task(answer=9)\n```\n"


@pytest.fixture(scope="module")
async def sandbox() -> AsyncIterator[ForkedSandbox]:
    async with ForkedSandbox(bwrap=False) as started:
        yield started


@pytest.fixture
def tokenizer(tmp_path: Path) -> ChatTokenizer:
    return byte_tokenizer(tmp_path)


@pytest.fixture
def bench(sandbox: ForkedSandbox, tokenizer: ChatTokenizer) -> "HostedBench":
    return HostedBench(sandbox, tokenizer)


class HostedBench:
    """A rollout's parts, beside a local model of another profile. `model` and `ledger` record what it did."""

    def __init__(self, sandbox: ForkedSandbox, tokenizer: ChatTokenizer) -> None:
        self.local = Agent(ScriptedEngine(tokenizer), tokenizer, Compact(), sandbox, RolloutLimits(), 0.7)
        self.ledger = Ledger()
        self.model = ScriptedChatModel()

    async def run(
        self,
        *answers: Said,
        limits: RolloutLimits | None = None,
        context_length: int | None = None,
        resume: ResumeState | None = None,
    ) -> Trajectory:
        self.model = ScriptedChatModel(*answers, context_length=context_length)
        agent = hosted_agent(replace(self.local, limits=limits or RolloutLimits()), self.model)
        async with self.ledger.client() as client:
            return await run_rollout(agent, TASK, POLICY, self.ledger.gateway(client), resume=resume)


async def test_a_hosted_model_reads_messages_and_its_turns_keep_text_and_counts(bench: HostedBench) -> None:
    trajectory = await bench.run(block(WRITE), block(DONE))
    first, second = trajectory.turns
    assert (trajectory.stop, trajectory.profile, trajectory.policy) == (Stop.COMPLETED, "full", POLICY)
    assert [entry.text for entry in bench.ledger.entries] == ["hello"]
    assert [each.role for each in bench.model.requests[0]] == ["system", "user"]
    assert bench.model.requests[1][2:] == [Message("assistant", first.text), Message("user", first.observation)]
    assert (first.text, first.observation) == (block(WRITE), "Output:\n1")
    assert (first.context_ids, first.sampled_ids, first.logprobs) == ((), (), ())
    assert second.counted == CountedTokens(prompt=PROMPT_TOKENS, generated=GENERATED_TOKENS, context=PROMPT_TOKENS)
    assert (trajectory.prompt_tokens, trajectory.generated_tokens) == (2 * PROMPT_TOKENS, 2 * GENERATED_TOKENS)
    assert (trajectory.flaw, bench.local.engine.prompts) == ("hosted", [])  # type: ignore[attr-defined]


async def test_the_prompt_of_a_hosted_policy_is_its_profile_alone(bench: HostedBench) -> None:
    [turn] = (await bench.run(block(ANSWERED))).turns
    assert turn.prompt == prompt_hash(Full(), None)
    hashes = {prompt_hash(profile, None) for profile in PROFILES.values()}
    assert len({*hashes, prompt_hash(Full(), bench.local.tokenizer)}) == len(PROFILES) + 1


async def test_limits_of_tokens_hold_for_what_a_hosted_model_generates(bench: HostedBench) -> None:
    idle = block("pass")
    limits = RolloutLimits(task_tokens=3 * GENERATED_TOKENS, turn_tokens=25)
    trajectory = await bench.run(*[idle] * 9, limits=limits)
    assert (trajectory.stop, len(trajectory.turns)) == (Stop.TOKEN_LIMIT, 3)
    assert bench.model.max_tokens == [25, 20, 10]


async def test_a_hosted_model_that_thinks_has_more_tokens_for_a_turn_unless_the_settings_say_how_many(
    bench: HostedBench,
) -> None:
    thinking = ChatAnswer(text=block("pass"), thought="hm")
    with every_row() as row:
        for given, first, expected in (
            ({}, thinking, [512, 4096]),
            ({}, block("pass"), [512, 512]),
            ({"SAGE_MAX_TURN_TOKENS": "0"}, thinking, [512, 4096]),
            ({"SAGE_MAX_TURN_TOKENS": "512"}, thinking, [512, 512]),
            ({"SAGE_MAX_TURN_TOKENS": "6000"}, thinking, [6000, 6000]),
            ({"SAGE_MAX_TASK_TOKENS": "3000"}, thinking, [512, 3000]),
        ):
            with row(str(given), str(first)[:20]):
                await bench.run(first, block(DONE), limits=RolloutLimits.of(Settings.from_env(given)))
                assert bench.model.max_tokens == expected
    local = replace(bench.local, limits=RolloutLimits.of(Settings()))
    assert local.turn_tokens == 512


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "tags", "parts"])
async def test_the_probe_finds_out_that_a_model_thinks_before_its_first_turn(
    bench: HostedBench, field: str
) -> None:
    code = block(DONE)
    answers = {
        "tags": said(f"<think>hm</think>{code}"),
        "parts": said([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": code}]),
    }
    endpoint = OddEndpoint(lambda _: answers.get(field) or said(code, **{field: "hm"}))
    async with endpoint.listening() as url, OpenAiChatModel(url, "wise-1") as model:
        model.abilities = await probe(model)
        agent = hosted_agent(replace(bench.local, limits=RolloutLimits.of(Settings())), model)
        async with bench.ledger.client() as client:
            await run_rollout(agent, TASK, POLICY, bench.ledger.gateway(client))
    assert endpoint.requests[-1]["max_tokens"] == 4096


async def test_a_rollout_ends_before_the_context_of_a_hosted_model_is_full(bench: HostedBench) -> None:
    long = block("print('x' * 400)")
    trajectory = await bench.run(*[long] * 9, context_length=250)
    assert (trajectory.stop, trajectory.turns) == (Stop.CONTEXT_FULL, ())
    trajectory = await bench.run(*[long] * 3, context_length=5_000, limits=RolloutLimits(turns=3))
    assert trajectory.stop == Stop.TURN_LIMIT
    said = ChatAnswer(text=long, tokens=Tokens(prompt=4_900, generated=10))
    trajectory = await bench.run(said, long, context_length=5_000)
    assert (trajectory.stop, len(trajectory.turns)) == (Stop.CONTEXT_FULL, 1)
    assert "of 5000 tokens are taken" in trajectory.detail


LONGEST = 5_000
ROOMY = RolloutLimits(turn_tokens=LONGEST, task_tokens=100_000)


async def test_only_what_is_sent_again_takes_room_in_the_context(bench: HostedBench) -> None:
    """Neither a thought beside the text, nor a prompt that was sent twice, nor what followed the code."""
    code = block("print(1)")  # 25 characters, with a dozen of its observation
    short = ChatAnswer(text=code, tokens=Tokens(prompt=2_000, generated=9))
    thinking = ChatAnswer(text=code, thought="Hm. " * 2_000, tokens=Tokens(prompt=2_000, generated=2_900))
    hidden = ChatAnswer(text=code, tokens=Tokens(prompt=2_000, generated=2_900))
    wordy = ChatAnswer(text=f"{code}\n{INVENTED * 99}", tokens=Tokens(prompt=2_000, generated=2_900))
    no_code = ChatAnswer(text="I look.", tokens=Tokens(prompt=2_000, generated=900))
    with every_row() as row:
        for name, answers in (
            ("short", [short]),
            ("a thought", [thinking]),
            ("a thought that is not shown", [hidden]),
            ("words after the code", [wordy]),
            ("asked twice", [no_code, short]),
        ):
            with row(name):
                trajectory = await bench.run(*answers, block(DONE), context_length=LONGEST, limits=ROOMY)
                assert trajectory.stop == Stop.COMPLETED
                room = bench.model.max_tokens[-1]
                assert LONGEST - 2_000 - 30 < room < LONGEST - 2_000 - 9
                resume = ResumeState(recorded=trajectory.turns[:1])
                await bench.run(block(DONE), context_length=LONGEST, limits=ROOMY, resume=resume)
                assert bench.model.max_tokens == [room], "a process that goes on with it knows as much"


async def test_a_turn_of_an_earlier_version_has_its_context_estimated(bench: HostedBench) -> None:
    counted = CountedTokens(prompt=2 * LONGEST, generated=9)
    turn = Turn(context_ids=(), sampled_ids=(), logprobs=(), text=block("print(1)"), counted=counted)
    trajectory = await bench.run(
        block(DONE), context_length=LONGEST, limits=ROOMY, resume=ResumeState(recorded=(turn,))
    )
    assert trajectory.stop == Stop.COMPLETED


def _texts(turns: Sequence[Turn]) -> list[str]:
    return [turn.text for turn in turns]


async def test_what_a_model_goes_on_with_after_its_code_is_neither_kept_nor_run(bench: HostedBench) -> None:
    said = "I look.\n```python\nprint(1)\n```"
    trajectory = await bench.run(f"{said}\n{INVENTED}", block(DONE))
    assert (_texts(trajectory.turns), trajectory.answer) == ([said, block(DONE)], None)
    assert bench.model.stop_strings == [Full.stop_strings] * 2


async def test_an_answer_that_ended_at_a_fence_before_its_code_is_asked_for_again(bench: HostedBench) -> None:
    said = f"As JSON:\n```json\n{{}}\n```\nand\n```py\n{ANSWERED}\n```"
    trajectory = await bench.run(f"{said}\n{INVENTED}", f"{said}\n{INVENTED}")
    assert (_texts(trajectory.turns), trajectory.stop) == ([said], Stop.COMPLETED)
    assert bench.model.stop_strings == [Full.stop_strings, ()]
    assert trajectory.turns[0].counted == CountedTokens(
        prompt=2 * PROMPT_TOKENS, generated=2 * GENERATED_TOKENS, context=PROMPT_TOKENS
    )
    trajectory = await bench.run("That is all.", "That is all.")
    assert (_texts(trajectory.turns), trajectory.stop) == (["That is all."], Stop.NO_CODE)


async def test_a_thought_beside_the_text_is_kept_and_its_code_is_not_run(bench: HostedBench) -> None:
    thought = f"I could\n```python\n{WRITE}\n```\n</think>\n```python\n{WRITE}\n```\n"
    trajectory = await bench.run(ChatAnswer(text=block("x = 1"), thought=thought), block(DONE))
    first, _ = trajectory.turns
    assert (trajectory.stop, first.calls, first.thought, first.text) == (
        Stop.COMPLETED,
        (),
        thought,
        block("x = 1"),
    )
    assert bench.ledger.entries == []
    assert bench.model.requests[1][2] == Message("assistant", block("x = 1"))
    assert "I could" in first.full_text


async def test_a_model_that_only_thought_reaches_the_limit_of_tokens(bench: HostedBench) -> None:
    cut = ChatAnswer(text="", thought="I could", finish="length", tokens=Tokens(prompt=5, generated=512))
    trajectory = await bench.run(cut)
    assert (trajectory.stop, trajectory.detail) == (
        Stop.TOKEN_LIMIT,
        "the last turn ended in a thought, before any code",
    )


async def test_recorded_turns_of_a_hosted_model_are_read_by_it_and_not_sampled_again(bench: HostedBench) -> None:
    whole = await bench.run(block("x = 20"), block("print(x + 1)"), block(DONE))
    first, second, _ = whole.turns
    resume = ResumeState(recorded=(first,), begun=msgspec.structs.replace(second, observation="", outcome=""))
    again = await bench.run(block(DONE), resume=resume)
    assert (again.stop, _texts(again.turns)) == (Stop.COMPLETED, _texts(whole.turns))
    assert again.turns[1].observation == "Output:\n21"
    assert [each.content for each in bench.model.requests[0][2:]] == [
        first.text,
        first.observation,
        second.text,
        second.observation,
    ]


async def test_an_endpoint_that_fails_fails_the_rollout_with_its_reason(bench: HostedBench) -> None:
    with pytest.raises(EngineError, match="quota"):
        await bench.run(EngineError("the quota is used up"))


def test_a_turn_that_an_earlier_version_recorded_is_decoded() -> None:
    old = {"context_ids": [1], "sampled_ids": [2], "logprobs": [0.0], "text": "a", "finish": "stop"}
    turn = msgspec.msgpack.decode(msgspec.msgpack.encode(old), type=Turn)
    assert (turn.counted, turn.thought, turn.generated_tokens, turn.full_text) == (None, "", 1, "a")
