"""A run of kind `practice`: the model is taught an API of its project on a double of it, within so many hours.

stage           what it does, and leaves in the run's directory for an attempt that resumes it
samples         reads answers of the real API, where that is allowed: samples.msgpack
demonstrations  an expert's lessons are executed, and those judged right are kept: demonstrations/
supervised      one epoch over as many as there is time for: taught/, the adapter
rollouts        SAGE from that adapter on, until only the exam has time: a checkpoint of each step
exam            the candidate against the active release on held-out tasks; then both on what was learned before,
                which the candidate must not have forgotten. The skills that helped are offered to the project,
                unless it is rejected

Every few demonstrations are of the gym, whose tasks a model knows how to solve: practice on one API alone
makes it forget all others.
"""

import asyncio
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec

from app.agent.prompts import choose_profile
from app.apis.catalog import with_builtins
from app.base.errors import InvalidError
from app.base.files import write_atomically
from app.base.run_settings import RunKind, practice_option
from app.base.values import GOOD, Json
from app.db.database import Sessions, reading
from app.engine.tokenizer import ChatTokenizer
from app.releases import manifest
from app.releases.tools import Catalogs
from app.runs import experience
from app.sandbox.forked_sandbox import ForkedSandbox
from app.skills import moves
from app.skills.admission import admit, stored_manifest
from app.skills.extract import extract
from app.skills.store import NewSkill
from trainer.engines.servers import sleep_during_updates
from trainer.environment import Scenario, open_environment
from trainer.evaluation.local import Evaluator, held_out
from trainer.evaluation.metrics import TaskResult, compare, measure
from trainer.learning.adapter import TrainingOutput
from trainer.learning.batch import Sample, samples_of_turns
from trainer.learning.learner import Checkpoints
from trainer.learning.model import pick_device
from trainer.learning.supervised import SftStep, epoch_steps
from trainer.practice.api import keep_samples
from trainer.practice.environments import Mix, Practice, PracticeEnvironment, RealTask, kind_of_form
from trainer.practice.experts import load_expert
from trainer.practice.paraphrase import Paraphraser, open_paraphraser, reworded
from trainer.rollouts.episode import Episode, Expert, ExpertContext, open_expert
from trainer.rollouts.groups import ChainRollout
from trainer.run_job import Job, Result, RunProgress
from trainer.runs.candidate import evaluate_adapter, grown_skills
from trainer.runs.environment import RunEnvironment
from trainer.runs.gate import Guarded
from trainer.runs.hours import Hours, PracticeProgress, Sheet
from trainer.runs.rollout import Seen, train_on_rollouts
from trainer.runs.sft import SftSpec, step_metrics, timed, train_sft
from trainer.runs.start import (
    adapter_store,
    check_run_memory,
    find_start,
    leave_cpus_to_serving,
    open_run_learner,
    recorder,
)
from trainer.sft.collection import UNTOKENIZABLE, UntokenizableError, select
from trainer.sft.samples import TOO_LONG

DIRECTORY = "demonstrations"  # of a run's
MOST = 10_000  # demonstrations, so that their tokens fit in memory
REHEARSED = "gym"  # the environment, and its expert
_EVERY = 4  # batches, one of them is rehearsed
_BATCH = 8  # scenarios at a time, each batch a file
_WITHHELD = 0.45  # of tasks are offered no skill: what serves at first has none
_IN_VAIN = 48  # tasks of which none was demonstrated right
_TASKS = 500  # the newest of the project, by which the mix begins
_USED = 2  # further tasks that were solved with a skill, at least
_OFFERED = 20  # skills of a run, at most
_KEPT = 2_000  # skills in memory, the newest
_RATE: Final = 1e-3  # of the supervised steps, at its highest
_STEP_TOKENS: Final = 4096  # of a supervised step, at most
_ROUNDS: Final = 100_000  # the hours end them
_MOST_LOST: Final = 2.0  # points of tasks that are rehearsed, unless more may be luck
_REASONS: Final = 200  # of what could not be practised that are kept


class Demonstrations(msgspec.Struct):
    """Those kept, of how many `tried` tasks, and why the others were dropped. Of so many of them a hosted model
    changed the words, which failed last because of what it says.
    """

    samples: list[Sample] = []
    kept: int = 0
    tried: int = 0
    dropped: dict[str, int] = {}
    paraphrased: int = 0
    paraphraser_failure: str = ""

    def add(self, other: "Demonstrations") -> None:
        self.samples += other.samples
        self.kept, self.tried = self.kept + other.kept, self.tried + other.tried
        self.paraphrased += other.paraphrased
        self.paraphraser_failure = other.paraphraser_failure or self.paraphraser_failure
        self.dropped = dict(Counter(self.dropped) + Counter(other.dropped))


def read_demonstrations(directory: Path) -> tuple[Demonstrations, int]:
    """What earlier attempts left, and in how many files."""
    found, files = Demonstrations(), sorted(directory.glob("*.msgpack"))
    for each in files:
        found.add(msgspec.msgpack.decode(each.read_bytes(), type=Demonstrations))
    return found, len(files)


def collected_demonstrations(directory: Path, sheet: Sheet) -> Demonstrations | None:
    """Those of a run that has collected all; without their samples, which fill the memory, if they were taught."""
    if sheet.taught:
        return Demonstrations(
            [], sheet.demonstrations, sheet.tried, sheet.dropped, sheet.paraphrased, sheet.paraphraser_failure
        )
    return read_demonstrations(directory)[0] if sheet.collected else None


async def demonstrate(
    job: Job,
    environment: PracticeEnvironment,
    paraphraser: Paraphraser | None,
    may_go_on: Callable[[], bool],
    report: Callable[[int], object],
) -> Demonstrations:
    """Collect into the run's directory until time is up; `report` is called with the number kept.

    Raises InvalidError where none is right.
    """
    directory = job.directory / DIRECTORY
    found, batches = read_demonstrations(directory)
    tokenizer = ChatTokenizer.load(job.deployment.model_dir, job.deployment.template_kwargs)
    rehearsed, seed = open_environment(REHEARSED), job.settings.seed * MOST

    def lessons(number: int) -> Sequence[Scenario]:
        """Those of the practised API alone, of which there are so many batches before."""
        return environment.scenarios("train", _BATCH, seed + number + number // (_EVERY - 1))

    async with ForkedSandbox() as sandbox, reworded(lessons, paraphraser) as worded:
        context = ExpertContext(
            environment=environment,
            tokenizer=tokenizer,
            profile=choose_profile(job.deployment.prompt_profile, tokenizer.card),
            sandbox=sandbox,
            seed=job.settings.seed,
        )
        known = replace(context, environment=rehearsed)
        async with load_expert(context, withheld=_WITHHELD) as own, open_expert(REHEARSED, known) as former:
            while not batches or (found.kept < MOST and may_go_on()):
                batch = Demonstrations()
                if batches % _EVERY == _EVERY - 1:
                    expert, scenarios = former, rehearsed.scenarios("train", _BATCH, seed + batches)
                else:
                    expert = own
                    scenarios, batch.paraphrased = await worded(batches - batches // _EVERY)
                    batch.paraphraser_failure = paraphraser.failure if paraphraser is not None else ""
                for one in await asyncio.gather(*(_play(expert, each, tokenizer) for each in scenarios)):
                    batch.add(one)
                write_atomically(msgspec.msgpack.encode(batch), directory / f"{batches:05}.msgpack")
                found.add(batch)
                batches += 1
                report(found.kept)
                if not found.kept and found.tried >= _IN_VAIN:
                    break
    if not found.kept:
        reasons = ", ".join(f"{count} because {reason}" for reason, count in found.dropped.items())
        raise InvalidError(
            f"none of {found.tried} demonstrations can be learned from ({reasons}): use a model with a longer "
            "context, or a document whose operations do what it says"
        )
    return found


async def _play(expert: Expert, scenario: Scenario, tokenizer: ChatTokenizer) -> Demonstrations:
    tasks = len(scenario.tasks)
    try:
        selection = select(await expert.play(scenario, 0.0))
    except UntokenizableError:
        return Demonstrations(tried=tasks, dropped={UNTOKENIZABLE: tasks})
    samples, kept, dropped = list[Sample](), 0, Counter(selection.dropped)
    for each in selection.kept:
        own = samples_of_turns(each.trajectory.turns, failed=False)
        fits = all(len(sample.ids) <= tokenizer.max_length for sample in own)
        samples, kept = samples + (own if fits else []), kept + fits
        dropped += Counter({TOO_LONG: int(not fits)})
    return Demonstrations(samples, kept, tasks, dict(dropped))


class Steering:
    """The mix of a run's environment, kept in its directory between its attempts: those after the last two steps,
    as an attempt that is killed may have noted a step that the next one repeats.
    """

    def __init__(self, directory: Path, practised: PracticeEnvironment) -> None:
        self._directory, self._path, self._practised = directory, directory / "mix.json", practised
        self._after: dict[int, Mix] = {}  # by step; 0: before the first

    async def begin(self, sessions: Sessions, project_id: UUID) -> None:
        """With what earlier attempts left after their last finished step, or by the tasks of the project."""
        if self._path.exists():
            self._after = msgspec.json.decode(self._path.read_bytes(), type=dict[int, Mix])
        else:
            self._set(0, await asked_of(sessions, project_id, self._practised.practice))
        self._practised.mix = self._after[Checkpoints(self._directory).rounds]

    def note(self, step: int, rollouts: Iterable[ChainRollout]) -> None:
        """What those of a step solved, so that what is half mastered comes more often. Safe to repeat."""
        solved, tried = Counter[str](), Counter[str]()
        for each in rollouts:
            kind = kind_of_form(self._practised.place(each.scenario.tasks[0].variables["world"])[0].form)
            known = [episode.verdict.success for episode in each.episodes if episode.verdict.known]
            solved[kind] += sum(known)
            tried[kind] += len(known)
        before = self._after[step - 1]
        after = Mix(before.asked, dict(before.rates))
        after.note({kind: (solved[kind], count) for kind, count in tried.items()})
        self._set(step, after)

    def _set(self, step: int, mix: Mix) -> None:
        self._practised.mix = mix
        self._after = {at: each for at, each in self._after.items() if at == step - 1} | {step: mix}
        write_atomically(msgspec.json.encode(self._after), self._path)


async def asked_of(sessions: Sessions, project_id: UUID, practice: Practice) -> Mix:
    """The mix by what the newest tasks did with the API, scored or not. Their texts and answers do not count."""
    tasks, model = [], practice.model
    async with reading(sessions) as session:
        ended = await experience.window(session, project_id, limit=_TASKS)
        scores = {each.id: each.score for each in ended if each.executed}
        async for each in experience.trajectories(session, list(scores)):
            calls = tuple(
                msgspec.structs.replace(call, result=None, response=None)  # 500 tasks are in memory
                for call in each.calls
                if call.api.partition(".")[0] == model.app.name
            )
            score = scores[each.task.id]
            tasks.append(RealTask(calls, failed=score is not None and score < GOOD))
    return Mix.of(model, tasks, practice.presentation)


class PractisedSkill(msgspec.Struct):
    """A source, the solved tasks that wrote it, and those that were solved with it after that."""

    new: NewSkill
    written: set[UUID] = set()
    used: set[UUID] = set()

    @property
    def helped(self) -> int:
        return len(self.used - self.written)


class PractisedSkills:
    """All that a run wrote, kept in its directory. The same text under the same name is one skill."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._skills: dict[tuple[str, str], PractisedSkill] = {}
        if path.exists():
            for each in msgspec.msgpack.decode(path.read_bytes(), type=list[PractisedSkill]):
                self._skills[each.new.name, each.new.source] = each

    def add(self, rollouts: Iterable[ChainRollout]) -> None:
        """What solved tasks wrote and used. Safe to repeat."""
        for rollout in rollouts:
            for episode in rollout.episodes:
                if episode.verdict.known and episode.verdict.success:
                    self._add(episode)
        for key in list(self._skills)[: max(0, len(self._skills) - _KEPT)]:
            del self._skills[key]
        write_atomically(msgspec.msgpack.encode(list(self._skills.values())), self._path)

    def _add(self, episode: Episode) -> None:
        trajectory = episode.trajectory
        for offer in trajectory.used():
            if (known := self._skills.get((offer.name, offer.source))) is not None:
                known.used.add(trajectory.task.id)
        made = {each.name for each in episode.made if each.skill_id in episode.creditable}
        for draft in extract(trajectory) if made else ():
            if draft.name not in made or draft.name not in episode.manifests:
                continue
            new = NewSkill(
                name=draft.name,
                signature=draft.signature,
                source=draft.source,
                apis=list(draft.apis),
                instruction=draft.instruction,
                slots=list(draft.slots),
                manifest=msgspec.to_builtins(episode.manifests[draft.name]),
            )
            known = self._skills.setdefault((draft.name, draft.source), PractisedSkill(new))
            known.written.add(trajectory.task.id)

    def best(self) -> list[NewSkill]:
        """Those that helped, one of a name, the most helpful first."""
        helpful = [each for each in self._skills.values() if each.helped >= _USED]
        ordered = sorted(helpful, key=lambda each: (-each.helped, each.new.name, each.new.source))
        return list({each.new.name: each.new for each in reversed(ordered)}.values())[::-1]


async def offer_skills(
    job: Job, progress: RunProgress, sessions: Sessions, found: PractisedSkills, decision: str
) -> list[dict[str, Json]]:
    """Add the best ones to the project's library, as it admits any new skill, if the API has what they call. None
    if the gate's decision is that the candidate is rejected: what it wrote is no better.

    Safe to repeat. Returns what was added.
    """
    if decision == "rejected":
        return []
    async with sessions() as session:
        served = await manifest.begin_serving(session, job.project_id, None, None)
    catalog = await Catalogs(sessions).of(served.documents)
    apis = with_builtins(catalog)
    fitting = [each for each in found.best() if not stored_manifest(each).not_in(apis)]
    async with sessions.begin() as session:
        await progress.hold(session)
        rows = [
            await admit(session, job.project_id, each, catalog, actor=moves.PRACTICE)
            for each in fitting[:_OFFERED]
        ]
        return [{"id": str(row.id), "name": row.name, "version": row.version, "state": row.state} for row in rows]


async def sample_api(job: Job, progress: RunProgress, sessions: Sessions) -> None:
    """Read samples of the API that the environment is a double of, if it is one, before that is opened: exams of
    releases and all training are on a double like that of practice, of which this is the first stage.
    """
    api = practice_option(job.settings, "api")
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
    found = await _demonstrations(job, progress, sessions, hours, practised)
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
    job: Job, progress: RunProgress, sessions: Sessions, hours: Hours, practised: PracticeEnvironment
) -> Demonstrations:
    sheet = hours.sheet
    if (known := collected_demonstrations(job.directory / DIRECTORY, sheet)) is not None:
        return known
    with hours.stage("demonstrations"):
        shown = PracticeProgress(progress, hours, "demonstrations")

        def report(kept: int) -> None:
            hours.save()
            shown.part("demonstrations", kept, MOST)

        async with open_paraphraser(job, sessions, practised) as paraphraser:
            found = await demonstrate(job, practised, paraphraser, hours.is_left_for_demonstrations, report)
        sheet.demonstrations, sheet.tried, sheet.dropped = found.kept, found.tried, found.dropped
        sheet.paraphrased, sheet.paraphraser_failure = found.paraphrased, found.paraphraser_failure
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
    spec = msgspec.structs.replace(SftSpec.of(job, found.samples, start), settings=settings, adapters=directory)
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
    return await evaluate_adapter(
        examined, shown, sessions, output.adapter, environment, guard=guard, no_time=no_time
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
        "paraphrased": found.paraphrased,
        "paraphraser_failure": found.paraphraser_failure,
        "supervised_steps": sheet.steps,
        "rounds": sheet.rounds,
        "rolled_out": sheet.rolled_out,
        "operations": len(practice.model.operations),
        "left_out": dict(list(left_out.items())[:_REASONS]),
    }
