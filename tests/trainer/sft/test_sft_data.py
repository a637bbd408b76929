"""The examples of a supervised run, from a file or from served tasks; and its progress."""

import json
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
import torch
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import InvalidError
from app.base.run_settings import RunKind, RunSettings
from app.base.settings import Settings
from app.base.values import BASE, Json
from app.db import results
from app.db.database import Sessions
from app.engine.tokenizer import ChatTokenizer
from tests.support.rows import project_row
from tests.support.served_project import ServedProject
from tests.support.tiny_model import make_model_dir
from tests.support.trajectory_samples import sample_of
from trainer.rewards import BaseModel
from trainer.run_job import Job, RunCancelledError
from trainer.runs.sft import load_examples, train_on_examples
from trainer.sft.samples import TOO_LONG

CPU = torch.device("cpu")
FILE = {"messages": [{"role": "user", "content": "do it"}, {"role": "assistant", "content": "done"}]}


class Steps:
    """Records the progress of a run. Implements `RunProgress`."""

    def __init__(self, cancel_at: int = 0) -> None:
        self.reported: list[tuple[int, int, dict[str, Json]]] = []
        self._cancel_at = cancel_at

    def part(self, phase: str, done: int, total: int) -> None:
        """Not of interest here."""

    async def step(self, index: int, total: int, metrics: dict[str, Json]) -> None:
        self.reported.append((index, total, metrics))
        if index == self._cancel_at:
            raise RunCancelledError("enough")

    async def hold(self, session: AsyncSession) -> None:
        """Nothing else claims the run."""


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return make_model_dir(tmp_path_factory.mktemp("tiny"), spread=0.05)


@pytest.fixture(scope="module")
def base(model_dir: Path) -> BaseModel:
    return BaseModel("tiny", ChatTokenizer.load(model_dir), BASE)


@pytest.fixture
async def job(sessions: Sessions, tmp_path: Path, model_dir: Path) -> Callable[..., Job]:
    async with sessions() as session:
        shop = await project_row(session)
        await session.commit()

    def make(project: UUID | None = None, **settings: Any) -> Job:
        kind: dict[str, Any] = {"kind": RunKind.SFT, "steps": 4, "lora_rank": 2, "micro_batch_tokens": 256}
        return Job(
            id=uuid4(),
            project_id=project or shop.id,
            project="shop",
            settings=RunSettings(**(kind | settings)),
            directory=tmp_path / "run",
            deployment=Settings(model=str(model_dir), data_dir=tmp_path, data_prefixes=str(tmp_path)),
        )

    return make


async def record(task_ids: Collection[UUID]) -> bool:  # noqa: ARG001
    """None of these tasks is ever erased."""
    return True


def write(path: Path, *lines: Any) -> str:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


async def test_the_chats_of_a_file_become_samples(
    sessions: Sessions, base: BaseModel, job: Callable[..., Job], tmp_path: Path
) -> None:
    long = {"messages": [FILE["messages"][0], {"role": "assistant", "content": "x" * 600}]}
    examples = await load_examples(job(data=write(tmp_path / "chats.jsonl", FILE, long)), sessions, base, record)
    assert examples.data == {"conversations": 2, "trajectories": 1, "tokens": 5, "dropped": {TOO_LONG: 1}}
    (sample,) = examples.samples
    learned = [token for token, own in zip(sample.ids, sample.sampled, strict=True) if own]
    assert base.tokenizer.decode(learned) == "done<|im_end|>"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([FILE, {"messages": []}], r"chats\.jsonl, line 2: the conversation must end with an answer"),
        ([FILE, {"messages": [FILE["messages"][0], {"role": "assistant", "content": "<|im_end|>"}]}],
         r"chats\.jsonl, conversation 2: an answer contains <\|im_end\|>"),
        ([], r"chats\.jsonl holds no conversation"),
    ],
)  # fmt: skip
async def test_a_file_that_does_not_fit_is_named_with_its_line(
    sessions: Sessions, base: BaseModel, job: Callable[..., Job], tmp_path: Path, lines: list[Any], message: str
) -> None:
    with pytest.raises(InvalidError, match=f"^{tmp_path}/{message}"):
        await load_examples(job(data=write(tmp_path / "chats.jsonl", *lines)), sessions, base, record)


async def test_without_a_file_the_best_served_tasks_become_samples(
    sessions: Sessions, session: AsyncSession, base: BaseModel, job: Callable[..., Job]
) -> None:
    shop = ServedProject(session, await project_row(session), base.tokenizer)
    good = await shop.task(1.0)
    await shop.task(0.0)
    await session.commit()
    examples = await load_examples(job(shop.project.id), sessions, base, record)
    assert examples.samples == [sample_of(await results.of_task(session, good.id))]
    assert examples.data["dropped"] == {"unsuccessful": 1}


async def test_a_run_without_data_says_what_is_missing(
    sessions: Sessions, session: AsyncSession, base: BaseModel, job: Callable[..., Job]
) -> None:
    project = await project_row(session)
    await session.commit()
    with pytest.raises(InvalidError, match="nothing to learn from: no task ended in the window"):
        await load_examples(job(project.id), sessions, base, record)


async def test_a_retry_learns_from_the_examples_of_the_first_attempt(
    sessions: Sessions, base: BaseModel, job: Callable[..., Job], tmp_path: Path
) -> None:
    retried = job(data=write(tmp_path / "chats.jsonl", FILE))
    first = await load_examples(retried, sessions, base, record)
    write(tmp_path / "chats.jsonl", FILE, FILE)
    assert await load_examples(retried, sessions, base, record) == first


async def test_a_run_reports_its_steps_and_publishes_an_adapter(
    sessions: Sessions, base: BaseModel, job: Callable[..., Job], tmp_path: Path
) -> None:
    steps = Steps()
    run = job(data=write(tmp_path / "chats.jsonl", FILE))
    learned = await train_on_examples(run, steps, await load_examples(run, sessions, base, record), None, CPU)
    assert [(index, total) for index, total, _ in steps.reported] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    metrics = steps.reported[0][2]
    assert metrics["tokens"] == 5
    assert metrics["loss"] > 4
    assert metrics["grad_norm"] > 0
    assert metrics["update_tokens_per_second"] == pytest.approx(5 / metrics["update_seconds"])
    assert learned.adapter.path == tmp_path / "adapters" / learned.adapter.hash
    assert learned.data["trajectories"] == 1


async def test_a_cancelled_run_publishes_no_adapter(
    sessions: Sessions, base: BaseModel, job: Callable[..., Job], tmp_path: Path
) -> None:
    steps = Steps(cancel_at=2)
    run = job(data=write(tmp_path / "chats.jsonl", FILE))
    examples = await load_examples(run, sessions, base, record)
    with pytest.raises(RunCancelledError):
        await train_on_examples(run, steps, examples, None, CPU)
    assert len(steps.reported) == 2
    assert sorted(os.listdir(tmp_path)) == ["chats.jsonl", "run"]
