"""Which tasks a person is asked to score first."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from app.db import tables
from app.db.tables import ReleaseState
from app.projects import store as projects
from app.releases import store as releases
from app.releases import trials_store
from app.tasks import feedback
from app.tasks.feedback import KindScores, KindTrial, Unscored, choose
from tests.support.api_app import ApiApp
from tests.support.scripted_engine import byte_tokenizer
from tests.support.served_project import ServedProject


def unscored(**kinds: int) -> list[Unscored]:
    return [Unscored(kind, on_trial=False) for kind, count in kinds.items() for _ in range(count)]


def kinds_of(tasks: list[Unscored], places: list[int]) -> list[str]:
    return [tasks[place].kind for place in places]


def test_a_kind_without_scores_comes_before_one_with_many() -> None:
    tasks = unscored(known=3, new=3)
    assert kinds_of(tasks, choose(tasks, {"known": KindScores(20, 10.0)}, {}, 3)) == ["new"] * 3


def test_a_divided_kind_comes_before_one_that_is_settled() -> None:
    tasks = unscored(settled=3, divided=3)
    scores = {"settled": KindScores(10, 10.0), "divided": KindScores(10, 5.0)}
    assert kinds_of(tasks, choose(tasks, scores, {}, 1)) == ["divided"]


def test_frequent_kinds_weigh_more_and_choices_are_spread() -> None:
    tasks = unscored(rare=1, often=8, common=8)
    asked = kinds_of(tasks, choose(tasks, {}, {}, 6))
    assert Counter(asked) == {"often": 3, "common": 3}
    assert asked[:2] == ["often", "common"]


def test_a_release_on_trial_comes_first_and_its_newest_task() -> None:
    tasks = [*unscored(a=2), Unscored("a", on_trial=True), Unscored("a", on_trial=True)]
    assert choose(tasks, {}, {}, 4) == [2, 3, 0, 1]


def test_of_kinds_on_trial_that_comes_first_about_which_the_two_releases_are_undecided() -> None:
    tasks = [Unscored(kind, on_trial=True) for kind in ("decided", "known", "open") for _ in range(3)]
    scores = dict.fromkeys(("decided", "known", "open"), KindScores(40, 20.0))
    trials = {
        "decided": KindTrial(KindScores(8, 0.0), KindScores(8, 8.0)),
        "known": KindTrial(KindScores(16, 8.0), KindScores(16, 8.0)),
        "open": KindTrial(KindScores(8, 4.0), KindScores(8, 4.0)),
    }
    assert kinds_of(tasks, choose(tasks, scores, trials, 3)) == ["open"] * 3
    del trials["open"]
    assert kinds_of(tasks, choose(tasks, scores, trials, 1)) == ["open"], "it has no score in the trial"


def test_a_task_of_a_decided_kind_is_worth_hardly_more_on_trial() -> None:
    tasks = [*unscored(other=2), Unscored("decided", on_trial=True), Unscored("decided", on_trial=True)]
    scores = {"decided": KindScores(20, 10.0), "other": KindScores(18, 9.0)}
    trials = {"decided": KindTrial(KindScores(10, 0.0), KindScores(10, 10.0))}
    assert choose(tasks, scores, trials, 1) == [0]


def test_no_task_is_asked_for_twice_and_none_beyond_those_there_are() -> None:
    tasks = unscored(a=3, b=2)
    assert sorted(choose(tasks, {"a": KindScores(3, 1.0)}, {}, 50)) == [0, 1, 2, 3, 4]
    assert choose([], {}, {}, 5) == []


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
        ("settled", True, 3, 1.0),
        ("new", False, 0, None),
        ("settled", False, 3, 1.0),
    ]
    assert found[0]["release"] == 2
    assert found[1]["instruction"] == "what is new"
    [first] = (await api.client.get("/v1/feedback/wanted", params={"limit": 1})).json()
    assert first == found[0]
    await api.client.post("/v1/feedback", json={"task_id": first["task_id"], "score": 1})
    assert len((await api.client.get("/v1/feedback/wanted")).json()) == 2


async def begin_canary(session: AsyncSession, api: ApiApp) -> tuple[tables.Release, tables.Release, datetime]:
    """The active release, the canary, and when its trial began."""
    began, active = datetime.now(UTC), await releases.active(session, api.demo.id)
    candidate = await releases.propose(session, api.demo.id, "0" * 32)
    candidate.state, candidate.canary_at = ReleaseState.CANARY, began
    await session.flush()
    return active, candidate, began


async def test_both_releases_of_a_canary_are_on_trial(api: ApiApp, tmp_path: Path) -> None:
    """Or the scores of one of them would be asked for more often."""
    async with api.sessions.begin() as session:
        served = ServedProject(session, await projects.by_id(session, api.demo.id), byte_tokenizer(tmp_path))
        active, candidate, began = await begin_canary(session, api)
        for scenario, release, minutes in (("a", active, -1), ("b", active, 1), ("c", candidate, 1)):
            at = began + timedelta(minutes=minutes)
            await served.task(None, scenario=scenario, release_id=release.id, started_at=at, finished_at=at)
    found = (await api.client.get("/v1/feedback/wanted")).json()
    assert {each["scenario"]: each["on_trial"] for each in found} == {"a": False, "b": True, "c": True}


async def test_the_scores_of_a_trial_are_counted_by_kind_and_side(api: ApiApp, tmp_path: Path) -> None:
    async with api.sessions.begin() as session:
        served = ServedProject(session, await projects.by_id(session, api.demo.id), byte_tokenizer(tmp_path))
        active, candidate, began = await begin_canary(session, api)
        for scenario, release, score, minutes in (
            ("decided", active, 1.0, -1), *[("decided", active, 1.0, 1)] * 6,
            *[("open", active, 0.5, -1)] * 13, *[("decided", candidate, 0.0, 1)] * 6,
            ("decided", candidate, None, 1), ("open", candidate, None, 1),
        ):  # fmt: skip
            at = began + timedelta(minutes=minutes)
            await served.task(score, scenario=scenario, release_id=release.id, started_at=at, finished_at=at)
        trial = await trials_store.current(session, api.demo.id)
        assert trial is not None
        counted = await feedback.trials_by_kind(session, api.demo.id, trial)
    assert counted == {"decided": KindTrial(KindScores(6, 0.0), KindScores(6, 6.0))}
    found = (await api.client.get("/v1/feedback/wanted")).json()
    assert [(each["scenario"], each["scores"]) for each in found] == [("open", 13), ("decided", 13)]


async def test_tasks_without_a_scenario_count_by_their_instruction(api: ApiApp, tmp_path: Path) -> None:
    async with api.sessions.begin() as session:
        served = ServedProject(session, await projects.by_id(session, api.demo.id), byte_tokenizer(tmp_path))
        _, candidate, began = await begin_canary(session, api)
        at = began + timedelta(minutes=1)
        about: dict[str, Any] = {"release_id": candidate.id, "started_at": at, "finished_at": at}
        for score, instruction in ((1.0, "Pay  Iris"), (0.0, "pay iris"), (1.0, "call Bo"), (None, "pay Iris")):
            await served.task(score, scenario=None, instruction=instruction, **about)
        trial = await trials_store.current(session, api.demo.id)
        assert trial is not None
        counted = await feedback.trials_by_kind(session, api.demo.id, trial)
    assert counted == {"pay iris": KindTrial(KindScores(2, 1.0)), "call bo": KindTrial(KindScores(1, 1.0))}
    [found] = (await api.client.get("/v1/feedback/wanted")).json()
    assert (found["instruction"], found["scores"], found["mean"]) == ("pay Iris", 2, 0.5)


async def test_tasks_of_watched_weights_are_on_trial_under_each_release_that_has_them(
    api: ApiApp, tmp_path: Path
) -> None:
    async with api.sessions.begin() as session:
        served = ServedProject(session, await projects.by_id(session, api.demo.id), byte_tokenizer(tmp_path))
        before = await releases.active(session, api.demo.id)
        watched = await releases.propose(session, api.demo.id, "0" * 32)
        await releases.activate(session, watched.id)
        await trials_store.begin_watch(session, watched, before)
        again = await releases.activate(session, (await releases.propose(session, api.demo.id, "0" * 32)).id)
        assert again.watched_since is not None
        for scenario, release, minutes in (("a", before, -1), ("b", watched, 1), ("c", again, 2)):
            at = again.watched_since + timedelta(minutes=minutes)
            await served.task(None, scenario=scenario, release_id=release.id, started_at=at, finished_at=at)
    found = (await api.client.get("/v1/feedback/wanted")).json()
    assert {each["scenario"]: each["on_trial"] for each in found} == {"a": False, "b": True, "c": True}
