"""Models that think before they answer: what they consider is not done."""

from pathlib import Path

import pytest

from app.agent.prompts import Full
from app.agent.rollout import ResumeState, RolloutLimits
from app.base.values import Stop, Trajectory
from app.engine.tokenizer import opened_thought
from app.sandbox.forked_sandbox import ForkedSandbox
from app.skills.extract import extract
from tests.agent.test_chat import THOUGHTS_DROPPED
from tests.machine.test_served_model import THINKS, THINKS_NOT
from tests.model_server.test_stop_strings import INVENTED, Reciter, rollout
from tests.support.rollout_bench import DONE, WRITE, Bench
from tests.support.scripted_engine import CHATML, END, byte_tokenizer
from trainer.learning.batch import samples_of

CONSIDERED = f"I could do\n```python\ndef rash():\n    {WRITE}\n\nrash()\n```\nor not.\n"
SAID = "</think>\n\nI do\n```python\ndef wise():\n    apis.supervisor.complete_task(answer=1)\n\nwise()\n```\n"

both = pytest.mark.parametrize(
    ("template", "opened"),
    [(THOUGHTS_DROPPED, ""), (THINKS, "<think>\n")],
    ids=["by the model", "by the template"],
)


@both
async def test_code_in_a_thought_ends_no_turn_and_is_not_run(
    template: str, opened: str, sandbox: ForkedSandbox, tmp_path: Path
) -> None:
    tokenizer = byte_tokenizer(tmp_path, template=template)
    text = CONSIDERED + SAID if opened else f"<think>\n{CONSIDERED}{SAID}"
    reciter = Reciter(tokenizer, text + INVENTED)
    trajectory = await rollout(sandbox, reciter, tokenizer, Full(), RolloutLimits(turn_tokens=2_000))
    [turn] = trajectory.turns
    assert (trajectory.stop, turn.calls, len(reciter.prompts)) == (Stop.COMPLETED, (), 2)
    assert (turn.text, turn.opened, turn.finish) == (text, opened, "stop")
    assert turn.sampled_ids == tuple(tokenizer.encode(text))
    assert tokenizer.decode(turn.context_ids).endswith(f"assistant\n{opened}")
    assert [draft.name for draft in extract(trajectory)] == ["wise"]


@both
async def test_a_task_whose_thought_is_cut_off_reaches_the_limit_of_tokens(
    template: str, opened: str, sandbox: ForkedSandbox, tmp_path: Path
) -> None:
    tokenizer = byte_tokenizer(tmp_path, template=template)
    text = CONSIDERED + SAID if opened else f"<think>\n{CONSIDERED}{SAID}"
    limits = RolloutLimits(turn_tokens=len(CONSIDERED) - 4)
    cut = await rollout(sandbox, Reciter(tokenizer, text), tokenizer, Full(), limits)
    assert (cut.stop, cut.detail) == (Stop.TOKEN_LIMIT, "the last turn ended in a thought, before any code")
    assert [turn.outcome for turn in cut.turns] == [""]
    ended = await rollout(sandbox, Reciter(tokenizer, text.partition("</think>")[0]), tokenizer, Full())
    assert (ended.stop, ended.detail) == (Stop.NO_CODE, cut.detail)


async def test_a_task_that_is_resumed_does_not_run_what_was_considered(
    sandbox: ForkedSandbox, tmp_path: Path
) -> None:
    bench = Bench(sandbox, byte_tokenizer(tmp_path, template=THINKS))
    first = f"{CONSIDERED}</think>\n```python\nx = 1\n```"
    before = await bench.run(
        first, f"{CONSIDERED}</think>\n```python\nprint(x)\n```", limits=RolloutLimits(turns=2)
    )

    async def resumed(resume: ResumeState) -> Trajectory:
        return await bench.run(f"</think>\n```python\nprint(x)\n{DONE}\n```", resume=resume)

    between = await resumed(ResumeState(recorded=before.turns[:1]))
    within = await resumed(ResumeState(recorded=before.turns[:1], begun=before.turns[1]))
    assert (between.turns[-1].observation, within.turns[1].observation) == ("1", "1")
    assert bench.ledger.entries == []
    assert not any(turn.extends for turn in within.turns[1:]), "the template dropped the thought"


@both
async def test_each_turn_is_learned_from_in_the_context_in_which_it_was_sampled(
    template: str, opened: str, sandbox: ForkedSandbox, tmp_path: Path
) -> None:
    tokenizer = byte_tokenizer(tmp_path, template=template)
    bench = Bench(sandbox, tokenizer)
    thought = ("" if opened else "<think>\n") + f"{CONSIDERED}</think>\n"
    answers = [f"{thought}```python\n{code}\n```" for code in ("x = 1", "print(x)", DONE)]
    trajectory = await bench.run(*answers)
    samples = samples_of(trajectory)
    assert (trajectory.stop, len(samples)) == (Stop.COMPLETED, 3)
    contexts = [tokenizer.decode(sample.ids[: sample.sampled.index(True)]) for sample in samples]
    assert contexts == bench.engine.prompts
    assert ["or not" in context for context in contexts] == [False] * 3
    learned = [tokenizer.decode(sample.ids[sample.sampled.index(True) :]) for sample in samples]
    assert learned == [answer + END for answer in answers]


@pytest.mark.parametrize(
    ("prompt", "opened"),
    [
        ("<|Assistant|><think>\n", "<think>\n"),
        ("assistant\n[THINK]", "[THINK]"),
        ("assistant\n<think>\n\n</think>\n\n", ""),
        ("user\n<think>\nassistant\n", ""),
    ],
)
def test_a_prompt_opens_a_thought_only_at_its_end(prompt: str, opened: str) -> None:
    assert opened_thought(prompt) == opened


@pytest.mark.parametrize("template", [CHATML, THINKS_NOT], ids=["no thoughts", "left out"])
async def test_a_model_that_does_not_think_is_read_as_it_speaks(
    template: str, sandbox: ForkedSandbox, tmp_path: Path
) -> None:
    bench = Bench(sandbox, byte_tokenizer(tmp_path, template=template))
    trajectory = await bench.run(f"```python\n{WRITE}\n{DONE}\n```")
    assert (trajectory.stop, trajectory.turns[0].opened, len(bench.ledger.entries)) == (Stop.COMPLETED, "", 1)
