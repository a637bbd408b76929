"""The end of a run: its adapter is stored, and evaluated by the gate as a candidate release."""

from functools import partial

from app.db import adapters
from app.db.database import Sessions
from trainer.evaluation.paired import Evaluator
from trainer.gate import CandidateAdapter, GateResult, evaluate_candidate
from trainer.learning.publishing import PublishedAdapter
from trainer.rollouts.stack import open_stack
from trainer.run_job import Job, RunProgress
from trainer.runs.grown_library import grown_skills
from trainer.runs.own_exam import RunEnvironment, too_little_own_work
from trainer.runs.start_adapter import adapter_store, fetch_adapter


async def evaluate_adapter(
    job: Job,
    progress: RunProgress,
    sessions: Sessions,
    adapter: PublishedAdapter,
    environment: RunEnvironment | None,
) -> GateResult:
    """Store the adapter and let the gate evaluate it. Raises as `evaluate_candidate`."""
    await _store(job, sessions, adapter)
    candidate = CandidateAdapter(
        project_id=job.project_id,
        run_id=job.id,
        model=adapter.hash,
        settings=job.settings,
        without_exam="" if environment else await too_little_own_work(job, sessions),
    )
    if environment is None or not job.settings.gate_scenarios:
        return await evaluate_candidate(sessions, candidate, None, progress=progress)
    # A candidate is examined as it will serve: beside the project's skills, found by the retrieval of serving.
    grown, retrieval = await grown_skills(sessions, job.project_id), job.deployment.retrieval
    async with open_stack(environment.environment, retrieval, job.deployment, grown=grown) as stack:
        evaluator = Evaluator(
            stack.agent,
            stack.engine,
            stack.environment,
            adapters=job.deployment.adapters_dir,
            new_library=stack.new_library,
            temperature=job.deployment.temperature,
            base=job.deployment.model,
            fetch=partial(fetch_adapter, job),
            report=partial(progress.part, "exam tasks"),
            about=environment.about | {"retrieval": retrieval, "skills_before": len(grown)},
        )
        return await evaluate_candidate(sessions, candidate, evaluator, progress=progress, directory=job.directory)


async def _store(job: Job, sessions: Sessions, adapter: PublishedAdapter) -> None:
    await adapter_store(job).put(adapter.hash)  # before any row refers to it
    async with sessions.begin() as session:
        await adapters.put(
            session,
            adapter.hash,
            base=job.deployment.model,
            rank=adapter.rank,
            project_id=job.project_id,
            run_id=job.id,
            probe=adapter.probe,
        )
