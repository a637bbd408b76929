"""A schedule says at once when its runs cannot learn anything, and what to set; else how many scores they get."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.run_settings import RunKind, RunSettings
from app.base.values import ScoreSource, hosted
from app.db import tables
from app.db.database import Sessions
from app.db.tables import Exploration
from app.projects import store as projects
from app.runs import schedule
from app.runs.schedule import Outlook, Serving
from app.tasks import store as tasks
from tests.support.every_row import every_row

PERSON, JUDGE = ScoreSource.PERSON, ScoreSource.JUDGE
GREEDY, HOT, JUDGED = Serving(), Serving(temperature=1), Serving(judge="strict")


async def outlook_of(
    sessions: Sessions,
    name: str,
    *,
    serving: Serving = GREEDY,
    run: dict[str, Any] | None = None,
    scored: dict[tuple[ScoreSource, Exploration | None], int] | None = None,
    days_ago: float = 1,
    hours: float | None = None,
    **project: Any,
) -> Outlook:
    async with sessions.begin() as session:
        owner = await projects.create(session, name)
        await projects.change_settings(session, owner.id, project)
        for (source, exploration), count in (scored or {}).items():
            for _ in range(count):
                task = await tasks.submit(session, owner.id, tasks.NewTask(instruction="x"))
                task.exploration = exploration
            ended = {"finished_at": datetime.now(UTC) - timedelta(days=days_ago), "score": 1.0}
            open_tasks = update(tables.Task).where(tables.Task.project_id == owner.id, tables.Task.score.is_(None))
            await session.execute(open_tasks.values(**ended, score_source=source))
        new = schedule.ScheduleRequest(
            every_scored_tasks=300, every_hours=hours, settings=RunSettings(**run or {})
        )
        return await schedule.outlook(session, await schedule.put(session, owner.id, new), serving)


async def test_each_setting_that_makes_learning_impossible_is_named_with_the_remedy(sessions: Sessions) -> None:
    some = {(PERSON, None): 8}
    rows: dict[str, tuple[dict[str, Any], str]] = {
        "sound": ({"scored": some}, ""),
        "greedy": ({"scored": some, "explore_percent": 0}, "raise the project's explore_percent"),
        "greedy-but-served-at-1": ({"scored": some, "explore_percent": 0, "serving": HOT}, ""),
        "imitation-needs-no-exploration": ({"scored": some, "explore_percent": 0, "run": {"kind": "sft"}}, ""),
        "practice-needs-no-scores": ({"run": {"kind": "rollout", "environment": "office"}}, ""),
        "a-file-needs-no-scores": ({"run": {"kind": "sft", "data": "x"}}, ""),
        "unscored": ({}, "submit tasks with a check"),
        "scored-long-ago": ({"scored": some, "days_ago": 8}, "submit tasks with a check"),
        "verified": ({"verifier": {"url": "https://example.com", "secret": "whsec_" + "A" * 40}}, ""),
        "judged": ({"serving": JUDGED, "hours": 5}, "judge_agreement"),
        "judged-by-scores": ({"scored": {(JUDGE, None): 8}, "judge_agreement": 0}, "set every_hours"),
        "trusted": ({"serving": JUDGED, "hours": 5, "judge_agreement": 0}, ""),
        "writing": ({"scored": {(PERSON, None): 60, (PERSON, Exploration.STOPPED): 20}}, "explore_writes"),
        "writing-at-times": ({"scored": {(PERSON, Exploration.READS): 1, (PERSON, Exploration.STOPPED): 20}}, ""),
    }  # fmt: skip
    found = {name: await outlook_of(sessions, name, **given) for name, (given, _) in rows.items()}
    with every_row() as row:
        for name, (_, expected) in rows.items():
            with row(name):
                assert [expected in problem for problem in found[name].problems] == [True] * bool(expected)


async def test_the_plan_is_the_share_that_explores_of_the_scores_of_a_week(sessions: Sessions) -> None:
    scored: dict[tuple[ScoreSource, Exploration | None], int] = {
        (PERSON, None): 40,
        (ScoreSource.CHECK, None): 20,
        (JUDGE, None): 9,
    }
    rows: dict[str, tuple[dict[str, Any], int]] = {
        "default": ({}, 15),
        "more": ({"explore_percent": 50}, 30),
        "half to the end": ({"more": {(PERSON, Exploration.READS): 10, (PERSON, Exploration.STOPPED): 10}}, 10),
        "hardly known": ({"more": {(PERSON, Exploration.READS): 3, (PERSON, Exploration.STOPPED): 3}}, 16),
        "kept out of it": ({"more": {(PERSON, Exploration.NO): 40}}, 25),
        "all": ({"serving": HOT}, 60),
        "imitated": ({"run": {"kind": "sft"}}, 60),
    }
    found = {}
    for name, (given, _) in rows.items():
        every = scored | given.pop("more", {})
        found[name] = await outlook_of(sessions, name, scored=every, **given)
    with every_row() as row:
        for name, (_, expected) in rows.items():
            with row(name):
                assert found[name].scores_per_week == expected


@pytest.mark.parametrize(("kind", "problems"), [("logged", 1), ("sft", 0)])
async def test_a_hosted_model_that_serves_leaves_nothing_for_runs_that_need_logprobs(
    session: AsyncSession, kind: str, problems: int
) -> None:
    owner = await projects.create(session, "hosted", hosted(UUID(int=7)))
    for _ in range(8):
        task = await tasks.submit(session, owner.id, tasks.NewTask(instruction="x"))
        ended = {"finished_at": datetime.now(UTC), "score": 1.0, "score_source": PERSON}
        await session.execute(update(tables.Task).where(tables.Task.id == task.id).values(ended))
    new = schedule.ScheduleRequest(every_scored_tasks=300, settings=RunSettings(kind=RunKind(kind)))
    found = await schedule.outlook(session, await schedule.put(session, owner.id, new), GREEDY)
    assert [each for each in found.problems if "the hosted model that serves has no token ids" not in each] == []
    assert (len(found.problems), found.scores_per_week > 0) == (problems, not problems)
