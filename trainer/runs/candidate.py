"""The end of a run: its adapter is stored, and evaluated by the gate as a candidate release."""

from app.db import adapters
from app.db.database import Sessions
from trainer.gate import CandidateAdapter, GateResult, Guard, evaluate_candidate
from trainer.learning.publishing import PublishedAdapter
from trainer.run_job import Job, RunProgress
from trainer.runs.own_exam import RunEnvironment, too_little_own_work
from trainer.runs.served_evaluator import open_evaluator
from trainer.runs.start_adapter import adapter_store


async def evaluate_adapter(
    job: Job,
    progress: RunProgress,
    sessions: Sessions,
    adapter: PublishedAdapter,
    environment: RunEnvironment | None,
    *,
    guard: Guard | None = None,
    no_time: str = "",
) -> GateResult:
    """Store the adapter and let the gate evaluate it. Raises as `evaluate_candidate`."""
    await _store(job, sessions, adapter)
    candidate = CandidateAdapter(
        project_id=job.project_id,
        run_id=job.id,
        model=adapter.hash,
        settings=job.settings,
        without_exam="" if environment else await too_little_own_work(job, sessions),
        no_time=no_time,
    )
    if environment is None or no_time or not job.settings.gate_scenarios:
        return await evaluate_candidate(sessions, candidate, None, progress=progress, guard=guard)
    async with open_evaluator(job, progress, sessions, environment) as evaluator:
        return await evaluate_candidate(
            sessions, candidate, evaluator, progress=progress, directory=job.directory, guard=guard
        )


async def _store(job: Job, sessions: Sessions, adapter: PublishedAdapter) -> None:
    await adapter_store(job).put(adapter.hash)  # before any row refers to it
    async with sessions.begin() as session:
        await adapters.put(
            session,
            adapter.hash,
            base=job.deployment.local_model,
            rank=adapter.rank,
            project_id=job.project_id,
            run_id=job.id,
            probe=adapter.probe,
        )
