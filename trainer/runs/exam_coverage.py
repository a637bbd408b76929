"""Whether the environment of the gate examines what a project does."""

from collections.abc import Collection, Iterator, Mapping
from typing import TypeAlias
from uuid import UUID

from app.apis.catalog import Catalog
from app.db import apis
from app.db.database import Sessions
from app.errors import InvalidError
from app.release.catalogs import Catalogs
from app.release.tool_documents import api_document
from app.run_settings import RunKind
from trainer.environment import Environment
from trainer.run_job import Job
from trainer.runs.own_exam import RunEnvironment

_SHARE = 0.9  # of an API's operations that the environment must have by name
_WORLDS = 20  # that are opened: the names may differ between them

_Names: TypeAlias = Mapping[str, Collection[Collection[str]]]
"""Of each API, for each operation the names that it is known by."""


async def check_coverage(job: Job, sessions: Sessions, found: RunEnvironment | None) -> None:
    """Raises InvalidError for a run whose gate would decide in a world without the project's APIs.

    Success there says nothing about the project's work. A project without APIs is not examined on anything else.
    An API of the same name is another one if the environment lacks more than a tenth of its operations.
    """
    if found is None or found.own or not job.settings.gate_scenarios or job.settings.foreign_exam:
        return
    own = _names(await _catalog(sessions, job.project_id))
    if lacking := await _lacking(found.environment, own):
        raise InvalidError(
            f"the environment {job.settings.environment} has {', and '.join(lacking)}, so its evaluation says "
            f"nothing about what the project {job.project} does there: {_advice(job)}"
        )


def _advice(job: Job) -> str:
    if job.settings.kind is RunKind.EXAM:
        return "name another environment, or set foreign_exam=true to examine releases there all the same"
    return (
        "set gate_scenarios=0 and try the candidate as a canary (gate=canary does by itself), or "
        "foreign_exam=true to let the gate decide all the same"
    )


async def _catalog(sessions: Sessions, project_id: UUID) -> Catalog:
    async with sessions() as session:
        documents = [await api_document(session, row) for row in await apis.of_project(session, project_id)]
    return await Catalogs(sessions).of(documents)


def _names(catalog: Catalog) -> _Names:
    return {
        app.name: [{each.name, *each.former_names} for each in app.operations.values()]
        for app in catalog.apps.values()
    }


async def _lacking(environment: Environment, own: _Names) -> list[str]:
    """What the environment has too little of, in words. Opens worlds until there is nothing."""
    there: dict[str, set[str]] = {}
    lacking = list(_too_few(own, there))
    for scenario in environment.scenarios("validation", _WORLDS, seed=0) if lacking else ():
        async with environment.open(scenario, scenario.tasks[0]) as world:
            for app in world.catalog.apps.values():
                there.setdefault(app.name, set()).update(app.operations)
        if not (lacking := list(_too_few(own, there))):
            break
    return lacking


def _too_few(own: _Names, there: Mapping[str, Collection[str]]) -> Iterator[str]:
    if absent := sorted(set(own) - set(there)):
        yield f"no {', '.join(absent)}"
    for app, operations in own.items():
        if app in there:
            known = sum(any(name in there[app] for name in names) for names in operations)
            if known < _SHARE * len(operations):
                yield f"only {known} of the {len(operations)} operations of {app}"
