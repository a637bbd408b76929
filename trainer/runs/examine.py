"""A run of kind `exam`: releases are examined on the same held-out scenarios. Nothing is trained, nothing changes.

An exam grows, and each gate examines a candidate on the version of that day. This run tells how releases of months
ago do on today's: their weights, with the prompt, the skills and the operations of today.
"""

import zlib
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from app.db import evaluations, models, releases
from app.db.database import Sessions
from app.db.evaluations import NewEvaluation
from app.errors import AdapterError, InvalidError
from app.records import Json
from app.run_settings import release_numbers
from trainer.evaluation.paired import Evaluator, ResultsByModel, evaluate_each
from trainer.evaluation.policy_metrics import Comparison, PolicyMetrics, compare, measure
from trainer.run_job import Job, Result, RunProgress
from trainer.runs.own_exam import RunEnvironment
from trainer.runs.served_evaluator import open_evaluator


class ExaminedRelease(msgspec.Struct, frozen=True, kw_only=True):
    """How one release did, and the difference to the active one, on the same scenarios."""

    id: UUID
    number: int
    model: str
    figures: PolicyMetrics
    difference: Comparison | None = None  # None for the active one


async def examine_releases(
    job: Job, progress: RunProgress, sessions: Sessions, environment: RunEnvironment
) -> Result:
    """The active release and those that the run names, each with its evaluation stored.

    Raises InvalidError for a release that is unknown or cannot be loaded, and where nothing is known of all.
    """
    active, others = await _chosen(job, sessions)
    chosen = [active, *others]
    async with open_evaluator(job, progress, sessions, environment) as evaluator:
        for release in chosen:
            await _load(sessions, evaluator, release)
        results = await evaluate_each(
            evaluator,
            list(dict.fromkeys(release.model for release in chosen)),
            scenarios=job.settings.gate_scenarios,
            seed=zlib.crc32(job.id.bytes),
        )
    if not results.models[active.model]:
        numbers = ", ".join(str(release.number) for release in chosen)
        raise InvalidError(
            f"of no scenario of {job.settings.environment} the results of releases {numbers} are all known: "
            "examine fewer of them, or on staging"
        )
    examined = [_examined(release, active, results) for release in chosen]
    async with sessions.begin() as session:
        await progress.hold(session)
        stored = await evaluations.of_run(session, job.id)  # by an attempt that ended right after it
        for each in () if stored else examined:
            await evaluations.add(session, job.project_id, _evaluation(job, each, results.settings))
    return Result(reason=", ".join(map(_in_words, examined)), evidence=_evidence(job, examined, results))


async def _chosen(job: Job, sessions: Sessions) -> tuple[models.Release, list[models.Release]]:
    """The active release, and the others."""
    async with sessions() as session:
        active = await releases.active(session, job.project_id)
        known = {each.number: each for each in await releases.of_project(session, job.project_id)}
    numbers = release_numbers(job.settings)
    if unknown := [number for number in numbers if number not in known]:
        raise InvalidError(
            f"the project {job.project} has no release {', '.join(map(str, unknown))}: GET /v1/releases lists them"
        )
    return active, [known[number] for number in numbers if number != active.number]


async def _load(sessions: Sessions, evaluator: Evaluator, release: models.Release) -> None:
    """Before any is examined, which takes long."""
    async with sessions() as session:
        adapter = await session.get(models.Adapter, release.model)
    if adapter is not None and adapter.base != evaluator.base:
        raise InvalidError(
            f"release {release.number} has an adapter for the base model {adapter.base}, but {evaluator.base} is "
            "served: examine others"
        )
    try:
        await evaluator.load(release.model)
    except AdapterError as error:
        raise InvalidError(f"release {release.number} cannot be examined: {error}") from error


def _examined(release: models.Release, active: models.Release, results: ResultsByModel) -> ExaminedRelease:
    own, served = results.models[release.model], results.models[active.model]
    return ExaminedRelease(
        id=release.id,
        number=release.number,
        model=release.model,
        figures=measure(own),
        difference=None if release is active else compare(own, served),
    )


def _evaluation(job: Job, found: ExaminedRelease, settings: dict[str, Json]) -> NewEvaluation:
    return NewEvaluation(
        model=found.model,
        environment=job.settings.environment,
        settings=settings,
        figures=msgspec.to_builtins(found.figures),
        run_id=job.id,
        release_id=found.id,
    )


def _evidence(job: Job, examined: Sequence[ExaminedRelease], results: ResultsByModel) -> dict[str, Json]:
    shown: list[Any] = msgspec.to_builtins(examined)
    return {"environment": job.settings.environment, "evaluation": results.settings, "releases": shown}


def _in_words(found: ExaminedRelease) -> str:
    sgc = found.figures.sgc
    solved = f"release {found.number} solves {sgc.mean:.1f} %"
    if found.difference is None:
        return f"{solved} of {found.figures.scenarios} scenarios"
    by = found.difference.sgc
    return f"{solved} ({by.mean:+.1f} [{by.low:+.1f}, {by.high:+.1f}] points)"
