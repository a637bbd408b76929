"""Which tasks a person is asked to score first."""

from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from app.db import projects, releases
from app.db.database import Sessions
from app.db.models import ReleaseState
from app.project.wanted_feedback import KindScores, Unscored, choose
from tests.api_app import ApiApp, open_api_app
from tests.scripted_engine import byte_tokenizer
from tests.served_project import ServedProject


def unscored(**kinds: int) -> list[Unscored]:
    return [Unscored(kind, on_trial=False) for kind, count in kinds.items() for _ in range(count)]


def kinds_of(tasks: list[Unscored], places: list[int]) -> list[str]:
    return [tasks[place].kind for place in places]


def test_a_kind_without_scores_comes_before_one_with_many() -> None:
    tasks = unscored(known=3, new=3)
    assert kinds_of(tasks, choose(tasks, {"known": KindScores(20, 10.0)}, 3)) == ["new"] * 3


def test_a_divided_kind_comes_before_one_that_is_settled() -> None:
    tasks = unscored(settled=3, divided=3)
    scores = {"settled": KindScores(10, 10.0), "divided": KindScores(10, 5.0)}
    assert kinds_of(tasks, choose(tasks, scores, 1)) == ["divided"]


def test_frequent_kinds_weigh_more_and_choices_are_spread() -> None:
    tasks = unscored(rare=1, often=8, common=8)
    asked = kinds_of(tasks, choose(tasks, {}, 6))
    assert Counter(asked) == {"often": 3, "common": 3}
    assert asked[:2] == ["often", "common"]


def test_a_release_on_trial_comes_first_and_its_newest_task() -> None:
    tasks = [*unscored(a=2), Unscored("a", on_trial=True), Unscored("a", on_trial=True)]
    assert choose(tasks, {}, 4) == [2, 3, 0, 1]


def test_no_task_is_asked_for_twice_and_none_beyond_those_there_are() -> None:
    tasks = unscored(a=3, b=2)
    assert sorted(choose(tasks, {"a": KindScores(3, 1.0)}, 50)) == [0, 1, 2, 3, 4]
    assert choose([], {}, 5) == []


@pytest.fixture
async def api(committed: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url) as opened:
        yield opened


async def test_the_route_lists_tasks_without_a_score_by_what_they_would_teach(api: ApiApp, tmp_path: Path) -> None:
    now: dict[str, Any] = {"finished_at": datetime.now(UTC)}
    async with api.sessions.begin() as session:
        served = ServedProject(session, await projects.by_id(session, api.demo.id), byte_tokenizer(tmp_path))
        for score in (1.0, 1.0, 1.0, None):
            await served.task(score, scenario="settled", **now)
        await served.task(None, scenario="new", instruction="what is new", **now)
        candidate = await releases.propose(session, api.demo.id, "0" * 32)
        candidate.state = ReleaseState.CANARY
        await session.flush()
        await served.task(None, scenario="settled", release_id=candidate.id, **now)
        await served.task(None, scenario="old", finished_at=datetime(2020, 1, 1, tzinfo=UTC))
    found = (await api.client.get("/v1/feedback/wanted")).json()
    assert [(each["scenario"], each["on_trial"], each["scores"], each["mean"]) for each in found] == [
        ("new", False, 0, None),
        ("settled", True, 3, 1.0),
        ("settled", False, 3, 1.0),
    ]
    assert found[0]["instruction"] == "what is new"
    assert found[1]["release"] == 2
    [first] = (await api.client.get("/v1/feedback/wanted", params={"limit": 1})).json()
    assert first == found[0]
    await api.client.post("/v1/feedback", json={"task_id": first["task_id"], "score": 1})
    assert len((await api.client.get("/v1/feedback/wanted")).json()) == 2


async def test_both_releases_of_a_canary_are_on_trial(api: ApiApp, tmp_path: Path) -> None:
    """Or the scores of one of them would be asked for more often."""
    async with api.sessions.begin() as session:
        served = ServedProject(session, await projects.by_id(session, api.demo.id), byte_tokenizer(tmp_path))
        began, active = datetime.now(UTC), await releases.active(session, api.demo.id)
        candidate = await releases.propose(session, api.demo.id, "0" * 32)
        candidate.state, candidate.canary_at = ReleaseState.CANARY, began
        await session.flush()
        for scenario, release, minutes in (("a", active, -1), ("b", active, 1), ("c", candidate, 1)):
            at = began + timedelta(minutes=minutes)
            await served.task(None, scenario=scenario, release_id=release.id, started_at=at, finished_at=at)
    found = (await api.client.get("/v1/feedback/wanted")).json()
    assert {each["scenario"]: each["on_trial"] for each in found} == {"a": False, "b": True, "c": True}
