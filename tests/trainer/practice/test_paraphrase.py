"""Lessons of practice in the words of a hosted model."""

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.base.values import Call
from app.db.database import Sessions
from app.engine.tokenizer import ChatTokenizer
from app.projects import store as projects
from app.projects import usage
from app.releases import hosted_models
from tests.support.odd_endpoint import OddEndpoint, Reply, refused, said
from tests.support.practice_documents import SENSORS
from tests.support.practised_project import practised_project
from tests.support.served_project import ServedProject
from tests.support.training_project import ProgressRecorder, TrainingProject
from trainer.environment import Scenario
from trainer.practice.environments import PracticeEnvironment, practice_on
from trainer.practice.paraphrase import Paraphraser, open_paraphraser, reworded
from trainer.run_job import Job
from trainer.runs.environment import open_run_environment
from trainer.runs.practice import demonstrate

KIND = "Would you be so kind? "
BATCHES_AHEAD = 8


def texts_of(sent: Mapping[str, Any]) -> list[str]:
    found: list[str] = json.loads(sent["messages"][1]["content"])["requests"]
    return found


def saying(texts: list[str]) -> Reply:
    return said(json.dumps({"requests": texts}), usage={"prompt_tokens": 90, "completion_tokens": 10})


def kindly(sent: Mapping[str, Any]) -> Reply:
    return saying([f"{KIND}{text}" for text in texts_of(sent)])


@pytest.fixture
async def endpoint() -> AsyncIterator[tuple[OddEndpoint, str]]:
    endpoint = OddEndpoint(kindly)
    async with endpoint.listening() as url:
        yield endpoint, url


@pytest.fixture
async def project(committed: Sessions, database_url: str, tmp_path: Path) -> TrainingProject:
    return await practised_project(committed, database_url, tmp_path)


async def job_with(project: TrainingProject, url: str) -> Job:
    """A run of practice whose lessons `wise` words."""
    async with project.sessions.begin() as session:
        prices = {"price_in": 3.0, "price_out": 15.0}
        await hosted_models.add(
            session, project.project_id, "wise", None, url=url, model="wise-1", trusted=True, **prices
        )
    return await project.job(
        kind="practice", environment="practice?api=sensors&paraphraser=wise", gate_scenarios=30
    )


async def reword(
    project: TrainingProject, url: str, batches: int = 1
) -> tuple[list[tuple[Scenario, Scenario]], int, str]:
    """Lessons and what became of them, how many were worded anew, and why none were any more."""
    environment = PracticeEnvironment(practice_on("sensors", SENSORS))
    pairs, count = list[tuple[Scenario, Scenario]](), 0

    def lessons(number: int) -> list[Scenario]:
        return list(environment.scenarios("train", 2, number))

    job = await job_with(project, url)
    async with (
        open_paraphraser(job, project.sessions, environment) as paraphraser,
        reworded(lessons, paraphraser) as worded,
    ):
        assert isinstance(paraphraser, Paraphraser)
        for number in range(batches):
            found, changed = await worded(number)
            pairs += zip(lessons(number), found, strict=True)
            count += changed
        return pairs, count, paraphraser.failure


async def test_lessons_are_learned_in_the_words_of_the_model_and_the_project_pays(
    project: TrainingProject, endpoint: tuple[OddEndpoint, str]
) -> None:
    asked, url = endpoint
    job = await job_with(project, url)
    kept = list[int]()
    async with open_run_environment(job, project.sessions, ProgressRecorder()) as opened:
        assert opened is not None
        assert isinstance(opened.environment, PracticeEnvironment)
        async with open_paraphraser(job, project.sessions, opened.environment) as paraphraser:
            found = await demonstrate(job, opened.environment, paraphraser, lambda: False, kept.append)
    assert (found.tried, found.paraphrased) == (24, 24)
    assert found.kept > 20, "experts do the same, however it is said"
    assert (kept, found.paraphraser_failure) == ([found.kept], "")
    first, second = (texts_of(each) for each in asked.requests[:2])
    assert set(first) != set(second), "each batch has tasks of its own"
    async with project.sessions() as session:
        assert (await usage.of_today(session, project.project_id)).cost > 0


async def test_the_model_is_shown_how_people_ask_and_nothing_else_of_their_tasks(
    project: TrainingProject, endpoint: tuple[OddEndpoint, str]
) -> None:
    asked, url = endpoint
    async with project.sessions.begin() as session:
        tokenizer = ChatTokenizer.load(project.settings.model_dir)
        served = ServedProject(session, await projects.by_id(session, project.project_id), tokenizer)
        for number, api in enumerate(["sensors", "sensors", "store", "sensors"]):
            call = Call(seq=0, turn=0, api=f"{api}.list", arguments={}, result=["an answer"])
            task = await served.task(instruction=f"hush no. {number}, will you", scenario=f"kind {number % 3}")
            await served.rollout(task, served.turn(calls=(call,)), answer="an answer")
    await reword(project, url)
    sent = json.loads(asked.requests[0]["messages"][1]["content"])
    assert sent["examples"] == ["hush no. 3, will you", "hush no. 1, will you"], "the newest of each scenario"
    assert "an answer" not in str(asked.requests)


async def test_an_exam_has_wordings_that_no_model_was_asked_for(
    project: TrainingProject, endpoint: tuple[OddEndpoint, str]
) -> None:
    asked, url = endpoint
    job = await job_with(project, url)
    async with open_run_environment(job, project.sessions, ProgressRecorder()) as opened:
        assert opened is not None
        assert all(opened.environment.scenarios("test", 4, 0))
    assert asked.requests == []


async def test_what_loses_a_value_or_adds_a_number_keeps_its_wording(
    project: TrainingProject, endpoint: tuple[OddEndpoint, str]
) -> None:
    asked, url = endpoint
    asked.answer = lambda sent: saying([f"{text} Do it 7 times over." for text in texts_of(sent)])
    pairs, count, failure = await reword(project, url)
    assert (count, failure) == (0, "")
    assert all(before == after for before, after in pairs)


async def test_only_the_words_of_a_task_change(
    project: TrainingProject, endpoint: tuple[OddEndpoint, str]
) -> None:
    _, url = endpoint
    pairs, count, _ = await reword(project, url, batches=3)
    assert count == 18
    for before, after in pairs:
        for own, other in zip(before.tasks, after.tasks, strict=True):
            assert other == msgspec.structs.replace(own, instruction=f"{KIND}{own.instruction}")


@pytest.mark.parametrize(
    ("reply", "batches", "cause"),
    [
        (refused("no such key", 401), 1, "no such key"),
        (said("I would rather not."), 3, "the paraphraser answered nonsense"),
        (saying(["one"]), 3, "the paraphraser gave 1 texts for 6 requests"),
    ],
)
async def test_a_model_that_fails_is_asked_no_more_and_lessons_go_on(
    project: TrainingProject, endpoint: tuple[OddEndpoint, str], reply: Reply, batches: int, cause: str
) -> None:
    asked, url = endpoint
    asked.answer = lambda _: reply
    pairs, count, failure = await reword(project, url, batches=20)
    assert (len(pairs), count) == (40, 0)
    assert all(before == after for before, after in pairs)
    assert cause in failure
    assert len(asked.requests) <= BATCHES_AHEAD + batches
