"""What is known of a run of practice before it begins: whether its API is there, and what its hours buy."""

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis import store as apis
from app.base.errors import InvalidError
from app.db import runs, tables
from app.db.learning_outlook import Serving
from app.db.tables import RunState
from app.run_settings import RunKind, RunSettings, practised_api, read_settings


async def check_practised_api(session: AsyncSession, project: tables.Project, settings: RunSettings) -> None:
    """Raises InvalidError where the settings name practice on an API that the project lacks, or an MCP server."""
    name = practised_api(settings)
    if not name or await apis.is_documented(session, project.id, name):
        return
    documented = await apis.documented(session, project.id)
    there = f"it can practise {', '.join(sorted(documented))}" if documented else "register one"
    raise InvalidError(f"the project {project.name} has no API {name} with an OpenAPI document: {there}")


class _Practised(msgspec.Struct, frozen=True):
    """Of the result of an earlier run."""

    hours: float
    demonstrations: int
    supervised_steps: int
    rolled_out: int


async def estimate(session: AsyncSession, run: tables.TrainingRun, serving: Serving) -> str | None:
    """What the hours of a run of practice buy, by the latest one of the same model.

    None once it has ended, and for other kinds.
    """
    if run.kind is not RunKind.PRACTICE or run.state not in (RunState.QUEUED, RunState.RUNNING):
        return None
    settings = read_settings(run.settings)
    hours = f"in {settings.hours:g} h"
    found = await runs.latest_practice(session, run.project_id, serving.model)
    if found is None:
        return f"{hours}: how much it learns is measured in its first minutes"
    past = msgspec.convert(found, _Practised)
    part = settings.hours / past.hours
    return (
        f"{hours}: about {past.demonstrations * part:,.0f} demonstrations, "
        f"{past.supervised_steps * part:,.0f} supervised steps and {past.rolled_out * part:,.0f} tasks of "
        "rollouts, by the speed of the latest such run"
    )
