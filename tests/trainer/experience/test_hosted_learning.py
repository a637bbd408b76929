"""What runs learn from tasks of a hosted model: supervised ones its answers, in the prompt of their own model."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

from app.agent.prompts import PROFILES, Compact, Full, hosted_prompt
from app.apis import store as apis
from app.apis.listing import ListedApp
from app.base.errors import InvalidError
from app.base.run_settings import RunKind, RunSettings
from app.base.settings import Settings
from app.base.values import BASE, CountedTokens, Policy, Task, Trajectory, Turn, hosted, hosted_id
from app.db import results, tables
from app.db.database import Sessions
from app.engine.tokenizer import ChatTokenizer
from app.releases import manifest_store
from app.releases import store as releases
from app.sandbox.protocol import Observation, RunStop
from tests.support.every_row import every_row
from tests.support.ledger import Ledger
from tests.support.rows import project_row, trajectory_of
from tests.support.scripted_engine import END, block, byte_tokenizer
from tests.support.served_project import ServedProject
from trainer.experience import read_logged
from trainer.learning.batch import Sample
from trainer.rewards import ADVICE, BaseModel, DropReason
from trainer.run_job import Job
from trainer.runs.sft import load_examples
from trainer.runs.start import find_start
from trainer.sft.samples import hosted_samples, observation_of

MODEL = hosted(UUID(int=7))
DONE = "apis.supervisor.complete_task()"
TRACEBACK = 'Traceback (most recent call last):\n  File "<turn 1>", line 1\n    f()\nKeyError: 3'
LEDGER = Ledger().document("http://ledger.test")


def hosted_turn(code: str, observation: str = "", outcome: str = "ok", **more: Any) -> Turn:
    counted = CountedTokens(prompt=90, generated=9)
    shown: dict[str, Any] = {
        "observation": observation,
        "outcome": outcome,
        "prompt": hosted_prompt(),
        "counted": counted,
    }
    return Turn(context_ids=(), sampled_ids=(), logprobs=(), text=block(code), **(shown | more))


def rollout(*turns: Turn) -> Trajectory:
    plain = trajectory_of(tables.Task(id=uuid4(), instruction="write hello"), *turns)
    return msgspec.structs.replace(plain, task=Task(plain.task.id, "write hello"), policy=Policy(MODEL))


def learned(tokenizer: ChatTokenizer, sample: Sample) -> str:
    return tokenizer.decode([token for token, own in zip(sample.ids, sample.sampled, strict=True) if own])


def test_what_the_full_profile_shows_of_a_run_is_read_back() -> None:
    seen = [
        Observation(stdout=""),
        Observation(stdout="3\nError:\n4\n"),
        Observation(stdout="", error=TRACEBACK, stop=RunStop.ERROR),
        Observation(stdout="3\n", error=TRACEBACK, stop=RunStop.ERROR),
        *(Observation(stdout="3\n", stop=stop, alive=alive) for stop in RunStop for alive in (True, False)),
    ]
    with every_row() as row:
        for each in seen:
            with row(each):
                turn = hosted_turn("f()", Full().observation(each), each.stop.value, alive=each.alive)
                for profile in PROFILES.values():
                    assert profile.observation(observation_of(turn)) == profile.observation(each)


def test_its_answers_follow_the_prompt_of_the_model_that_is_trained(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer(tmp_path)
    failed = hosted_turn("f()", f"Error:\n{TRACEBACK}", "error")
    done = hosted_turn(DONE, "Output: none.")
    made = rollout(hosted_turn("print(1)", "Output:\n1", thought="I print"), failed, done)
    [sample] = hosted_samples(made, Compact(), (), tokenizer)
    said = [("user", "write hello"), ("assistant", block("print(1)")), ("user", "1")]
    said += [("assistant", block("f()")), ("user", "KeyError: 3"), ("assistant", block(DONE))]
    whole = "\n".join(f"<|im_start|>{role}\n{text}{END}" for role, text in said)
    assert tokenizer.decode(sample.ids) == whole
    assert learned(tokenizer, sample) == f"{block('print(1)')}{END}{block(DONE)}{END}"
    apps = [ListedApp("mail", "mails", ("send(to) -> id",))]
    [full] = hosted_samples(made, Full(), apps, tokenizer)
    assert "apis.mail.send(to) -> id" in tokenizer.decode(full.ids)


def test_what_the_model_cannot_represent_is_no_example(tmp_path: Path) -> None:
    short = byte_tokenizer(tmp_path / "short", max_length=60)
    assert hosted_samples(rollout(hosted_turn("print(1)")), Compact(), (), short) == []
    reserved = rollout(hosted_turn(f"print('{END}')"))
    assert hosted_samples(reserved, Compact(), (), byte_tokenizer(tmp_path / "long")) == []


@pytest.fixture
async def shop(session: AsyncSession, tmp_path: Path) -> ServedProject:
    """A project with a hosted policy, which did one task well and one badly, as the model server's did before."""
    shop = ServedProject(session, await project_row(session), byte_tokenizer(tmp_path / "model"))
    await apis.put(session, shop.project.id, "ledger", source="upload", document=LEDGER, digest="1")
    (await releases.active(session, shop.project.id)).prompt = "the local prompt"
    await shop.task(1.0)
    await shop.task(0.0)
    entry = {"url": "http://tables.test/v1", "model": "m-1", "trusted": True}
    session.add(tables.HostedModel(id=hosted_id(MODEL), project_id=shop.project.id, name="claude", **entry))
    release = await shop.release(MODEL)
    release.prompt = hosted_prompt()
    for score in (1.0, 0.0):
        row = await shop.task(score, release_id=release.id, scenario="others")
        await results.save(session, shop.project.id, of_task(row, release))
    await session.commit()
    return shop


def of_task(row: tables.Task, release: tables.Release) -> Trajectory:
    plain = trajectory_of(row, hosted_turn(DONE, "Output: none."))
    task = msgspec.structs.replace(plain.task, scenario=row.scenario)
    return msgspec.structs.replace(plain, task=task, policy=Policy(MODEL, release.id), profile="full")


@pytest.fixture
def job(shop: ServedProject, tmp_path: Path) -> Callable[..., Job]:
    def make(**settings: Any) -> Job:
        return Job(
            id=uuid4(),
            project_id=shop.project.id,
            project="shop",
            settings=RunSettings(**({"kind": RunKind.SFT} | settings)),
            directory=tmp_path / "run",
            deployment=Settings(model=str(tmp_path / "model"), data_dir=tmp_path, prompt_profile="full"),
        )

    return make


async def record(task_ids: Collection[UUID]) -> bool:  # noqa: ARG001
    return True


async def test_a_supervised_run_learns_from_what_a_hosted_model_did_well(
    sessions: Sessions, shop: ServedProject, job: Callable[..., Job]
) -> None:
    examples = await load_examples(job(), sessions, BaseModel("seed", shop.tokenizer, BASE), record)
    assert (examples.data["trajectories"], examples.data["dropped"]) == (2, {"unsuccessful": 2})
    own, retold = examples.samples
    assert learned(shop.tokenizer, own) == block("print(1)")
    assert learned(shop.tokenizer, retold) == f"{block(DONE)}{END}"
    assert "apis.ledger.add_entry" in shop.tokenizer.decode(retold.ids)


async def test_a_supervised_run_learns_from_an_expert_whose_release_never_served(
    sessions: Sessions, session: AsyncSession, shop: ServedProject, job: Callable[..., Job]
) -> None:
    candidate = await releases.propose(session, shop.project.id, MODEL)
    row = await shop.task(1.0, release_id=candidate.id, scenario="demonstrated", reads_only=True, pinned=True)
    await results.save(session, shop.project.id, of_task(row, candidate))
    await session.commit()
    examples = await load_examples(job(), sessions, BaseModel("seed", shop.tokenizer, BASE), record)
    assert examples.data["trajectories"] == 3
    assert "apis.ledger.add_entry" in shop.tokenizer.decode(examples.samples[-1].ids)


@pytest.mark.usefixtures("shop")
async def test_a_supervised_run_counts_what_does_not_fit_its_model(
    sessions: Sessions, job: Callable[..., Job], tmp_path: Path
) -> None:
    short = BaseModel("seed", byte_tokenizer(tmp_path / "short", max_length=1000), BASE)
    examples = await load_examples(job(), sessions, short, record)
    assert (examples.data["trajectories"], examples.data["dropped"]) == (1, {"unsuccessful": 2, "unfit": 1})
    async with sessions.begin() as session:
        await session.execute(update(tables.Task).where(tables.Task.scenario == "greetings").values(score=0.0))
    again = msgspec.structs.replace(job(), directory=tmp_path / "again")
    with pytest.raises(InvalidError, match="nothing to learn from in 1 tasks of hosted models: train a model"):
        await load_examples(again, sessions, short, record)


async def test_a_run_of_logged_tasks_says_why_it_leaves_a_hosted_model_out(
    session: AsyncSession, shop: ServedProject
) -> None:
    base = BaseModel("seed", shop.tokenizer, BASE)
    found = await read_logged(session, shop.project.id, RunSettings(max_staleness=9, pairs=4), base)
    assert (found.data.trajectories, found.data.dropped) == (2, {"hosted": 2})
    assert "no token ids and logprobs" in ADVICE[DropReason.HOSTED]


async def test_a_run_goes_on_from_the_weights_that_served_before_the_hosted_model(
    sessions: Sessions, session: AsyncSession, shop: ServedProject, job: Callable[..., Job]
) -> None:
    assert await find_start(job(), sessions) is None
    await manifest_store.put(session, "a" * 32, base="another", rank=4, project_id=shop.project.id)
    await shop.release("a" * 32)
    await shop.release(MODEL)
    await session.commit()
    with pytest.raises(InvalidError, match="has an adapter for the base model another"):
        await find_start(job(), sessions)
