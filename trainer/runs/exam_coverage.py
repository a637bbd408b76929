"""Whether the environment of the gate examines what a project does."""

from app.db import apis
from app.db.database import Sessions
from app.errors import InvalidError
from trainer.environment import Environment
from trainer.run_job import Job
from trainer.runs.own_exam import RunEnvironment


async def check_coverage(job: Job, sessions: Sessions, found: RunEnvironment | None) -> None:
    """Raises InvalidError for a run whose gate would decide in a world without the project's APIs.

    Success there says nothing about the project's work. A project without APIs is not examined on anything else.
    """
    if found is None or found.own or not job.settings.gate_scenarios or job.settings.foreign_exam:
        return
    async with sessions() as session:
        own = {api.name for api in await apis.of_project(session, job.project_id)}
    missing = sorted(own - await _apps(found.environment)) if own else []
    if missing:
        raise InvalidError(
            f"the environment {job.settings.environment} has no {', '.join(missing)}, so its evaluation says "
            f"nothing about what the project {job.project} does there: set gate_scenarios=0 and try the candidate "
            "as a canary, or foreign_exam=true to let the gate decide all the same"
        )


async def _apps(environment: Environment) -> set[str]:
    [scenario, *_] = environment.scenarios("validation", 1, seed=0)
    async with environment.open(scenario, scenario.tasks[0]) as world:
        return set(world.catalog.apps)
