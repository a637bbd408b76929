"""How models are examined as they would serve now: beside the project's skills, found by the retrieval of serving.

At the end of a run its adapter is stored, and the gate evaluates it as a candidate release. A run of kind
`exam` examines releases on the same held-out scenarios: nothing is trained, nothing changes. An exam grows, and
each gate examines a candidate on the version of that day. This run tells how releases of months ago do on
today's: their weights, with the prompt, the skills and the operations of today.
"""

import zlib
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from hashlib import sha256
from typing import Any
from uuid import UUID

import msgspec

from app.agent.prompts import prompt_of
from app.apis.catalog import with_builtins
from app.base.errors import AdapterError, EngineRefusalError, InvalidError
from app.base.files import write_atomically
from app.base.run_settings import MIN_KNOWN, MIN_SCENARIOS, release_numbers
from app.base.values import Json
from app.db import tables
from app.db.database import Sessions
from app.engine.protocol import ChatModel
from app.projects import store as projects
from app.releases import manifest as release_manifest
from app.releases import manifest_store
from app.releases import store as releases
from app.releases.exams import store as exams
from app.releases.exams.store import NewEvaluation
from app.releases.hosted_models import HostedModels, charged
from app.releases.tools import Catalogs
from app.skills import store as skills
from app.skills.admission import has_proved_itself, stored_manifest
from app.skills.in_memory_library import GrownSkill
from app.skills.index_files import indexed
from app.skills.search import OFFERED, IndexedSkill
from app.skills.visibility import SkillVersion, newest_visible, owners_for
from trainer.evaluation.local import Evaluator, evaluation_settings, held_out, only_known
from trainer.evaluation.metrics import Comparison, PolicyMetrics, TaskResult, compare, measure
from trainer.learning.adapter import PublishedAdapter
from trainer.rollouts.episode import open_stack
from trainer.run_job import Job, Result, RunProgress
from trainer.runs.environment import RunEnvironment, too_little_own_work
from trainer.runs.gate import CandidateAdapter, Guard, evaluate_candidate
from trainer.runs.start import adapter_store, fetch_adapter


async def grown_skills(sessions: Sessions, project_id: UUID) -> list[GrownSkill]:
    """Of each name the version that tasks of nobody in particular are offered, with its source.

    Without skills of operations that are no longer what they were, which no task is offered either.
    """
    async with sessions() as session:
        embedder = await session.scalar(skills.common_embedder(project_id))
    visible = _visible([indexed(row) for row in await skills.read_changes(sessions, project_id, 0, embedder)])
    async with sessions.begin() as session:
        sources = await skills.sources(session, [each.offer.skill_id for each in visible])
        served = await release_manifest.begin_serving(session, project_id, None, None)
        stored = await skills.of_ids(session, list(sources))
    apis = with_builtins(await Catalogs(sessions).of(served.documents))
    manifests = {skill.id: manifest for skill in stored if not (manifest := stored_manifest(skill)).not_in(apis)}
    async with sessions() as session:
        is_open = projects.settings_of(await projects.by_id(session, project_id)).skills == "open"
        kept = [skill for skill in stored if skill.id in manifests and not is_open]  # else each is offered at once
        proven = {skill.id for skill in kept if await has_proved_itself(session, skill)}
    return [
        GrownSkill(
            indexed=msgspec.structs.replace(each, offer=msgspec.structs.replace(each.offer, source=sources[id_])),
            manifest=manifests[id_],
            proven=id_ in proven,
        )
        for each in visible
        if (id_ := each.offer.skill_id) in sources and id_ in manifests
    ]


def _visible(rows: list[IndexedSkill]) -> list[IndexedSkill]:
    versions: dict[str, list[SkillVersion]] = defaultdict(list)
    for each in rows:
        offer = each.offer
        versions[offer.name].append(SkillVersion(offer.skill_id, offer.version, each.owner, each.reach))
    seen = {newest_visible(of_name, owners_for("", None)) for of_name in versions.values()}
    return [each for each in rows if each.offer.skill_id in seen]


@asynccontextmanager
async def open_evaluator(
    job: Job, progress: RunProgress, sessions: Sessions, environment: RunEnvironment
) -> AsyncIterator[Evaluator]:
    """On the environment of a run, with the engines of the deployment or others. Raises EngineError."""
    grown, retrieval = await grown_skills(sessions, job.project_id), job.deployment.retrieval
    async with open_stack(environment.environment, retrieval, job.deployment, grown=grown) as stack:
        yield Evaluator(
            stack.agent,
            stack.engine,
            stack.environment,
            adapters=job.deployment.adapters_dir,
            new_library=stack.new_library,
            split=environment.examined,
            temperature=job.deployment.temperature,
            base=job.deployment.local_model,
            fetch=partial(fetch_adapter, job),
            report=partial(progress.part, "exam tasks"),
            open_hosted=partial(_open_hosted, job, sessions),
            about=environment.about | {"retrieval": retrieval, "skills_before": len(grown)},
        )


@asynccontextmanager
async def _open_hosted(job: Job, sessions: Sessions, model_id: UUID) -> AsyncIterator[ChatModel]:
    """What it costs counts for the project, whatever comes of the exam."""
    opened = HostedModels.of(job.deployment).open(sessions, model_id)
    async with charged(opened, sessions, job.project_id, str(job.id), model_id) as model:
        yield model


async def evaluate_adapter(
    job: Job,
    progress: RunProgress,
    sessions: Sessions,
    adapter: PublishedAdapter,
    environment: RunEnvironment | None,
    *,
    guard: Guard | None = None,
    no_time: str = "",
) -> Result:
    """Store the adapter and let the gate evaluate it. Raises as `evaluate_candidate`."""
    await adapter_store(job).put(adapter.hash)  # before any row refers to it
    async with sessions.begin() as session:
        await manifest_store.put(
            session,
            adapter.hash,
            base=job.deployment.local_model,
            rank=adapter.rank,
            project_id=job.project_id,
            run_id=job.id,
            probe=adapter.probe,
        )
    candidate = CandidateAdapter(
        project_id=job.project_id,
        run_id=job.id,
        model=adapter.hash,
        settings=job.settings,
        without_exam="" if environment else await too_little_own_work(job, sessions),
        no_time=no_time,
    )
    async with AsyncExitStack() as stack:
        evaluator = None
        if environment is not None and not no_time and job.settings.gate_scenarios:
            evaluator = await stack.enter_async_context(open_evaluator(job, progress, sessions, environment))
        found = await evaluate_candidate(
            sessions, candidate, evaluator, progress=progress, directory=job.directory, guard=guard
        )
    return Result(
        adapter=adapter.hash,
        release_id=found.release_id,
        decision=found.decision,
        reason=found.reason,
        evidence=found.evidence,
    )


class ExaminedRelease(msgspec.Struct, frozen=True, kw_only=True):
    """How one release did, and the difference to the active one, on the same scenarios."""

    id: UUID
    number: int
    model: str
    figures: PolicyMetrics
    difference: Comparison | None = None  # None for the active one


class ModelResults(msgspec.Struct):
    """What is done so far, kept between attempts. `key` is of all that another attempt must have in common."""

    key: str
    settings: dict[str, Json]
    by_model: dict[str, list[TaskResult]] = {}


async def examine_releases(
    job: Job, progress: RunProgress, sessions: Sessions, environment: RunEnvironment | None
) -> Result:
    """The active release and those that the run names, each with its evaluation stored.

    Raises InvalidError without an environment, for a release that is unknown or cannot be loaded, and where too
    little is known of all.
    """
    if environment is None:
        reason = await too_little_own_work(job, sessions)
        raise InvalidError(f"set environment, as the project's own work is no exam: {reason}")
    environment = await environment.checked()
    chosen = await _chosen(job, sessions)
    async with open_evaluator(job, progress, sessions, environment) as evaluator:
        if chosen[0].prompt not in (None, prompt_of(chosen[0].model, evaluator.prompt_hash)):
            raise InvalidError(
                "this worker renders another prompt than the one that is served: give workers and runners one "
                "version and one SAGE_PROMPT_PROFILE"
            )
        for release in chosen:
            await _load(sessions, evaluator, release)
        results = await _results(job, progress, evaluator, chosen, await _circumstances(job, sessions, chosen[0]))
    kept, coverage = only_known(list(results.by_model.values()))
    _check_known(kept[0], coverage, chosen)
    known = dict(zip(results.by_model, kept, strict=True))
    active, settings = chosen[0], results.settings | {"coverage": coverage}
    examined = [
        ExaminedRelease(
            id=release.id,
            number=release.number,
            model=release.model,
            figures=measure(known[release.model]),
            difference=None if release is active else compare(known[release.model], known[active.model]),
        )
        for release in chosen
    ]
    async with sessions.begin() as session:
        await progress.hold(session)
        await exams.delete_of_run(session, job.id)  # an attempt may have been lost right after this
        for each in examined:
            new = NewEvaluation(
                model=each.model,
                environment=job.settings.environment,
                settings=settings,
                figures=msgspec.to_builtins(each.figures),
                run_id=job.id,
                release_id=each.id,
            )
            await exams.add(session, job.project_id, new)
    shown: list[Any] = msgspec.to_builtins(examined)
    evidence = {"environment": job.settings.environment, "evaluation": settings, "releases": shown}
    return Result(reason=", ".join(map(_in_words, examined)), evidence=evidence)


async def _chosen(job: Job, sessions: Sessions) -> list[tables.Release]:
    """The active release first."""
    async with sessions() as session:
        active = await releases.active(session, job.project_id)
        known = {each.number: each for each in await releases.of_project(session, job.project_id)}
    numbers = release_numbers(job.settings)
    if unknown := [number for number in numbers if number not in known]:
        raise InvalidError(
            f"the project {job.project} has no release {_listed(unknown)}: GET /v1/releases lists them"
        )
    return [active, *(known[number] for number in numbers if number != active.number)]


async def _load(sessions: Sessions, evaluator: Evaluator, release: tables.Release) -> None:
    """Before any is examined, which takes long."""
    async with sessions() as session:
        adapter = await session.get(tables.Adapter, release.model)
    if adapter is not None and adapter.base != evaluator.base:
        raise InvalidError(
            f"release {release.number} has an adapter for the base model {adapter.base}, but {evaluator.base} is "
            f"served: examine it where SAGE_MODEL={adapter.base}"
        )
    try:
        await evaluator.load(release.model)
    except (AdapterError, EngineRefusalError) as error:
        raise InvalidError(f"release {release.number} cannot be examined: {error}") from error


async def _circumstances(job: Job, sessions: Sessions, active: tables.Release) -> list[Any]:
    """What trials depend on beside the models and the tasks."""
    async with sessions() as session:
        project = projects.settings_of(await projects.by_id(session, job.project_id))
    grown = [str(each.indexed.offer.skill_id) for each in await grown_skills(sessions, job.project_id)]
    return [str(active.id), msgspec.to_builtins(project), grown, OFFERED]


async def _results(
    job: Job,
    progress: RunProgress,
    evaluator: Evaluator,
    chosen: Sequence[tables.Release],
    circumstances: list[Any],
) -> ModelResults:
    """Of each model. Those of an earlier attempt count if all else was the same."""
    scenarios, seed = job.settings.gate_scenarios, zlib.crc32(job.id.bytes)
    sample = held_out(evaluator, scenarios, seed)
    if len(sample) < MIN_SCENARIOS:
        raise InvalidError(
            f"{job.settings.environment} has {len(sample)} scenarios that can be tried, {MIN_SCENARIOS} are "
            "needed: recorded calls need tasks that were solved, staging and live APIs tasks with a check"
        )
    path = job.directory / "examined.json"
    settings = evaluation_settings(evaluator, scenarios, seed)
    tried = [(each.id, [task.instruction for task in each.tasks]) for each in sample]
    key = msgspec.json.encode([settings, tried, repr(evaluator.agent.limits), circumstances])
    results = ModelResults(sha256(key).hexdigest(), settings)
    if path.exists() and (found := msgspec.json.decode(path.read_bytes(), type=ModelResults)).key == results.key:
        results = found
    numbers = {release.model: release.number for release in chosen}
    tasks = sum(len(each.tasks) for each in sample)
    for index, model in enumerate(numbers):
        if model not in results.by_model:
            before, after = tasks * index, tasks * (len(numbers) - index - 1)
            own = await evaluator.evaluate(model, sample, before=before, after=after)
            results.by_model[model] = own
            write_atomically(msgspec.json.encode(results), path)
            solved = sum(each.success for each in own) / len(own)
            await progress.step(index + 1, len(numbers), {"release": numbers[model], "solved": solved})
    return ModelResults(results.key, results.settings, {model: results.by_model[model] for model in numbers})


def _check_known(known: Sequence[TaskResult], coverage: float, chosen: Sequence[tables.Release]) -> None:
    """As of a gate: few scenarios say little, and those that all can be told of are not like the others."""
    scenarios = len({each.scenario for each in known})
    if coverage < MIN_KNOWN or scenarios < MIN_SCENARIOS:
        raise InvalidError(
            f"the results of {scenarios} scenarios, {coverage:.0%}, are known of each of the releases "
            f"{_listed(release.number for release in chosen)}: {MIN_SCENARIOS} and {MIN_KNOWN:.0%} "
            "are needed; examine fewer releases, or on staging"
        )


def _in_words(found: ExaminedRelease) -> str:
    sgc = found.figures.sgc
    solved = f"release {found.number} solves {sgc.mean:.1f} %"
    if found.difference is None:
        return f"{solved} of {found.figures.scenarios} scenarios"
    return f"{solved} ({found.difference.sgc.signed} points)"


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
