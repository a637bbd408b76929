"""Turns that end where their code ends, for models that would go on with the user's next message."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from app.agent.prompts import Compact, Full, Profile
from app.agent.rollout import Agent, RolloutLimits, run_rollout
from app.base.values import Policy, Trajectory
from app.engine.protocol import Completion, Sampling
from app.engine.tokenizer import ChatTokenizer
from app.model_server.api import CompletionRequest, CompletionWriter, PreparedRequest
from app.model_server.generation import GenerationChunk, StopStrings
from app.sandbox.forked_sandbox import ForkedSandbox
from tests.support.ledger import Ledger
from tests.support.rollout_bench import TASK
from tests.support.scripted_engine import END, byte_tokenizer
from tests.support.tiny_model import write_tokenizer

LIMITS = RolloutLimits()
DONE = "apis.supervisor.complete_task(answer=1)"
INVENTED = "User: Output:\n3\nYou: All are deleted."


class Reciter:
    """Fulfils `Engine`: a model that always says the same, token by token, and ends as engines do."""

    def __init__(self, tokenizer: ChatTokenizer, text: str) -> None:
        self._tokenizer, self._ids = tokenizer, tokenizer.encode(text + END)
        self._spoken: tuple[int, ...] = ()
        self.prompts: list[tuple[int, ...]] = []
        self.samplings: list[Sampling] = []

    async def complete(self, prompt_ids: Sequence[int], *, model: str, sampling: Sampling) -> Completion:  # noqa: ARG002
        goes_on = bool(self._spoken) and tuple(prompt_ids) == self.prompts[-1] + self._spoken
        self.prompts.append(tuple(prompt_ids))
        self.samplings.append(sampling)
        start = len(self._spoken) if goes_on else 0
        ids = self._ids[start : start + sampling.max_tokens]
        for count in range(1, len(ids) + 1):
            text = self._tokenizer.decode(ids[:count])
            if ids[count - 1] in sampling.stop_token_ids or any(stop in text for stop in sampling.stop_strings):
                return self._answer(ids[:count], "stop")
        return self._answer(ids, "length")

    def _answer(self, ids: list[int], finish: str) -> Completion:
        self._spoken = tuple(ids)
        return Completion(tuple(ids), tuple(-0.1 * token for token in ids), finish)


async def rollout(
    sandbox: ForkedSandbox,
    reciter: Reciter,
    tokenizer: ChatTokenizer,
    profile: Profile,
    limits: RolloutLimits = LIMITS,
) -> Trajectory:
    agent = Agent(reciter, tokenizer, profile, sandbox, limits)
    ledger = Ledger()
    async with ledger.client() as client:
        return await run_rollout(agent, TASK, Policy(), ledger.gateway(client))


@pytest.fixture
def tokenizer(tmp_path: Path) -> ChatTokenizer:
    return byte_tokenizer(tmp_path / "tokenizer", max_length=20_000)


@pytest.mark.parametrize(
    ("said", "parts"),
    [
        (f"I look.\n```python\n{DONE}\n```\n", 1),
        (f"I look.\n```python\n{DONE}\n``` ", 1),
        (f"I look.\n```python\n{DONE}\n```\r", 1),
        (f"1. I look.\n   ```python\n{DONE}\n   ```\n", 1),
        (f"I look.\n``` python\n{DONE}\n```\n", 2),
        (f"I look.\n```\n{DONE}\n```\n", 2),
        (f"As JSON:\n```json\n{{}}\n```\nand\n```py\n{DONE}\n```\n", 2),
    ],
)
async def test_a_turn_ends_with_its_code(
    said: str, parts: int, sandbox: ForkedSandbox, tokenizer: ChatTokenizer
) -> None:
    reciter = Reciter(tokenizer, said + INVENTED)
    trajectory = await rollout(sandbox, reciter, tokenizer, Full(), LIMITS)
    [turn] = trajectory.turns
    assert (turn.text, turn.finish, trajectory.stop) == (said, "stop", "completed")
    assert turn.sampled_ids == tuple(tokenizer.encode(said))
    assert turn.logprobs == tuple(-0.1 * token for token in turn.sampled_ids)
    assert len(reciter.prompts) == parts
    assert (
        reciter.prompts[-1]
        == turn.context_ids + turn.sampled_ids[: len(reciter.prompts[-1]) - len(turn.context_ids)]
    )
    assert len({sampling.seed for sampling in reciter.samplings}) == parts


async def test_the_next_turn_follows_as_if_the_answer_had_ended(
    sandbox: ForkedSandbox, tokenizer: ChatTokenizer
) -> None:
    said = "I look.\n```python\nprint(1)\n```\n"
    trajectory = await rollout(
        sandbox, Reciter(tokenizer, said + INVENTED), tokenizer, Full(), RolloutLimits(turns=2)
    )
    first, second = trajectory.turns
    assert second.extends
    between = f"{END}\n<|im_start|>user\nOutput:\n1{END}\n<|im_start|>assistant\n"
    assert tokenizer.decode(second.context_ids) == between
    assert (first.text, second.text) == (said, said)


async def test_a_policy_that_ends_its_turns_itself_is_asked_for_nothing_else(
    sandbox: ForkedSandbox, tokenizer: ChatTokenizer
) -> None:
    said = f"```python\n{DONE}\n```\nThat is all."
    reciter = Reciter(tokenizer, said)
    [turn] = (await rollout(sandbox, reciter, tokenizer, Compact(), LIMITS)).turns
    assert turn.sampled_ids == tuple(tokenizer.encode(said + END))
    assert [sampling.stop_strings for sampling in reciter.samplings] == [()]


async def test_the_parts_of_a_turn_share_its_tokens(sandbox: ForkedSandbox, tokenizer: ChatTokenizer) -> None:
    reciter = Reciter(tokenizer, "So:\n```\nprint(1)\n```\n")
    [turn] = (await rollout(sandbox, reciter, tokenizer, Full(), RolloutLimits(turns=1, turn_tokens=12))).turns
    assert (turn.text, turn.finish) == ("So:\n```\nprin", "length")
    assert [sampling.max_tokens for sampling in reciter.samplings] == [12, 4]


@pytest.mark.parametrize(("stop", "ends"), [("\n```\n", "é\n```\n"), ("``", "é\n```"), ("User", None)])
def test_a_stop_string_may_be_spread_over_tokens_or_be_a_part_of_one(
    stop: str, ends: str | None, tmp_path: Path
) -> None:
    write_tokenizer(tmp_path, (("`", "`"), ("``", "`")))
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 99, "vocab_size": 999}')
    tokenizer = ChatTokenizer.load(tmp_path)
    stops, ids = StopStrings(tokenizer, ("not this", stop)), tokenizer.encode("é\n```\nx")
    assert tokenizer.encode("```") == [ids[3]]
    starts = (ids[: count + 1] for count in range(len(ids)))
    assert next((tokenizer.decode(start) for start in starts if stops.completed(start) == stop), None) == ends


@pytest.mark.parametrize("skipped", [True, False])
def test_the_text_before_a_special_token_that_stops_is_whole(tokenizer: ChatTokenizer, skipped: bool) -> None:
    said, stop = "That is all.", "<|im_start|>"
    ids = tuple(tokenizer.encode(said + stop))
    request = CompletionRequest(prompt=[5], stop=stop, skip_special_tokens=skipped)
    sampling = Sampling(max_tokens=99, stop_strings=(stop,))
    prepared = PreparedRequest("base", [5], 0, sampling, frozenset(tokenizer.eos_ids))
    stopped = StopStrings(tokenizer, [stop]).completed(ids)
    chunk = GenerationChunk(ids, (0.0,) * len(ids), "stop", None, stopped)
    answer = json.loads(CompletionWriter(tokenizer, request, prepared).response(chunk))
    assert answer["choices"][0]["text"] == said
