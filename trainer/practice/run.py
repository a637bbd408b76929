"""A run of kind `practice`: the model is taught an API of its project on a double of it, within so many hours.

stage           what it does, and leaves in the run's directory for an attempt that resumes it
samples         reads answers of the real API, where that is allowed: samples.msgpack
demonstrations  an expert's lessons are executed, and those judged right are kept: demonstrations/
supervised      one epoch over as many as there is time for: taught/, the adapter
rollouts        SAGE from that adapter on, until only the exam has time: a checkpoint of each step
exam            the candidate against the active release on held-out tasks; then both on what was learned before,
                which the candidate must not have forgotten. The skills that helped are offered to the project,
                unless it is rejected
"""

import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from app.db.database import Sessions
from app.records import Json
from app.run_settings import RunKind, practised_api
from trainer.engines.sleep import sleep_during_updates
from trainer.environment import open_environment
from trainer.evaluation.paired import Evaluator, held_out
from trainer.evaluation.policy_metrics import TaskResult, compare, measure
from trainer.gate import Guarded
from trainer.learning.model import pick_device
from trainer.learning.publishing import TrainingOutput
from trainer.learning.supervised import SftStep, epoch_steps
from trainer.practice.environments import Practice, PracticeEnvironment
from trainer.rollouts.groups import ChainRollout
from trainer.run_job import Job, Result, RunProgress
from trainer.runs.candidate import evaluate_adapter
from trainer.runs.demonstrations import (
    DIRECTORY,
    MOST,
    REHEARSED,
    Demonstrations,
    collected_demonstrations,
    demonstrate,
)
from trainer.runs.grown_library import grown_skills
from trainer.runs.learned_tasks import recorder
from trainer.runs.own_exam import RunEnvironment
from trainer.runs.practice_hours import Hours, PracticeProgress
from trainer.runs.practice_mix import Steering
from trainer.runs.practice_skills import PractisedSkills, offer_skills
from trainer.runs.practised_api import keep_samples
from trainer.runs.rollout import Seen, train_on_rollouts
from trainer.runs.run_learner import open_run_learner
from trainer.runs.run_memory import check_run_memory
from trainer.runs.run_threads import leave_cpus_to_serving
from trainer.runs.sft import SftSpec, step_metrics, timed, train_sft
from trainer.runs.start_adapter import adapter_store, find_start

_RATE: Final = 1e-3  # of the supervised steps, at its highest
_STEP_TOKENS: Final = 4096  # of a supervised step, at most
_ROUNDS: Final = 100_000  # the hours end them
_MOST_LOST: Final = 2.0  # points of tasks there, unless more may be luck
_REASONS: Final = 200  # of what could not be practised that are kept


async def sample_api(job: Job, progress: RunProgress, sessions: Sessions) -> None:
    """Read samples of the API that the environment is a double of, if it is one, before that is opened: exams of
    releases and all training are on a double like that of practice, of which this is the first stage.
    """
    api = practised_api(job.settings)
    if job.settings.kind is RunKind.PRACTICE:
        hours = _hours(job)
        with hours.stage("samples"):
            PracticeProgress(progress, hours, "samples").part("samples of the API", 0, 1)
            await keep_samples(job, sessions, api)
    elif api:
        progress.part("samples of the API", 0, 1)
        await keep_samples(job, sessions, api)


async def practise(job: Job, progress: RunProgress, sessions: Sessions, environment: RunEnvironment) -> Result:
    """All further stages, each from where an earlier attempt left it. Raises as `demonstrate` and `train`."""
    practised = environment.environment
    assert isinstance(practised, PracticeEnvironment)  # `check_runnable`
    check_run_memory(job.settings, job.deployment, pick_device(job.deployment.engine_device))
    hours = _hours(job)
    start = await find_start(job, sessions)
    await recorder(job, progress, sessions, start)(())
    leave_cpus_to_serving()
    steering = Steering(job.directory, practised)
    await steering.begin(sessions, job.project_id)
    found = await _demonstrations(job, progress, hours, practised)
    with hours.stage("supervised"):
        taught = await _taught(job, progress, hours, found, start)
        found.samples.clear()  # the memory is needed
    with hours.stage("rollouts"):
        written = PractisedSkills(job.directory / "skills.msgpack")

        def seen(step: int, rollouts: Sequence[ChainRollout]) -> None:
            written.add(rollouts)
            steering.note(step, rollouts)

        output = await _rolled_out(job, progress, sessions, hours, practised, taught, seen)
    with hours.stage("exam"):
        result = await _examined(job, progress, sessions, hours, environment, output)
        offered = await offer_skills(job, progress, sessions, written, result.decision)
    data = _data(job, hours, found, practised.practice) | {"skills": offered}
    return msgspec.structs.replace(result, data={"practice": data})


def _hours(job: Job) -> Hours:
    looks = 2 if job.deployment.temperature else 1  # the gate may look at both greedily, too
    return Hours(job.directory, job.settings.hours, looks)


async def _demonstrations(
    job: Job, progress: RunProgress, hours: Hours, practised: PracticeEnvironment
) -> Demonstrations:
    sheet = hours.sheet
    if (known := collected_demonstrations(job.directory / DIRECTORY, sheet)) is not None:
        return known
    with hours.stage("demonstrations"):
        shown = PracticeProgress(progress, hours, "demonstrations")

        def report(kept: int) -> None:
            hours.save()
            shown.part("demonstrations", kept, MOST)

        found = await demonstrate(job, practised, hours.is_left_for_demonstrations, report)
        sheet.demonstrations, sheet.tried, sheet.dropped = found.kept, found.tried, found.dropped
        sheet.collected = True
    return found


async def _taught(
    job: Job, progress: RunProgress, hours: Hours, found: Demonstrations, start: Path | None
) -> Path:
    """The adapter after the supervised steps."""
    remote = bool(job.deployment.train_remote_processes)  # on hosts that find the adapter in the store only
    directory = job.deployment.adapters_dir if remote else job.directory / "taught"
    device = pick_device(job.deployment.engine_device)
    if hours.sheet.taught:
        return directory / hours.sheet.taught
    tokens = min(_STEP_TOKENS, job.settings.micro_batch_tokens)
    epoch = epoch_steps(found.samples, tokens, job.settings.seed)
    settings = msgspec.structs.replace(job.settings, steps=epoch, lr=_RATE, micro_batch_tokens=tokens)
    spec = SftSpec(
        samples=found.samples,
        settings=settings,
        base=job.deployment.model_dir,
        base_name=job.deployment.served_model,
        start=start,
        directory=job.directory,
        adapters=directory,
        dtype=job.deployment.train_dtype,
    )
    shown = PracticeProgress(progress, hours, "supervised")

    async def report(step: SftStep, seconds: float) -> None:
        if not hours.sheet.steps:
            hours.sheet.step_seconds = [*hours.sheet.step_seconds[: step.index - 1], seconds]
        total = hours.sheet.steps or epoch
        shown.part("supervised steps", step.index, total)
        await shown.step(step.index, total, step_metrics(step, seconds))

    with sleep_during_updates(job.deployment):
        adapter = await train_sft(spec, device, timed(job, start, report), partial(hours.decide_steps, epoch))
    if remote:
        await adapter_store(job).put(adapter.hash)
    hours.sheet.taught = adapter.hash
    return adapter.path


async def _rolled_out(
    job: Job,
    progress: RunProgress,
    sessions: Sessions,
    hours: Hours,
    practised: PracticeEnvironment,
    taught: Path,
    seen: Seen,
) -> TrainingOutput:
    settings, most = job.settings, job.settings.gate_scenarios
    job = msgspec.structs.replace(job, settings=msgspec.structs.replace(settings, steps=_ROUNDS))
    shown = _Rounds(progress, hours, settings.pairs * settings.group * settings.chain, most)
    with open_run_learner(job, taught, pick_device(job.deployment.engine_device)) as learner:
        grown = await grown_skills(sessions, job.project_id)
        return await train_on_rollouts(
            job,
            shown,
            learner,
            practised,
            grown,
            may_go_on=lambda: hours.sheet.exam is None and hours.is_left_for_round(most),
            seen=seen,
        )


class _Rounds(PracticeProgress):
    """Learns from each round of rollouts how long one takes. `tasks` are those of a round."""

    def __init__(self, progress: RunProgress, hours: Hours, tasks: int, most: int) -> None:
        super().__init__(progress, hours, "rollouts", hours.sheet.steps)
        self._tasks, self._most = tasks, most

    async def step(self, index: int, total: int, metrics: dict[str, Json]) -> None:  # noqa: ARG002  the hours end them
        seconds = metrics["rollout_seconds"]
        self._hours.add_round(self._tasks, seconds, seconds + metrics.get("update_seconds", 0.0))
        await super().step(index, index + self._hours.rounds_left(self._most), metrics)


async def _examined(
    job: Job,
    progress: RunProgress,
    sessions: Sessions,
    hours: Hours,
    environment: RunEnvironment,
    output: TrainingOutput,
) -> Result:
    wanted = job.settings.gate_scenarios
    scenarios = hours.decide_exam(wanted)
    shown = PracticeProgress(progress, hours, "exam")
    no_time = "" if scenarios or not wanted else f"its {job.settings.hours:g} hours ended before its exam"
    settings = msgspec.structs.replace(job.settings, gate_scenarios=scenarios)
    examined = msgspec.structs.replace(job, settings=settings)
    guard = partial(look_at_forgotten, hours.sheet.guard, zlib.crc32(job.id.bytes), shown)
    result = await evaluate_adapter(
        examined, shown, sessions, output.adapter, environment, guard=guard, no_time=no_time
    )
    return Result(
        adapter=output.adapter.hash,
        release_id=result.release_id,
        decision=result.decision,
        reason=result.reason,
        evidence=result.evidence,
    )


async def look_at_forgotten(
    scenarios: int, seed: int, progress: RunProgress, evaluator: Evaluator, candidate: str, incumbent: str
) -> Guarded:
    """Whether the candidate solves fewer tasks of the guard's environment than the model that serves."""
    there = replace(
        evaluator,
        environment=open_environment(REHEARSED),
        split="test",
        about={},
        report=partial(progress.part, f"{REHEARSED} tasks"),
    )
    sample = held_out(there, scenarios, seed)
    tasks = sum(len(each.tasks) for each in sample)
    after = await there.evaluate(candidate, sample, after=tasks)
    return guarded(after, await there.evaluate(incumbent, sample, before=tasks))


def guarded(after: Sequence[TaskResult], before: Sequence[TaskResult]) -> Guarded:
    """What the guard says, by the results of the candidate and of the model that serves. It refuses one that lost
    more than a little, if the 95 % interval of the loss has no room for none. Pure.
    """
    lost = compare(after, before).tgc
    refuses = lost.mean < -_MOST_LOST and lost.high < 0
    figures = {
        "environment": REHEARSED,
        "candidate": msgspec.to_builtins(measure(after)),
        "incumbent": msgspec.to_builtins(measure(before)),
        "points": lost.mean,
        "interval": [lost.low, lost.high],
    }
    refusal = (
        f"it forgot what it knew: it solves {-lost.mean:.1f} points fewer tasks of the {REHEARSED} than before, "
        f"by the 95 % interval {-lost.high:.1f} to {-lost.low:.1f}"
    )
    return Guarded({"forgetting": figures}, refusal if refuses else "")


def _data(job: Job, hours: Hours, found: Demonstrations, practice: Practice) -> dict[str, Json]:
    """What the run did with its hours, and what could not be practised."""
    sheet = hours.sheet
    left_out = {each.operation: each.reason for each in practice.model.left_out}
    left_out |= dict(each.split(": ", 1) for each in practice.reasons)
    return {
        "api": practice.model.app.name,
        "model": job.deployment.local_model,
        "hours": job.settings.hours,
        "stages": {stage: round(seconds) for stage, seconds in sheet.spent.items()},
        "demonstrations": found.kept,
        "tried": found.tried,
        "dropped": found.dropped,
        "supervised_steps": sheet.steps,
        "rounds": sheet.rounds,
        "rolled_out": sheet.rolled_out,
        "operations": len(practice.model.operations),
        "left_out": dict(list(left_out.items())[:_REASONS]),
    }
