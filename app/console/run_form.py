"""The form of a run's settings, out of their type: the common ones first, the others by section."""

from functools import cache
from typing import NamedTuple

from sqlalchemy.ext.asyncio import AsyncSession

from app.base import plugins
from app.db import datasets, environments, tables
from app.run_settings import RunSettings
from app.web.forms import SettingField, entered_values, setting_groups

_COMMON = (
    "kind",
    "environment",
    "hours",
    "releases",
    "steps",
    "data",
    "start",
    "reward",
    "canary_percent",
    "promote",
)
_MOST_DATASETS = 50


class FieldGroup(NamedTuple):
    """`common`: shown at once."""

    title: str
    fields: tuple[SettingField, ...]
    common: bool


@cache
def groups() -> tuple[FieldGroup, ...]:
    """
    >>> [group.title for group in groups()][:3]
    ['Common', 'The run', 'Experience']
    """
    fields = setting_groups(RunSettings)[0].fields
    by_name = {field.name: field for field in fields}
    others = [field for field in fields if field.name not in _COMMON]
    sections = dict.fromkeys(field.section for field in others)
    return (
        FieldGroup("Common", tuple(by_name[name] for name in _COMMON), common=True),
        *(
            FieldGroup(name, tuple(each for each in others if each.section == name), common=False)
            for name in sections
        ),
    )


def entered(settings: RunSettings) -> dict[str, str]:
    return entered_values(settings)


async def choices(session: AsyncSession, project: tables.Project) -> dict[str, list[tuple[str, str]]]:
    """What may be entered into fields that take a name, with a description."""
    installed = await environments.installed(session)
    rows = (await datasets.page(session, project.id, cursor=None, limit=_MOST_DATASETS)).items
    return {
        "environment": [(each.name, "") for each in installed],
        "retrieval": [(name, "") for name in plugins.names("sage.retrieval")],
        "reward": [(name, "") for name in plugins.names("sage.rewards")],
        "data": [(str(row.id), row.name) for row in rows],
    }
