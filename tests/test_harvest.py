"""Collecting what is worth imitating: what is kept, what is dropped, and that nothing collected is lost."""

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from random import Random
from uuid import uuid4

import msgspec
import pytest

from app.agent.full import Full
from app.engine.tokenizer import ChatTokenizer
from app.errors import EngineError, InvalidError
from app.records import Policy, Stop, Task, Trajectory, Turn
from app.sandbox.forked_sandbox import ForkedSandbox
from app.settings import Settings
from tests.scripted_engine import block
from trainer.environment import Scenario, Verdict
from trainer.environments.office.expert_script import FLAWLESS
from trainer.environments.office.office_environment import OfficeEnvironment
from trainer.environments.office.scripted_rollouts import Stage
from trainer.rollouts.episode import Episode
from trainer.sft_data.answer_tokens import UnsayableError
from trainer.sft_data.chat_records import read_records
from trainer.sft_data.collection_journal import Entry, Journal
from trainer.sft_data.rejection_sampling import UNSAYABLE, Harvest
from trainer.sft_data.selection import Fault, select

GOOD = block("apis.supervisor.complete_task()")
PLAN = {"seed": 1}


def episode(*texts: str, success: bool = True, finish: str = "stop") -> Episode:
    turns = tuple(
        Turn(context_ids=(1,), sampled_ids=(2,), logprobs=(0.0,), text=text, finish=finish) for text in texts
    )
    done = Trajectory(
        task=Task(uuid4(), "do"), policy=Policy("wise"), profile="compact", turns=turns, stop=Stop.COMPLETED
    )
    return Episode(done, Verdict(int(success), 1))


def entry(index: int, *kept: str, tried: int = 3, **dropped: int) -> Entry:
    return Entry(index=index, tried=tried, dropped=dropped, kept=list(kept))


WON, LOST = episode(GOOD), episode(GOOD, success=False)


@pytest.mark.parametrize(
    ("episodes", "kept", "dropped"),
    [
        ([WON, WON, WON], [0, 1, 2], {}),
        ([WON, WON, LOST], [0, 1], {Fault.FAILED: 1}),
        ([WON, LOST, WON], [], {Fault.FAILED: 1, Fault.CHAIN: 2}),
        ([LOST, WON, WON], [], {Fault.FAILED: 1, Fault.CHAIN: 2}),
        ([WON], [0], {}),
        ([LOST], [], {Fault.FAILED: 1}),
        ([], [], {}),
    ],
)
def test_a_scenario_is_kept_where_its_first_two_tasks_succeeded(
    episodes: list[Episode], kept: list[int], dropped: dict[str, int]
) -> None:
    found = select(episodes)
    assert found.kept == [episodes[index] for index in kept]
    assert found.dropped == dropped


def test_under_the_rule_of_tasks_every_success_is_kept() -> None:
    found = select([LOST, WON, LOST], "task")
    assert found.kept == [WON]
    assert found.dropped == {Fault.FAILED: 2}


def test_a_trace_with_a_turn_that_is_not_to_be_imitated_is_dropped_though_it_succeeded() -> None:
    silent, cut = episode("Let me think.", GOOD), episode(GOOD, finish="length")
    found = select([WON, silent, cut], "task")
    assert found.kept == [WON]
    assert found.dropped == {Fault.NO_CODE: 1, Fault.CUT_OFF: 1}


def test_a_journal_is_read_again_and_becomes_the_file_in_the_order_of_scenarios(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out.jsonl"
    first = Journal(out, PLAN)
    first.add(entry(2, "c\n", late=1))
    first.add(entry(0, "a\n", "b\n", late=1, never=2))
    again = Journal(out, PLAN)
    assert again.entries == first.entries
    again.add(entry(1))
    assert again.finish() == entry(0, "a\n", "b\n", "c\n", tried=9, late=2, never=2)
    assert out.read_text() == "a\nb\nc\n"
    assert [path.name for path in out.parent.iterdir()] == ["out.jsonl"]


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_line_that_was_cut_short_is_forgotten_and_what_follows_is_kept(tmp_path: Path, cut: int) -> None:
    out, journal = tmp_path / "out.jsonl", tmp_path / "out.jsonl.journal"
    Journal(out, PLAN).add(entry(0, "a\n"))
    whole = journal.read_bytes()
    journal.write_bytes(whole + msgspec.json.encode(entry(1, "b\n"))[:cut])
    resumed = Journal(out, PLAN)
    assert resumed.entries == {0: entry(0, "a\n")}
    resumed.add(entry(1, "c\n"))
    assert Journal(out, PLAN).entries == {0: entry(0, "a\n"), 1: entry(1, "c\n")}


def test_a_journal_whose_very_first_line_was_cut_short_begins_anew(tmp_path: Path) -> None:
    out, journal = tmp_path / "out.jsonl", tmp_path / "out.jsonl.journal"
    journal.write_bytes(b'{"se')
    Journal(out, PLAN).add(entry(0))
    assert Journal(out, PLAN).entries == {0: entry(0)}


def test_what_another_plan_collected_is_not_mixed_in(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    Journal(out, {"seed": 1, "model": "wise"})
    with pytest.raises(InvalidError, match="was begun with seed=1: go on so, or remove it"):
        Journal(out, {"seed": 2, "model": "wise"})


def test_a_file_that_is_there_already_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_text("mine")
    with pytest.raises(InvalidError, match="is there already"):
        Journal(tmp_path / "out.jsonl", PLAN)
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


@pytest.fixture(scope="module")
def environment() -> OfficeEnvironment:
    return OfficeEnvironment()


@pytest.fixture(scope="module")
def scenarios(environment: OfficeEnvironment) -> Sequence[Scenario]:
    return environment.scenarios("train", 4, seed=12)


@pytest.fixture(scope="module")
async def stage(environment: OfficeEnvironment) -> AsyncIterator[Stage]:
    async with ForkedSandbox() as sandbox:
        yield Stage(environment=environment, tokenizer=ChatTokenizer.load(Settings().model_dir), sandbox=sandbox)


class Player:
    """The scripted expert, who is well only at some temperatures."""

    def __init__(self, stage: Stage, well: Sequence[float] = (0.0,)) -> None:
        self.asked: list[tuple[str, float]] = []
        self.fails: Exception | None = None  # once it was asked three times
        self.harvest = Harvest(
            environment=stage.environment,
            profile=stage.profile,
            play=self.play,
            temperatures=(0.0, 0.7),
            rule="chain",
            source="here",
            at_once=1,
        )
        self._stage = stage
        self._well = well

    async def play(self, scenario: Scenario, temperature: float) -> list[Episode]:
        self.asked.append((scenario.id, temperature))
        if self.fails is not None and len(self.asked) > 2:
            raise self.fails
        episodes = await self._stage.play(scenario, FLAWLESS, Random(0))
        return episodes if temperature in self._well else [LOST, *episodes[1:]]


def ignore() -> None:
    """Nobody listens."""


async def test_a_success_becomes_a_line_that_says_where_it_comes_from(
    stage: Stage, scenarios: Sequence[Scenario], tmp_path: Path
) -> None:
    journal = Journal(tmp_path / "out.jsonl", PLAN)
    await Player(stage).harvest.collect(scenarios[:1], journal, ignore)
    assert journal.finish().tried == 3
    records = read_records(tmp_path / "out.jsonl")
    assert [record.messages[0].content.split("\n")[0] for record in records] == [
        task.instruction for task in scenarios[0].tasks
    ]
    about = records[1].about
    assert about["scenario"] == scenarios[0].id
    assert about["template"] == scenarios[0].template
    assert (about["score"], about["source"], about["temperature"], about["model"]) == (1.0, "here", 0.0, "expert")
    assert about["used"] == about["offered"]
    assert about["used"]


async def test_a_record_opens_as_the_policy_was_told_to_begin(
    stage: Stage, scenarios: Sequence[Scenario], tmp_path: Path
) -> None:
    """The apps of the world are in the prompt of the full profile."""
    player = Player(stage)
    journal = Journal(tmp_path / "out.jsonl", PLAN)
    harvest = Harvest(
        environment=stage.environment,
        profile=Full(),
        play=player.play,
        temperatures=(0.0,),
        rule="task",
        source="here",
    )
    await harvest.collect(scenarios[:1], journal, ignore)
    journal.finish()
    system = read_records(tmp_path / "out.jsonl")[0].messages[0]
    assert system.role == "system"
    assert "- contacts: " in system.content
    assert "- supervisor: " in system.content


async def test_the_next_temperature_is_tried_only_where_nothing_was_kept(
    stage: Stage, scenarios: Sequence[Scenario], tmp_path: Path
) -> None:
    journal = Journal(tmp_path / "out.jsonl", PLAN)
    hot = Player(stage, well=(0.7,))
    await hot.harvest.collect(scenarios[:1], journal, ignore)
    assert hot.asked == [(scenarios[0].id, 0.0), (scenarios[0].id, 0.7)]
    assert journal.entries[0].tried == 6
    assert journal.entries[0].dropped == {Fault.FAILED: 1, Fault.CHAIN: 2}
    assert [json.loads(line)["temperature"] for line in journal.entries[0].kept] == [0.7] * 3
    cold = Player(stage)
    await cold.harvest.collect(scenarios[1:2], Journal(tmp_path / "other.jsonl", PLAN), ignore)
    assert cold.asked == [(scenarios[1].id, 0.0)]


async def test_a_harvest_that_broke_off_goes_on_and_ends_as_one_that_did_not(
    stage: Stage, scenarios: Sequence[Scenario], tmp_path: Path
) -> None:
    straight = Journal(tmp_path / "straight.jsonl", PLAN)
    await Player(stage).harvest.collect(scenarios, straight, ignore)
    broken, player = Journal(tmp_path / "broken.jsonl", PLAN), Player(stage)
    player.fails = EngineError("gone")
    with pytest.raises(EngineError, match="gone"):
        await player.harvest.collect(scenarios, broken, ignore)
    assert sorted(broken.entries) == [0, 1]
    resumed, heard = Player(stage), list[None]()
    journal = Journal(tmp_path / "broken.jsonl", PLAN)
    await resumed.harvest.collect(scenarios, journal, lambda: heard.append(None))
    assert [scenario for scenario, _ in resumed.asked] == [each.id for each in scenarios[2:]]
    assert len(heard) == 2
    assert journal.finish() == straight.finish()


async def test_an_answer_that_the_policy_could_not_say_costs_a_pass_and_not_the_harvest(
    stage: Stage, scenarios: Sequence[Scenario], tmp_path: Path
) -> None:
    journal, player = Journal(tmp_path / "out.jsonl", PLAN), Player(stage)
    player.fails = UnsayableError("no such word")
    await player.harvest.collect(scenarios[:3], journal, ignore)
    assert journal.entries[2] == entry(2, tried=2, **{UNSAYABLE: 2})
    assert len(journal.entries[0].kept) == 3
