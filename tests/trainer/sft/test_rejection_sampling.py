"""Rejection sampling: which chats are kept, which are dropped, and that an interrupted collection resumes."""

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from random import Random
from uuid import uuid4

import msgspec
import pytest

from app.agent.prompts import Full
from app.base.errors import EngineError, InvalidError
from app.base.model_catalog import SEED_DIR
from app.base.values import Policy, Stop, Task, Trajectory, Turn
from app.engine.tokenizer import ChatTokenizer
from app.sandbox.forked_sandbox import ForkedSandbox
from tests.support.scripted_engine import block
from trainer.environment import Scenario, Verdict
from trainer.rollouts.episode import Episode
from trainer.sft.chats import read_records
from trainer.sft.collection import (
    UNTOKENIZABLE,
    CollectionEntry,
    CollectionJournal,
    RejectionSampler,
    RejectReason,
    UntokenizableError,
    select,
)
from trainer.worlds.office.environment import OfficeEnvironment
from trainer.worlds.office.expert import FLAWLESS
from trainer.worlds.office.rollouts import ScriptRunner

GOOD = block("apis.supervisor.complete_task()")
SETTINGS = {"seed": 1}


def episode(*texts: str, success: bool = True, finish: str = "stop") -> Episode:
    turns = tuple(
        Turn(context_ids=(1,), sampled_ids=(2,), logprobs=(0.0,), text=text, finish=finish) for text in texts
    )
    done = Trajectory(
        task=Task(uuid4(), "do"), policy=Policy("wise"), profile="compact", turns=turns, stop=Stop.COMPLETED
    )
    return Episode(done, Verdict(int(success), 1))


def entry(index: int, *kept: str, tried: int = 3, **dropped: int) -> CollectionEntry:
    return CollectionEntry(index=index, tried=tried, dropped=dropped, kept=list(kept))


WON, LOST = episode(GOOD), episode(GOOD, success=False)


@pytest.mark.parametrize(
    ("episodes", "kept", "dropped"),
    [
        ([WON, WON, WON], [0, 1, 2], {}),
        ([WON, WON, LOST], [0, 1], {RejectReason.FAILED: 1}),
        ([WON, LOST, WON], [], {RejectReason.FAILED: 1, RejectReason.CHAIN: 2}),
        ([LOST, WON, WON], [], {RejectReason.FAILED: 1, RejectReason.CHAIN: 2}),
        ([WON], [0], {}),
        ([LOST], [], {RejectReason.FAILED: 1}),
        ([], [], {}),
    ],
)
def test_a_scenario_is_kept_where_its_first_two_tasks_succeeded(
    episodes: list[Episode], kept: list[int], dropped: dict[str, int]
) -> None:
    selection = select(episodes)
    assert selection.kept == [episodes[index] for index in kept]
    assert selection.dropped == dropped


def test_under_the_task_rule_every_success_is_kept() -> None:
    selection = select([LOST, WON, LOST], "task")
    assert selection.kept == [WON]
    assert selection.dropped == {RejectReason.FAILED: 2}


def test_a_success_with_a_turn_not_worth_imitating_is_dropped() -> None:
    silent, cut = episode("Let me think.", GOOD), episode(GOOD, finish="length")
    selection = select([WON, silent, cut], "task")
    assert selection.kept == [WON]
    assert selection.dropped == {RejectReason.NO_CODE: 1, RejectReason.CUT_OFF: 1}


def test_a_journal_is_reopened_and_becomes_the_file_in_the_order_of_scenarios(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out.jsonl"
    first = CollectionJournal(out, SETTINGS)
    first.add(entry(2, "c\n", late=1))
    first.add(entry(0, "a\n", "b\n", late=1, never=2))
    again = CollectionJournal(out, SETTINGS)
    assert again.entries == first.entries
    again.add(entry(1))
    assert again.finish() == entry(0, "a\n", "b\n", "c\n", tried=9, late=2, never=2)
    assert out.read_text() == "a\nb\nc\n"
    assert [path.name for path in out.parent.iterdir()] == ["out.jsonl"]


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_line_that_was_cut_short_is_removed_and_later_ones_are_kept(tmp_path: Path, cut: int) -> None:
    out, journal = tmp_path / "out.jsonl", tmp_path / "out.jsonl.journal"
    CollectionJournal(out, SETTINGS).add(entry(0, "a\n"))
    whole = journal.read_bytes()
    journal.write_bytes(whole + msgspec.json.encode(entry(1, "b\n"))[:cut])
    resumed = CollectionJournal(out, SETTINGS)
    assert resumed.entries == {0: entry(0, "a\n")}
    resumed.add(entry(1, "c\n"))
    assert CollectionJournal(out, SETTINGS).entries == {0: entry(0, "a\n"), 1: entry(1, "c\n")}


def test_a_journal_whose_first_line_was_cut_short_starts_anew(tmp_path: Path) -> None:
    out, journal = tmp_path / "out.jsonl", tmp_path / "out.jsonl.journal"
    journal.write_bytes(b'{"se')
    CollectionJournal(out, SETTINGS).add(entry(0))
    assert CollectionJournal(out, SETTINGS).entries == {0: entry(0)}


def test_a_journal_with_other_settings_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    CollectionJournal(out, {"seed": 1, "model": "wise"})
    with pytest.raises(InvalidError, match="was begun with seed=1: use the same, or remove it"):
        CollectionJournal(out, {"seed": 2, "model": "wise"})


def test_an_existing_file_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_text("mine")
    with pytest.raises(InvalidError, match="exists: name another file"):
        CollectionJournal(tmp_path / "out.jsonl", SETTINGS)
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


@pytest.fixture(scope="module")
def environment() -> OfficeEnvironment:
    return OfficeEnvironment()


@pytest.fixture(scope="module")
def scenarios(environment: OfficeEnvironment) -> Sequence[Scenario]:
    return environment.scenarios("train", 4, seed=12)


@pytest.fixture(scope="module")
async def runner(environment: OfficeEnvironment) -> AsyncIterator[ScriptRunner]:
    async with ForkedSandbox() as sandbox:
        yield ScriptRunner(environment=environment, tokenizer=ChatTokenizer.load(SEED_DIR), sandbox=sandbox)


class Player:
    """The scripted expert, which succeeds only at some temperatures."""

    def __init__(self, runner: ScriptRunner, good: Sequence[float] = (0.0,)) -> None:
        self.played: list[tuple[str, float]] = []
        self.fails: Exception | None = None  # raised from the third pass on
        self.sampler = RejectionSampler(
            environment=runner.environment,
            profile=runner.profile,
            play=self.play,
            temperatures=(0.0, 0.7),
            rule="chain",
            source="here",
            at_once=1,
        )
        self._runner = runner
        self._good = good

    async def play(self, scenario: Scenario, temperature: float) -> list[Episode]:
        self.played.append((scenario.id, temperature))
        if self.fails is not None and len(self.played) > 2:
            raise self.fails
        episodes = await self._runner.play(scenario, FLAWLESS, Random(0))
        return episodes if temperature in self._good else [LOST, *episodes[1:]]


def ignore() -> None:
    """A report that is not needed."""


async def test_a_success_becomes_a_line_with_its_source(
    runner: ScriptRunner, scenarios: Sequence[Scenario], tmp_path: Path
) -> None:
    journal = CollectionJournal(tmp_path / "out.jsonl", SETTINGS)
    await Player(runner).sampler.run(scenarios[:1], journal, ignore)
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


async def test_a_record_opens_as_the_policys_profile_does(
    runner: ScriptRunner, scenarios: Sequence[Scenario], tmp_path: Path
) -> None:
    """The apps of the world are in the prompt of the full profile."""
    player = Player(runner)
    journal = CollectionJournal(tmp_path / "out.jsonl", SETTINGS)
    sampler = RejectionSampler(
        environment=runner.environment,
        profile=Full(),
        play=player.play,
        temperatures=(0.0,),
        rule="task",
        source="here",
    )
    await sampler.run(scenarios[:1], journal, ignore)
    journal.finish()
    system, user = read_records(tmp_path / "out.jsonl")[0].messages[:2]
    assert system.role == "system"
    assert "\napis.contacts.list_members(" in user.content


async def test_the_next_temperature_is_tried_only_where_nothing_was_kept(
    runner: ScriptRunner, scenarios: Sequence[Scenario], tmp_path: Path
) -> None:
    journal = CollectionJournal(tmp_path / "out.jsonl", SETTINGS)
    hot = Player(runner, good=(0.7,))
    await hot.sampler.run(scenarios[:1], journal, ignore)
    assert hot.played == [(scenarios[0].id, 0.0), (scenarios[0].id, 0.7)]
    assert journal.entries[0].tried == 6
    assert journal.entries[0].dropped == {RejectReason.FAILED: 1, RejectReason.CHAIN: 2}
    assert [json.loads(line)["temperature"] for line in journal.entries[0].kept] == [0.7] * 3
    cold = Player(runner)
    await cold.sampler.run(scenarios[1:2], CollectionJournal(tmp_path / "other.jsonl", SETTINGS), ignore)
    assert cold.played == [(scenarios[1].id, 0.0)]


async def test_an_interrupted_collection_resumes_and_ends_as_an_uninterrupted_one(
    runner: ScriptRunner, scenarios: Sequence[Scenario], tmp_path: Path
) -> None:
    straight = CollectionJournal(tmp_path / "straight.jsonl", SETTINGS)
    await Player(runner).sampler.run(scenarios, straight, ignore)
    broken, player = CollectionJournal(tmp_path / "broken.jsonl", SETTINGS), Player(runner)
    player.fails = EngineError("gone")
    with pytest.raises(EngineError, match="gone"):
        await player.sampler.run(scenarios, broken, ignore)
    assert sorted(broken.entries) == [0, 1]
    resumed, reports = Player(runner), list[None]()
    journal = CollectionJournal(tmp_path / "broken.jsonl", SETTINGS)
    await resumed.sampler.run(scenarios, journal, lambda: reports.append(None))
    assert [scenario for scenario, _ in resumed.played] == [each.id for each in scenarios[2:]]
    assert len(reports) == 2
    assert journal.finish() == straight.finish()


async def test_an_untokenizable_answer_costs_one_pass(
    runner: ScriptRunner, scenarios: Sequence[Scenario], tmp_path: Path
) -> None:
    journal, player = CollectionJournal(tmp_path / "out.jsonl", SETTINGS), Player(runner)
    player.fails = UntokenizableError("no such word")
    await player.sampler.run(scenarios[:3], journal, ignore)
    assert journal.entries[2] == entry(2, tried=2, **{UNTOKENIZABLE: 2})
    assert len(journal.entries[0].kept) == 3
