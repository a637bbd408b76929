"""What a project uses: its limits with what is left of them, and each of the last days."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Final

import msgspec
from litestar import Controller, Response, get
from litestar.di import NamedDependency

from app.api.access import Db
from app.api.usage_view import DAYS, UsageView, view_usage
from app.console import formats
from app.console.column_charts import Column, ColumnChart, column_chart
from app.console.csv_file import csv_file
from app.console.visit import Visitor, page
from app.db import datasets, projects
from app.db.usage import UsageCounts, UsageOfDay
from app.project.project_settings import Limits

_LABELS: Final = {
    "queued_tasks": "Tasks that wait",
    "running_tasks": "Tasks that run at once",
    "tasks_per_day": "Tasks submitted today",
    "tokens_per_day": "Tokens generated today",
    "calls_per_day": "API calls today",
    "cost_per_day": "Cost of hosted models today",
    "dataset_bytes": "Uploaded datasets",
    "requests_per_minute": "Requests of a key in a minute",
}
_FORMATS: Final[dict[str, Callable[[Any], str]]] = {"dataset_bytes": formats.size, "cost_per_day": formats.money}
_COLUMNS: Final = UsageCounts.__struct_fields__


class LimitRow(msgspec.Struct, frozen=True, kw_only=True):
    """`used` is None where it is not counted for the project as a whole, or not shown to the key."""

    name: str
    label: str
    limit: float | None
    used: float | None
    own: bool  # of the project, not the server's default
    show: Callable[[Any], str]


class UsagePages(Controller):
    path = "/usage"
    opt = {"scope": "tasks"}  # noqa: RUF012

    @get()
    async def show(self, visit: Visitor, session: Db, limits: NamedDependency[Limits]) -> Response[str]:
        usage = await view_usage(session, visit.project, limits)
        own = projects.settings_of(visit.project).limits
        stored = await datasets.stored_bytes(session, visit.project.id) if visit.allows("admin") else None
        days = _days(usage)
        return page(
            visit,
            "usage.html",
            usage=usage,
            rows=[_row(usage, own, name, stored) for name in _LABELS],
            days=days,
            charts=list(_charts(days)),
        )

    @get("/days")
    async def file(self, visit: Visitor, session: Db, limits: NamedDependency[Limits]) -> Response[str]:
        days = _days(await view_usage(session, visit.project, limits))
        rows = [[f"{day.day}", *(getattr(day, name) for name in _COLUMNS)] for day in days]
        return csv_file(f"usage-{visit.project.name}", ["day", *_COLUMNS], rows)


def _days(usage: UsageView) -> list[UsageOfDay]:
    """Oldest first, with those on which nothing happened."""
    today = usage.resets_at.date() - timedelta(days=1)
    known = {each.day: each for each in usage.days}
    days = (today - timedelta(days=ago) for ago in range(DAYS - 1, -1, -1))
    return [known.get(day) or UsageOfDay(day=day) for day in days]


def _row(usage: UsageView, own: Limits, name: str, stored: int | None) -> LimitRow:
    used = {
        "queued_tasks": usage.queued,
        "running_tasks": usage.running,
        "tasks_per_day": usage.today.submitted,
        "tokens_per_day": usage.today.generated_tokens,
        "calls_per_day": usage.today.calls,
        "cost_per_day": usage.today.cost,
        "dataset_bytes": stored,
    }
    return LimitRow(
        name=name,
        label=_LABELS[name] + (_other(usage.today) if name == "cost_per_day" else ""),
        limit=getattr(usage.limits, name),
        used=used.get(name),
        own=getattr(own, name) is not None,
        show=_FORMATS.get(name, formats.count),
    )


def _other(today: UsageCounts) -> str:
    """The part of the cost that no list of tasks shows."""
    return f", {formats.money(today.other_cost)} of it for no task (trials, exams, …)" if today.other_cost else ""


def _charts(days: list[UsageOfDay]) -> Iterator[tuple[str, list[str], ColumnChart]]:
    """Title, columns of the numbers, and picture."""
    drawn = [
        ("Tasks that ended", ["done", "failed", "cancelled"], formats.count),
        ("Generated tokens", ["generated_tokens"], formats.count),
        ("API calls", ["calls"], formats.count),
    ]
    if any(day.cost for day in days):
        drawn.append(("Cost", ["cost"], formats.money))
    for title, names, show in drawn:
        columns = [Column(f"{day.day.day} {day.day:%b}", [getattr(day, name) for name in names]) for day in days]
        total = sum(sum(each.values) for each in columns)
        label = f"{title} by day: {show(total)} in {len(days)} days"
        shown = [name.replace("_", " ") for name in names]
        yield title, names, column_chart(label, shown, columns, show)
