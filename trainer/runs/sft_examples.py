"""The examples of a supervised run: imported chats, or the best served tasks."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import msgspec

from app.agent.prompt_profiles import choose_profile
from app.apis.builtin import with_builtins
from app.apis.listed_app import ListedApp, listed_apps
from app.datasets.chat_lines import ChatRecord
from app.db.database import Sessions, reading
from app.errors import InvalidError
from app.records import Json
from app.release import manifest
from app.release.catalogs import Catalogs
from trainer.atomic_write import write_atomically
from trainer.experience.drop_reasons import ADVICE, DropReason
from trainer.experience.filters import BaseModel
from trainer.experience.held_out_tasks import HeldOutTasks, read_held_out
from trainer.experience.judging import judge_window
from trainer.experience.read_experience import BestExperience, read_best
from trainer.experience.snapshot import RecordTasks
from trainer.learning.batch import Sample, samples_of_turns
from trainer.run_job import Job
from trainer.runs.fetch_data import fetch_data
from trainer.sft_data.chat_records import asked, prompt_lines, read_records
from trainer.sft_data.chat_samples import build_samples
from trainer.sft_data.hosted_chats import hosted_samples

_FILE = "sft.examples"


class SftExamples(msgspec.Struct, frozen=True):
    """The samples, and for the run's result how many there are and why others were dropped."""

    samples: list[Sample]
    data: dict[str, Json]


async def load_examples(job: Job, sessions: Sessions, base: BaseModel, record: RecordTasks) -> SftExamples:
    """The chats of `data` or, without it, the best served tasks, which are recorded.

    They are kept in the run's directory, so that a retry learns from the same. Raises InvalidError where there are
    none, or where the data does not fit or may not be read, and StorageError where it cannot be.
    """
    path = job.directory / _FILE
    if path.exists():
        return msgspec.msgpack.decode(path.read_bytes(), type=SftExamples)
    if job.settings.data:
        async with reading(sessions) as session:
            held_out = await read_held_out(session, job.project_id, job.settings.environment)
        examples = _import_chats(await fetch_data(job, sessions), job.settings.data, base, held_out)
        await record([])
    else:
        examples = await _read_served(job, sessions, base, record)
    write_atomically(msgspec.msgpack.encode(examples), path)
    return examples


async def _read_served(job: Job, sessions: Sessions, base: BaseModel, record: RecordTasks) -> SftExamples:
    await judge_window(sessions, job.project_id, job.settings, job.deployment)
    while True:  # each round again has fewer tasks
        async with reading(sessions) as session:
            best = await read_best(session, job.project_id, job.settings, base)
        if await record([each.task.id for each in best.trajectories]):
            return await _examples(job, sessions, base, best)


async def _examples(job: Job, sessions: Sessions, base: BaseModel, best: BestExperience) -> SftExamples:
    """Raises InvalidError with advice where nothing is left."""
    samples, unfit = list[Sample](), 0
    apps = _ReleaseApps(job.project_id, sessions)
    profile = choose_profile(job.deployment.prompt_profile, base.tokenizer.card)
    for each in best.trajectories:
        if each.flaw != "hosted":
            samples += samples_of_turns(each.turns, failed=False)
            continue
        retold = hosted_samples(each, profile, await apps.of(each.policy.release), base.tokenizer)
        samples, unfit = samples + retold, unfit + (not retold)
    if not samples:
        raise InvalidError(f"nothing to learn from in {unfit} tasks of hosted models: {ADVICE[DropReason.UNFIT]}")
    data = msgspec.to_builtins(best.data)
    if unfit:
        data["trajectories"] -= unfit
        data["dropped"][DropReason.UNFIT.value] = unfit
    return SftExamples(samples, data)


class _ReleaseApps:
    """What tasks of each release are shown of the project's APIs."""

    def __init__(self, project_id: UUID, sessions: Sessions) -> None:
        self._project_id, self._sessions, self._catalogs = project_id, sessions, Catalogs(sessions)
        self._known: dict[UUID | None, Sequence[ListedApp]] = {}

    async def of(self, release_id: UUID | None) -> Sequence[ListedApp]:
        if release_id not in self._known:
            async with self._sessions() as session:
                served = await manifest.begin_serving(session, self._project_id, release_id, None)
            catalog = with_builtins(await self._catalogs.of(served.documents))
            self._known[release_id] = await asyncio.to_thread(listed_apps, catalog)
        return self._known[release_id]


def _import_chats(path: Path, data: str, base: BaseModel, held_out: HeldOutTasks) -> SftExamples:
    """Raises InvalidError that names the data, and the line or conversation that does not fit."""
    records = read_records(path, data)
    kept = [each for each in records if not _is_held_out(each, held_out)]
    if not kept:
        raise InvalidError(
            f"{data}: candidates are examined on the tasks of all {len(records)} conversations: "
            f"{ADVICE[DropReason.HELD_OUT]}"
        )
    try:
        built = build_samples(kept, base.tokenizer)
    except InvalidError as error:
        raise InvalidError(f"{data}, {error}") from error
    dropped = {DropReason.HELD_OUT.value: len(records) - len(kept)} if len(kept) < len(records) else {}
    counts = {"trajectories": len(built.samples), "tokens": built.tokens, "dropped": dropped | built.dropped}
    return SftExamples(built.samples, {"conversations": len(records), **counts})


def _is_held_out(record: ChatRecord, held_out: HeldOutTasks) -> bool:
    return held_out.holds(*asked(record)) or any(map(held_out.resembles, prompt_lines(record)))
