"""Whole runs, from experience to gate: their results, and that interrupted ones resume."""

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from app.base.model_catalog import SEED
from app.base.settings import Settings
from app.base.values import Probe
from app.db.database import Sessions
from app.db.tables import ExamSource, ReleaseState
from app.releases.exams import store as exams
from app.releases.exams.store import NewExamTask
from tests.support.sleepy_server import sleepy_server
from tests.support.tiny_adapter import TARGETS, make_adapter
from tests.support.training_project import ProgressRecorder, TrainingProject, chats, interrupted, on_this_machine
from trainer.learning.adapter import check_adapter
from trainer.run import train

LOGGED = {"kind": "logged", "steps": 3, "pairs": 1}
SFT = {"kind": "sft", "steps": 3, "micro_batch_tokens": 128}


@pytest.fixture
async def shop(committed: Sessions, database_url: str, tiny: Path, tmp_path: Path) -> TrainingProject:
    settings = on_this_machine(tiny, tmp_path, database_url, data_prefixes=str(tmp_path))
    return await TrainingProject.open(committed, settings)


async def test_a_logged_run_leaves_an_adapter_and_a_candidate_that_says_what_to_do(shop: TrainingProject) -> None:
    await shop.serve(1.0, 0.0, 0.5, scenarios=3)
    await shop.serve(None, 1.0, scenarios=1)
    job, recorder = await shop.job(**LOGGED), ProgressRecorder()
    result = await train(job, recorder)
    assert (sorted(recorder.metrics), recorder.total) == ([1, 2, 3], 3)
    assert {
        "outcome",
        "trained_fraction",
        "staleness",
        "grad_norm",
        "ratio_mean",
        "kl_to_start",
    } <= recorder.metrics[3].keys()
    assert (result.data["trajectories"], result.data["dropped"]) == (10, {"unscored": 1})
    assert await shop.learned(job) == ("base", 10)
    assert await shop.rate(job) == 1e-4
    [row] = await shop.adapters()
    assert (row.hash, row.base, row.rank, row.run_id) == (result.adapter, shop.settings.model, 4, job.id)
    assert row.project_id == shop.project_id
    assert check_adapter(shop.settings.data_dir / "adapters" / row.hash)
    assert msgspec.convert(row.probe, Probe).points
    [release] = await shop.of_run(job)
    assert (release.model, release.state, result.decision) == (row.hash, ReleaseState.CANDIDATE, "waiting")
    assert release.evidence is not None
    assert "set environment, or set gate=canary" in release.evidence["next"]
    assert (await shop.active()).number == 1


async def test_groups_beyond_the_last_step_are_dropped(shop: TrainingProject) -> None:
    await shop.serve(1.0, 0.0, scenarios=5)
    recorder = ProgressRecorder()
    data = (await train(await shop.job(**(LOGGED | {"steps": 2})), recorder)).data
    assert (data["groups"], data["trajectories"], data["dropped"]) == (2, 4, {"beyond_steps": 6})
    assert (recorder.total, recorder.metrics[1]["kept_fraction"], data["fraction"]) == (2, 0.4, 0.4)
    assert data["tokens"] == sum(recorder.metrics[index]["tokens"] for index in (1, 2))


async def test_a_supervised_run_learns_from_a_file(shop: TrainingProject, tmp_path: Path) -> None:
    job, recorder = await shop.job(**SFT, data=chats(tmp_path / "chats.jsonl")), ProgressRecorder()
    result = await train(job, recorder)
    assert (sorted(recorder.metrics), result.data["conversations"]) == ([1, 2, 3], 6)
    [row] = await shop.adapters()
    assert row.hash == result.adapter
    assert msgspec.convert(row.probe, Probe).points
    [release] = await shop.of_run(job)
    assert (release.id, release.model) == (result.release_id, result.adapter)


@pytest.mark.parametrize(("settings", "left"), [(LOGGED, [3]), (SFT, [1, 2, 3])], ids=["logged", "sft"])
async def test_an_interrupted_run_ends_with_the_adapter_of_an_uninterrupted_one(
    shop: TrainingProject, settings: dict[str, Any], left: list[int]
) -> None:
    await shop.serve(1.0, 0.0, scenarios=3)
    straight = await train(await shop.job(**settings), ProgressRecorder())
    job, again = await shop.job(**settings), ProgressRecorder()
    await interrupted(job, at=2)
    await shop.serve(1.0, 0.0)  # for the next run
    await shop.activate("another")  # it began with the weights that served then
    assert (await train(job, again)).adapter == straight.adapter
    assert sorted(again.metrics) == left
    assert (await shop.learned(job))[0] == "base"


@pytest.mark.parametrize(
    ("settings", "tasks", "staleness"), [(LOGGED, 6, {"1": 2}), (SFT, 3, None)], ids=["logged", "sft"]
)
async def test_a_run_that_died_before_its_first_step_records_the_adapter_that_it_continues_now(
    shop: TrainingProject, tiny: Path, settings: dict[str, Any], tasks: int, staleness: dict[str, int] | None
) -> None:
    await shop.serve(1.0, 0.0, scenarios=3)
    job, adapter = await shop.job(**settings, max_staleness=1), "f" * 32
    await interrupted(job, at=1)
    for path in (job.directory / "start", *job.directory.glob("*.checkpoint")):
        path.unlink()
    make_adapter(
        tiny, shop.settings.data_dir / "adapters" / adapter, seed=1, targets=[*TARGETS, "k_proj", "gate_proj"]
    )
    await shop.activate(adapter)
    again = ProgressRecorder()
    await train(job, again)
    assert await shop.learned(job) == (adapter, tasks)
    assert again.metrics[1].get("staleness") == staleness, "what the base sampled is stale now"


class WatchingExecutor(ThreadPoolExecutor):
    """Counts the transactions of a database that wait whenever a thread begins to compute."""

    def __init__(self, database_url: str) -> None:
        super().__init__()
        self.waiting: list[int] = []
        self._url = database_url.replace("+psycopg", "")

    def submit(self, work: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        def watched() -> Any:
            with psycopg.connect(self._url, autocommit=True) as connection:
                row = connection.execute(
                    "SELECT count(*) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND state = 'idle in transaction'"
                ).fetchone()
            assert row is not None
            self.waiting.append(row[0])
            return work(*args, **named)

        return super().submit(watched)


@pytest.mark.parametrize("settings", [LOGGED, SFT], ids=["logged", "sft"])
async def test_no_transaction_waits_while_a_run_computes_what_it_learns_from(
    shop: TrainingProject, database_url: str, settings: dict[str, Any]
) -> None:
    """The database ends those that wait for long."""
    await shop.serve(1.0, 0.0, scenarios=3)
    async with shop.sessions.begin() as session:
        examined = [NewExamTask(instruction="say goodbye", scenario="goodbyes")]
        await exams.put(session, shop.project_id, "mine", ExamSource.LOG, examined)
    executor = WatchingExecutor(database_url)
    asyncio.get_running_loop().set_default_executor(executor)
    await interrupted(await shop.job(**settings, environment="exam?name=mine"), at=1)
    assert executor.waiting
    assert not any(executor.waiting)


@pytest.mark.slow
async def test_a_rollout_run_resumes_and_its_adapter_is_evaluated(
    committed: Sessions, database_url: str, tmp_path: Path
) -> None:
    """The seed policy in the office; it need not get better in two tiny steps."""
    with sleepy_server() as server:
        settings = Settings(
            model=SEED,
            data_dir=tmp_path,
            database_url=database_url,
            engine_device="cpu",
            engine_urls=server.url,
            engine_sleep="update",
        )
        await _roll_out_and_evaluate(await TrainingProject.open(committed, settings), tmp_path)
        assert server.asked == ["/sleep?level=1&mode=keep", "/wake_up"] * 2, "for each update, not for rollouts"


async def _roll_out_and_evaluate(shop: TrainingProject, directory: Path) -> None:
    practice = {
        "kind": "rollout",
        "environment": "office",
        "steps": 2,
        "pairs": 3,
        "group": 4,
        "gate_scenarios": 30,
    }
    job, recorder = await shop.job(**practice), ProgressRecorder()
    await interrupted(job, at=1)
    assert await shop.of_run(job) == []
    result = await train(job, recorder)
    assert (sorted(recorder.metrics), recorder.total) == ([2], 2)
    assert {"reward_1", "reward_2", "write_rate", "rollout_tokens_per_second"} <= recorder.metrics[2].keys()
    [row] = await shop.adapters()
    assert (row.hash, row.base, row.run_id) == (result.adapter, "seed", job.id)
    assert len(msgspec.convert(row.probe, Probe).points) == 8
    assert check_adapter(directory / "adapters" / row.hash)
    [release] = await shop.of_run(job)
    assert release.evidence is not None
    passed = release.evidence["verdict"] == "promote"
    assert release.state is (ReleaseState.PASSED if passed else ReleaseState.REJECTED)
    assert (await shop.active()).number == 1
    assert release.evidence["candidate"]["scenarios"] == release.evidence["incumbent"]["scenarios"] == 30
    assert len(json.loads((job.directory / "gate.json").read_text())["candidate"]) == 90
