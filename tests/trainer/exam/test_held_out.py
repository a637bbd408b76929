"""What a project holds out enters no training: not as rollouts on staging, nor as conversations of a file."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from litestar import post
from sqlalchemy import select

from app.base.run_settings import RunSettings
from app.base.values import BASE
from app.db import tables
from app.db.database import Sessions
from app.db.tables import ExamSource
from app.engine.tokenizer import ChatTokenizer
from app.projects import store as projects
from app.projects.kinds import is_held_out, kind_that_begins
from app.releases.exams import store as exams
from app.releases.exams.store import NewExamTask
from tests.support.ledger import Ledger
from tests.support.ledger_project import put_ledger
from tests.support.training_project import ONE_TURN, ProgressRecorder, TrainingProject, on_this_machine
from trainer.experience import read_window
from trainer.rewards import BaseModel, DropReason
from trainer.run import train
from trainer.run_job import Job
from trainer.runs.environment import open_run_environment

CHECK = "score = float(len(apis.ledger.list_entries()) == 0)"
STAGING = "exam?name=mine&on=staging"


class TrialLedger(Ledger):
    """It counts its resets."""

    def __init__(self) -> None:
        self.resets = 0
        super().__init__()

    def _routes(self) -> list[Any]:
        @post("/reset", operation_id="reset_entries", summary="forget all entries")
        async def reset_entries() -> None:
            self.resets += 1
            self.entries.clear()

        return [*super()._routes(), reset_entries]


@pytest.fixture
async def shop(committed: Sessions, database_url: str, tiny: Path, tmp_path: Path) -> TrainingProject:
    settings = on_this_machine(tiny, tmp_path, database_url, **ONE_TURN, data_prefixes=f"{tmp_path}/")
    return await TrainingProject.open(committed, settings)


@pytest.fixture
async def ledgers(shop: TrainingProject) -> AsyncIterator[tuple[Ledger, TrialLedger]]:
    """The one of production, and the one of staging."""
    live, trial = Ledger(), TrialLedger()
    async with AsyncExitStack() as stack:
        production = await stack.enter_async_context(live.listening())
        server = await stack.enter_async_context(trial.listening())
        staging = {"ledger": {"server": server, "reset": "reset_entries"}}
        async with shop.sessions.begin() as session:
            await put_ledger(session, shop.project_id, trial, production)
            await projects.change_settings(session, shop.project_id, {"staging": staging})
        yield live, trial


async def examine(shop: TrainingProject, *scenarios: str) -> str:
    """Make a version of the exam `mine`, of these kinds. Its digest."""
    tasks = [NewExamTask(instruction=f"examine {each}", scenario=each, check_code=CHECK) for each in scenarios]
    async with shop.sessions.begin() as session:
        return (await exams.put(session, shop.project_id, "mine", ExamSource.SUBMITTED, tasks)).digest


async def test_rollouts_on_staging_reset_it_and_draw_from_nothing_that_is_examined(
    shop: TrainingProject, ledgers: tuple[Ledger, TrialLedger]
) -> None:
    live, trial = ledgers
    await shop.serve(1.0, 0.0, scenarios=4, check_code=CHECK)
    await examine(shop, "kind 0", "kind 1")
    job = await shop.job(kind="rollout", environment=STAGING, steps=1, pairs=4, group=2, chain=1)
    async with open_run_environment(job, shop.sessions, ProgressRecorder()) as opened:
        assert opened is not None
        drawn = {each.id for each in opened.environment.scenarios("train", 9, 1)}
        examined = {each.id for each in opened.environment.scenarios("validation", 9, 1)}
    assert (drawn, examined) == ({"kind 2", "kind 3"}, {"kind 0", "kind 1"})
    assert trial.resets == 0
    result = await train(job, ProgressRecorder())
    assert trial.resets == 4  # of two kinds two rollouts each
    assert (live.entries, live.reads) == ([], 0)
    assert result.data == {"tasks": 8, "drawn_from": 4, "dropped": {"held_out": 4}}
    async with shop.sessions() as session:
        learned = (await session.scalars(select(tables.RunTask.task_id))).all()
        repeated = select(tables.Task.id).where(tables.Task.scenario.in_(["kind 2", "kind 3"]))
        assert set(learned) == set((await session.scalars(repeated)).all()), "their erasure names the run"


@pytest.mark.usefixtures("ledgers")
async def test_rollouts_without_a_task_to_draw_from_say_why(shop: TrainingProject) -> None:
    await shop.serve(1.0, scenarios=2)
    await shop.serve(1.0, scenarios=1, check_code=CHECK)
    await examine(shop, "kind 0")
    failure = await shop.failure(await shop.job(kind="rollout", environment=STAGING, steps=1))
    assert "no tasks to roll out with on=staging, of 3 that are scored (2 held_out, 1 not_judged)" in failure


@pytest.mark.usefixtures("ledgers")
async def test_a_run_is_examined_on_the_version_that_it_names_and_learns_from_none_of_it(
    shop: TrainingProject,
) -> None:
    await shop.serve(1.0, scenarios=5, check_code=CHECK)
    first = await examine(shop, "kind 0", "kind 1")
    await examine(shop, "kind 2")
    named = f"{STAGING}&digest={first[:12]}"
    job = await shop.job(kind="rollout", environment=named, steps=1)
    async with open_run_environment(job, shop.sessions, ProgressRecorder()) as opened:
        assert opened is not None
        drawn = {each.id for each in opened.environment.scenarios("train", 9, 1)}
        examined = {each.id for each in opened.environment.scenarios("validation", 9, 1)}
    assert (drawn, examined) == ({"kind 3", "kind 4"}, {"kind 0", "kind 1"})
    assert (opened.about["exam"]["version"], opened.about["exam"]["digest"]) == (1, first)
    base = BaseModel(shop.settings.model, ChatTokenizer.load(shop.settings.model_dir), BASE)
    async with shop.sessions() as session:
        window = await read_window(session, shop.project_id, RunSettings(environment=named), base)
    held_out = [each.unusable is DropReason.HELD_OUT for each in window.tasks]
    assert held_out == [True, True, True, False, False]


@pytest.mark.parametrize(
    ("digest", "error"),
    [
        (
            "0" * 8,
            "has no exam 'mine' with the digest 00000000: GET /v1/exams/mine?version=NUMBER shows the digest",
        ),
        ("first", "exam: digest=first: 'first' does not match"),
    ],
)
async def test_a_run_that_names_an_unknown_version_is_refused(
    shop: TrainingProject, digest: str, error: str
) -> None:
    await examine(shop, "kind 0")
    job = await shop.job(kind="logged", steps=1, environment=f"exam?name=mine&digest={digest}")
    assert error in await shop.failure(job)


@pytest.mark.parametrize("kind", ["logged", "sft"])
async def test_a_run_with_nothing_to_learn_from_says_so_before_it_tries_a_check(
    shop: TrainingProject, ledgers: tuple[Ledger, TrialLedger], kind: str
) -> None:
    _, trial = ledgers
    await shop.serve(1.0, 0.0, scenarios=2, check_code=CHECK)
    await examine(shop, "kind 0", "kind 1")
    job = await shop.job(kind=kind, environment=STAGING, steps=1, gate_scenarios=30)
    assert "nothing to learn from in 4 tasks (4 held_out)" in await shop.failure(job)
    assert trial.resets == 0


async def test_a_server_that_cannot_be_reset_ends_a_run_before_it_trains(
    shop: TrainingProject, ledgers: tuple[Ledger, TrialLedger]
) -> None:
    await shop.serve(1.0, 0.0, scenarios=2, check_code=CHECK)
    await examine(shop, "kind 0")
    async with shop.sessions.begin() as session:
        staging = projects.settings_of(await projects.by_id(session, shop.project_id)).staging
        broken = msgspec.structs.replace(staging["ledger"], reset="add_entry")  # which needs arguments
        await projects.change_settings(
            session, shop.project_id, {"staging": msgspec.to_builtins({"ledger": broken})}
        )
    job = await shop.job(kind="logged", environment=STAGING, steps=1, gate_scenarios=30)
    assert "the staging server of ledger cannot be reset" in await shop.failure(job)
    assert ledgers[1].entries == []


def conversations(prompts: Sequence[str], **about: str) -> str:
    lines = [
        {"messages": [{"role": "user", "content": each}, {"role": "assistant", "content": "done"}], **about}
        for each in prompts
    ]
    return "".join(json.dumps(line) + "\n" for line in lines)


async def taught(shop: TrainingProject, lines: str, tmp_path: Path, **settings: str) -> Job:
    """A run that learns from these conversations."""
    data = tmp_path / "chats.jsonl"
    data.write_text(lines)
    return await shop.job(kind="sft", steps=1, data=str(data), **settings)


EXAMINED = "examine kind 0"


@pytest.mark.parametrize(
    ("prompt", "about"),
    [
        (EXAMINED, {}),
        (f"Please {EXAMINED}.", {}),
        (f"{EXAMINED}\nskills:\ngreet(name): say hello", {}),
        (f"ledger: what was written\n{EXAMINED}", {}),
        (f"The apps:\n\nledger\n\nTask: {EXAMINED}", {}),
        ("a prompt of another kind", {"instruction": EXAMINED}),
        ("a prompt of another kind", {"scenario": "kind 0"}),
    ],
)
async def test_conversations_of_what_is_examined_are_dropped_and_counted(
    shop: TrainingProject, tmp_path: Path, prompt: str, about: dict[str, str]
) -> None:
    await examine(shop, "kind 0")
    lines = conversations([prompt], **about) + conversations(["write a poem", "count the birds"])
    result = await train(await taught(shop, lines, tmp_path), ProgressRecorder())
    assert result.data["dropped"] == {"held_out": 1}
    assert (result.data["conversations"], result.data["trajectories"]) == (3, 2)


async def test_conversations_of_the_version_that_a_run_names_are_dropped(
    shop: TrainingProject, tmp_path: Path
) -> None:
    first = await examine(shop, "kind 0")
    await examine(shop, "kind 1")
    lines = conversations([EXAMINED, "write a poem", "count the birds"])
    result = await train(
        await taught(shop, lines, tmp_path, environment=f"exam?name=mine&digest={first}"), ProgressRecorder()
    )
    assert result.data["dropped"] == {"held_out": 1}


async def test_kinds_that_the_project_holds_out_are_dropped_before_any_was_served(
    shop: TrainingProject, tmp_path: Path
) -> None:
    async with shop.sessions.begin() as session:
        await projects.change_settings(session, shop.project_id, {"holdout_percent": 40})
    prompts = [f"write poem {number}" for number in range(20)]
    expected = sum(is_held_out(shop.project_id, kind_that_begins(each), 40) for each in prompts)
    result = await train(await taught(shop, conversations(prompts), tmp_path), ProgressRecorder())
    assert result.data["dropped"] == {"held_out": expected}


async def test_a_file_of_nothing_but_what_is_examined_teaches_nothing(
    shop: TrainingProject, tmp_path: Path
) -> None:
    await examine(shop, "kind 0")
    failure = await shop.failure(await taught(shop, conversations([EXAMINED]), tmp_path))
    assert "candidates are examined on the tasks of all 1 conversations: lower `holdout_percent`" in failure
