"""Rollouts in the real sandbox against a live API, with a scripted policy: how each of them ends."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest

from app.agent.prompts import PROFILES, Compact, Profile
from app.agent.rollout import (
    Agent,
    ResumeState,
    RolloutHooks,
    RolloutLimits,
    StopSignal,
    SuspendedError,
    run_rollout,
)
from app.base.errors import EngineError
from app.base.values import Offer, Policy, Stop, Trajectory, Turn, Use
from app.sandbox.forked_sandbox import ForkedSandbox
from app.sandbox.protocol import SessionLimits
from tests.support.rollout_bench import DONE, QUICK, TASK, WRITE, Bench
from tests.support.scripted_engine import Answer, ScriptedEngine, block, byte_tokenizer


@pytest.fixture(scope="module")
async def sandbox() -> AsyncIterator[ForkedSandbox]:
    async with ForkedSandbox(bwrap=False) as started:
        yield started


@pytest.fixture
def bench(sandbox: ForkedSandbox, tmp_path: Path) -> Bench:
    return Bench(sandbox, byte_tokenizer(tmp_path))


async def test_a_rollout_ends_when_the_agent_completes_the_task_and_keeps_its_answer(bench: Bench) -> None:
    trajectory = await bench.run(block(WRITE), block("apis.supervisor.complete_task(answer={'a': [1, 2.5]})"))
    assert trajectory.stop == Stop.COMPLETED
    assert trajectory.answer == {"a": [1, 2.5]}
    assert [entry.text for entry in bench.ledger.entries] == ["hello"]
    assert [turn.observation for turn in trajectory.turns] == ["1", "ok"]
    assert [turn.outcome for turn in trajectory.turns] == ["ok", "ok"]


async def test_the_trajectory_holds_the_ids_that_the_engine_saw(bench: Bench) -> None:
    trajectory = await bench.run(block("print(1)"), block("print(2)"), block(DONE))
    seen: tuple[int, ...] = ()
    for turn, prompt in zip(trajectory.turns, bench.engine.prompts, strict=True):
        seen += turn.context_ids
        assert bench.tokenizer.decode(seen) == prompt
        seen += turn.sampled_ids
        assert turn.extends
        assert len(turn.logprobs) == len(turn.sampled_ids)


async def test_calls_are_recorded_in_their_turn(bench: Bench) -> None:
    twice = f"{WRITE}\ntry:\n    apis.ledger.add_entry(text=3)\nexcept Exception:\n    pass\n{WRITE}"
    trajectory = await bench.run(block(twice), block(f"apis.ledger.list_entries()\n{DONE}"))
    assert [(call.seq, call.turn, call.api) for call in trajectory.calls] == [
        (0, 0, "ledger.add_entry"),
        (1, 0, "ledger.add_entry"),
        (2, 1, "ledger.list_entries"),
    ]
    assert trajectory.calls[0].arguments == {"text": "hello"}
    assert trajectory.calls[2].result == [{"text": "hello", "amount": 1}] * 2


async def test_state_persists_from_turn_to_turn(bench: Bench) -> None:
    trajectory = await bench.run(block("x = 20"), block("print(x + 1)"), block(DONE))
    assert trajectory.turns[1].observation == "21"


async def test_an_answer_without_code_ends_the_rollout(bench: Bench) -> None:
    trajectory = await bench.run(block("x = 1"), "I think that is all.")
    assert (trajectory.stop, len(trajectory.turns)) == (Stop.NO_CODE, 2)
    assert trajectory.turns[-1].outcome == ""


async def test_each_limit_has_its_own_stop(bench: Bench) -> None:
    idle, failing = block("pass"), block("1 / 0")
    ends = {
        Stop.TURN_LIMIT: await bench.run(idle, idle, idle, limits=RolloutLimits(turns=2)),
        Stop.ERROR_LIMIT: await bench.run(failing, idle, failing, idle, limits=RolloutLimits(errors=2)),
        Stop.TOKEN_LIMIT: await bench.run(idle, idle, limits=RolloutLimits(task_tokens=50)),
        Stop.CALL_LIMIT: await bench.run(block(f"{WRITE}\n" * 3), idle, max_calls=2),
    }
    assert {stop: trajectory.stop for stop, trajectory in ends.items()} == {stop: stop for stop in ends}
    assert [len(trajectory.turns) for trajectory in ends.values()] == [2, 3, 2, 1]
    assert "ZeroDivisionError" in ends[Stop.ERROR_LIMIT].turns[0].observation
    assert ends[Stop.TOKEN_LIMIT].generated_tokens == 50
    assert len(bench.ledger.entries) == 2


@pytest.mark.parametrize("profile", PROFILES.values(), ids=list(PROFILES))
async def test_an_agent_that_repeats_a_failing_turn_is_not_asked_again(bench: Bench, profile: Profile) -> None:
    bench.profile = profile
    failing, refused = block("1 / 0"), block("apis.ledger.add_entry(text='hello', amount='none')")
    stuck = {
        "in a row": ([failing, failing], 2),
        "an unknown name": ([block("x = 1"), block("add_entry()"), block("add_entry()")], 3),
        "a call that cannot be sent": ([refused, refused], 2),
        "no error": ([block("print(1)")] * 3, 3),
        "no error, after others": ([block("x = 1"), *[block("print(x)")] * 3], 4),
        "with turns in between": ([failing, block("1 / 1"), failing, block("2 / 0"), failing], 5),
    }
    for name, (turns, count) in stuck.items():
        ended = await bench.run(*turns, block(DONE))
        assert (name, ended.stop, len(ended.turns)) == (name, Stop.STUCK, count)
    others = {
        "other code": [failing, block("2 / 0"), failing, block("3 / 0")],
        "another error": [block("1 / n"), block("n = 0\n1 / n"), block("1 / n"), block("n = 1")],
        "no error, twice": [block("print(1)")] * 2,
        "no error, with turns in between": [block("print(1)"), block("print(1)"), block("print(2)")] * 3,
        "another result": [block("n = 0"), *[block("n += 1\nprint(n)")] * 4],
        "other words": [f"{word}\n{block('print(1)')}" for word in ("First.", "Again.", "Once more.", "Now.")],
    }
    for name, turns in others.items():
        assert (name, (await bench.run(*turns, block(DONE))).stop) == (name, Stop.COMPLETED)


async def test_the_last_allowed_call_does_not_end_the_rollout(bench: Bench) -> None:
    assert (await bench.run(block(WRITE), block(DONE), max_calls=1)).stop == Stop.COMPLETED


async def test_a_spent_session_budget_is_the_call_limit(bench: Bench) -> None:
    look = "apis.api_docs.show_app_descriptions()\n"
    limits = RolloutLimits(session=SessionLimits(calls=2))
    assert (await bench.run(block(look * 3), limits=limits)).stop == Stop.CALL_LIMIT


async def test_max_tokens_shrink_before_the_context_is_full(bench: Bench, tmp_path: Path) -> None:
    bench.tokenizer = byte_tokenizer(tmp_path / "short", max_length=300)
    trajectory = await bench.run(*(block(f"print('{number}' * 40)") for number in range(9)))
    assert trajectory.stop == Stop.CONTEXT_FULL
    assert "300 tokens" in trajectory.detail
    assert bench.engine.samplings[0].max_tokens == 300 - len(trajectory.turns[0].context_ids)
    assert all(sampling.max_tokens >= 16 for sampling in bench.engine.samplings)


async def test_model_servers_may_take_less_than_the_model_and_tell_so_late(bench: Bench) -> None:
    turns = (block(f"print('{number}' * 40)") for number in range(9))
    engine, told = ScriptedEngine(bench.tokenizer, *turns), iter([None])
    limits, longest = RolloutLimits(), lambda: next(told, 300)
    agent = Agent(engine, bench.tokenizer, Compact(), bench.sandbox, limits, served_length=longest)
    async with bench.ledger.client() as client:
        trajectory = await run_rollout(agent, TASK, Policy(), bench.ledger.gateway(client))
    assert trajectory.stop == Stop.CONTEXT_FULL
    assert "300 tokens" in trajectory.detail
    assert [each.max_tokens > 300 for each in engine.samplings] == [True] + [False] * (len(trajectory.turns) - 1)


async def test_a_prompt_that_does_not_fit_ends_the_rollout(bench: Bench, tmp_path: Path) -> None:
    bench.tokenizer = byte_tokenizer(tmp_path / "short", max_length=60)
    trajectory = await bench.run(block(DONE))
    assert (trajectory.stop, trajectory.turns) == (Stop.CONTEXT_FULL, ())


async def test_the_wall_limit_stops_running_code_and_keeps_its_calls(bench: Bench) -> None:
    code = f"{WRITE}\nimport time\ntime.sleep(60)"
    trajectory = await bench.run(block(code), limits=RolloutLimits(seconds=4))
    assert trajectory.stop == Stop.WALL_LIMIT
    assert [call.api for call in trajectory.turns[0].calls] == ["ledger.add_entry"]
    assert trajectory.seconds < 30


class Slow(ScriptedEngine):
    """Generates its first answer for longer than the limit of a rollout below."""

    async def _next(self, prompt: str) -> Answer:
        if len(self.prompts) == 1:
            await asyncio.sleep(3.5)
        return await super()._next(prompt)


async def run_slowly(bench: Bench, limits: RolloutLimits, *answers: Answer) -> Trajectory:
    engine = Slow(bench.tokenizer, *answers)
    agent = Agent(engine, bench.tokenizer, Compact(), bench.sandbox, limits)
    async with bench.ledger.client() as client:
        return await run_rollout(agent, TASK, Policy(), bench.ledger.gateway(client))


async def test_a_slow_engine_takes_the_time_of_a_served_task_and_not_of_a_rollout(bench: Bench) -> None:
    limits = RolloutLimits(seconds=3)
    own_time = msgspec.structs.replace(limits, counts_generation=False)
    served, rolled_out, stuck = await asyncio.gather(
        run_slowly(bench, limits, block(DONE)),
        run_slowly(bench, own_time, block("x = 1"), block(DONE)),
        run_slowly(bench, own_time, block("x = 1"), block("import time\ntime.sleep(60)")),
    )
    assert (served.stop, served.turns) == (Stop.WALL_LIMIT, ())
    assert (rolled_out.stop, len(rolled_out.turns)) == (Stop.COMPLETED, 2)
    assert (stuck.stop, len(stuck.turns)) == (Stop.WALL_LIMIT, 2)
    assert stuck.seconds < 30


@pytest.mark.parametrize("counts_generation", [True, False])
async def test_cancelling_stops_at_once_even_while_the_engine_generates(
    bench: Bench, *, counts_generation: bool
) -> None:
    stop_signal = StopSignal()

    class Stuck(ScriptedEngine):
        async def _next(self, prompt: str) -> Answer:  # noqa: ARG002
            asyncio.get_running_loop().call_later(0.05, stop_signal.cancel)
            await asyncio.Event().wait()
            return ""

    limits = RolloutLimits(counts_generation=counts_generation)
    agent = Agent(Stuck(bench.tokenizer), bench.tokenizer, Compact(), bench.sandbox, limits)
    async with bench.ledger.client() as client:
        gateway = bench.ledger.gateway(client)
        trajectory = await run_rollout(agent, TASK, Policy(), gateway, hooks=RolloutHooks(stop_signal))
    assert (trajectory.stop, trajectory.turns) == (Stop.CANCELLED, ())
    assert trajectory.seconds < 30


async def test_a_rollout_cancelled_before_its_start_does_not_run(bench: Bench) -> None:
    stop_signal = StopSignal()
    stop_signal.cancel()
    assert (await bench.run(block(DONE), hooks=RolloutHooks(stop_signal))).stop == Stop.CANCELLED


async def test_a_suspended_rollout_lets_its_code_finish(bench: Bench) -> None:
    class Suspending(RolloutHooks):
        seen: Turn | None = None

        async def on_sampled(self, index: int, turn: Turn) -> None:  # noqa: ARG002
            self.stop_signal.suspend()

        async def on_turn_end(self, index: int, turn: Turn) -> None:  # noqa: ARG002
            self.seen = turn

    hooks = Suspending()
    with pytest.raises(SuspendedError):
        await bench.run(block(WRITE), block(DONE), hooks=hooks)
    assert hooks.seen is not None
    assert hooks.seen.observation == "1"
    assert len(bench.engine.prompts) == 1


async def test_a_suspended_rollout_does_not_wait_for_the_engine(bench: Bench) -> None:
    stop_signal = StopSignal()

    class Stuck(ScriptedEngine):
        async def _next(self, prompt: str) -> Answer:  # noqa: ARG002
            asyncio.get_running_loop().call_later(0.05, stop_signal.suspend)
            await asyncio.sleep(3600)
            return ""

    agent = Agent(Stuck(bench.tokenizer), bench.tokenizer, Compact(), bench.sandbox, RolloutLimits())
    async with bench.ledger.client() as client:
        with pytest.raises(SuspendedError):
            await run_rollout(agent, TASK, Policy(), bench.ledger.gateway(client), hooks=RolloutHooks(stop_signal))


async def test_a_failing_engine_is_an_error_and_leaves_no_trajectory(bench: Bench) -> None:
    with pytest.raises(EngineError, match="no more answers"):
        await bench.run(block("x = 1"))


async def test_sampling_follows_the_seed_and_the_turn(bench: Bench) -> None:
    answers = (block("x = 1"), block(DONE))
    trajectory = await bench.run(*answers, resume=ResumeState(seed=7))
    first = [sampling.seed for sampling in bench.engine.samplings]
    await bench.run(*answers, resume=ResumeState(seed=7))
    assert first == [sampling.seed for sampling in bench.engine.samplings]
    await bench.run(*answers, resume=ResumeState(seed=8))
    assert len({*first, *(sampling.seed for sampling in bench.engine.samplings)}) == 4
    assert bench.engine.samplings[0].temperature == trajectory.temperature == 0.7
    assert bench.engine.samplings[0].stop_token_ids == bench.tokenizer.stop_ids


@pytest.mark.parametrize("deadly", ["import time\ntime.sleep(30)", "sum(range(10**10))"])
async def test_a_session_that_dies_is_rebuilt_and_no_call_is_sent_twice(bench: Bench, deadly: str) -> None:
    keep = f"first = apis.ledger.add_entry(text='kept')['id']\n{WRITE}"
    trajectory = await bench.run(
        block(keep),
        block(f"x = 5\n{WRITE}\n{deadly}"),
        block("print(first, 'x' in globals())"),
        block(DONE),
        limits=RolloutLimits(session=QUICK),
    )
    assert trajectory.stop == Stop.COMPLETED
    assert [turn.alive for turn in trajectory.turns] == [True, False, True, True]
    assert trajectory.turns[2].observation == "1 False"
    assert trajectory.turns[1].outcome in ("cpu", "wall")
    assert [call.seq for call in trajectory.calls] == [0, 1, 2]
    assert len(bench.ledger.entries) == 3


async def test_uses_distinguish_an_offered_skill_from_one_that_was_written(bench: Bench) -> None:
    offer = Offer(
        skill_id=uuid4(),
        name="note",
        version=1,
        signature="note(text: str) -> int",
        source='def note(text: str) -> int:\n    return apis.ledger.add_entry(text=text)["id"]\n',
        instruction="write hallo into the ledger",
    )
    own = "def twice(n: int) -> int:\n    return 2 * n\nprint(twice(note('hello')))"
    trajectory = await bench.run(block(own), block(DONE), offers=[offer])
    assert set(trajectory.turns[0].uses) == {Use("note", True, 1, 1), Use("twice", False, 1, 1)}
    assert list(trajectory.used()) == [offer]
    assert "note(text: str) -> int: write hallo into the ledger" in bench.engine.prompts[0]


async def test_a_rollout_resumes_from_its_recorded_turns_without_a_second_call(bench: Bench) -> None:
    keep = f"mine = apis.ledger.add_entry(text='kept')['id']\n{WRITE}"
    whole = await bench.run(block(keep), block(f"print(mine)\n{WRITE}"), block(DONE))
    begun = msgspec.structs.replace(whole.turns[1], observation="", outcome="", calls=(), uses=())
    for known in ((), whole.turns[1].calls):  # died before its call, or after it
        written = len(bench.ledger.entries)
        resume = ResumeState(recorded=whole.turns[:1], begun=begun, known=known)
        resumed = await bench.run(block(DONE), resume=resume)
        assert resumed.stop == Stop.COMPLETED
        assert len(bench.ledger.entries) == written + (0 if known else 1)
        assert [turn.observation.split("\n")[0] for turn in resumed.turns] == ["2", "1", "ok"]
        assert [turn.context_ids for turn in resumed.turns[:2]] == [turn.context_ids for turn in whole.turns[:2]]
        assert [call.seq for call in resumed.calls] == [0, 1, 2]
        assert "2" in bench.engine.prompts[-1]


async def test_a_rollout_that_had_ended_resumes_to_the_same_stop(bench: Bench) -> None:
    whole = await bench.run(block(WRITE), block("apis.supervisor.complete_task(answer=7)"))
    resumed = await bench.run(resume=ResumeState(recorded=whole.turns))
    assert (resumed.stop, resumed.answer, len(resumed.turns)) == (Stop.COMPLETED, 7, 2)
    assert len(bench.ledger.entries) == 1
    silent = await bench.run("Nothing to do.")
    assert (await bench.run(resume=ResumeState(recorded=silent.turns))).stop == Stop.NO_CODE


async def test_code_that_makes_other_calls_when_replayed_is_in_doubt(bench: Bench) -> None:
    whole = await bench.run(block(WRITE), block(DONE))
    other = msgspec.structs.replace(whole.turns[0].calls[0], arguments={"text": "other"})
    changed = msgspec.structs.replace(whole.turns[0], calls=(other,))
    resumed = await bench.run(block(DONE), resume=ResumeState(recorded=(changed,)))
    assert resumed.stop == Stop.IN_DOUBT
    assert "ledger.add_entry" in resumed.detail
    fewer = msgspec.structs.replace(whole.turns[0], calls=whole.calls * 2)
    assert (await bench.run(block(DONE), resume=ResumeState(recorded=(fewer,)))).stop == Stop.IN_DOUBT
    assert len(bench.ledger.entries) == 1
