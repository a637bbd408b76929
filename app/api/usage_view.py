"""What a project uses, in responses."""

from datetime import datetime

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.console_links import ConsoleLinks
from app.db import projects, quotas, tables, usage
from app.project.project_settings import Limits

DAYS = 30


class UsageView(msgspec.Struct, frozen=True, kw_only=True):
    """`limits` are those that hold, the project's own or the server's, and `left` is what is left of each; null is
    none. Tokens, calls and cost are counted when a task ends.
    """

    project: str
    queued: int
    running: int
    today: usage.UsageCounts
    resets_at: datetime
    limits: Limits
    left: Limits
    days: list[usage.UsageOfDay]  #: newest first, without those on which nothing happened
    links: ConsoleLinks


async def view_usage(session: AsyncSession, project: tables.Project, defaults: Limits) -> UsageView:
    days = await usage.of_days(session, project.id, DAYS)
    now = await usage.clock(session)
    today = days[0] if days and days[0].day == now.date() else usage.UsageCounts()
    queued, running = await quotas.in_progress(session, project.id)
    limits = projects.settings_of(project).limits.over(defaults)
    used = {
        "queued_tasks": queued,
        "running_tasks": running,
        "tasks_per_day": today.submitted,
        "tokens_per_day": today.generated_tokens,
        "calls_per_day": today.calls,
        "cost_per_day": today.cost,
    }
    left = {
        name: max(0, limit - spent) for name, spent in used.items() if (limit := getattr(limits, name)) is not None
    }
    return UsageView(
        project=project.name,
        queued=queued,
        running=running,
        today=usage.UsageCounts(**{name: getattr(today, name) for name in usage.UsageCounts.__struct_fields__}),
        resets_at=usage.next_day(now),
        limits=limits,
        left=Limits(**left),
        days=days,
        links=ConsoleLinks.to("/console/usage", project.name),
    )
