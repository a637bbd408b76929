"""Demonstrations on disk: files of chats, each collected by one of several processes, and none twice."""

import asyncio
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import msgspec
from tqdm import tqdm

from app.base.processes import exit_with_parent
from app.base.settings import Settings
from app.runs.chat_lines import ChatRecord
from trainer.environment import Split
from trainer.sft.chats import read_records
from trainer.sft.collection import CollectionSettings, ExpertAccess, collect
from trainer.worlds.recipes import AdapterRecipe, MixPart, divide_scenarios

_CHUNK = 25  # scenarios of a file: what a kill can cost each process, at most
_STRIDE = 100_000  # between the seeds of two parts of the mix


class DemonstrationFile(msgspec.Struct, frozen=True, kw_only=True):
    """Scenarios of one part of the mix, and where their demonstrations go."""

    path: Path
    part: MixPart
    split: Split
    seed: int
    scenarios: int


def plan_files(recipe: AdapterRecipe, work: Path, split: Split) -> list[DemonstrationFile]:
    """The files of a split: "train", or "validation" for the held-out loss."""
    total = recipe.scenarios if split == "train" else recipe.held_out_scenarios
    counts = divide_scenarios(total, recipe.mix)
    return [
        DemonstrationFile(
            path=work / f"demonstrations-{split}" / f"{part.name}-{number:04}.jsonl",
            part=part,
            split=split,
            seed=(recipe.seed * len(recipe.mix) + place) * _STRIDE + number,
            scenarios=min(_CHUNK, count - number * _CHUNK),
        )
        for place, (part, count) in enumerate(zip(recipe.mix, counts, strict=True))
        for number in range(-(-count // _CHUNK))
    ]


def collect_files(
    files: list[DemonstrationFile], profile: str, settings: Settings, processes: int, at_once: int = 4
) -> None:
    """Collect those files that are missing. Only demonstrations that were executed and judged right are kept."""
    missing = [each for each in files if not each.path.exists()]
    total = sum(each.scenarios for each in files)
    done = total - sum(each.scenarios for each in missing)
    with (
        ProcessPoolExecutor(
            processes, get_context("spawn"), initializer=exit_with_parent, initargs=(os.getpid(),)
        ) as pool,
        tqdm(total=total, initial=done, desc="demonstrations", unit="scenario") as bar,
    ):
        jobs = [pool.submit(_collect, each, profile, settings, at_once) for each in missing]
        try:
            for file, job in zip(missing, jobs, strict=True):
                job.result()
                bar.update(file.scenarios)
        finally:  # after a failure the others need not be begun
            pool.shutdown(cancel_futures=True)


def read_demonstrations(files: list[DemonstrationFile]) -> list[ChatRecord]:
    """All demonstrations in the order of the files; the same for the same files."""
    return [record for file in files for record in _read(file)]


def _read(file: DemonstrationFile) -> Iterator[ChatRecord]:
    if not file.path.stat().st_size:  # the expert failed in all of its few tasks
        return
    yield from read_records(file.path)


def _collect(file: DemonstrationFile, profile: str, settings: Settings, at_once: int) -> None:
    wanted = CollectionSettings(
        expert=file.part.expert,
        environment=file.part.environment,
        split=file.split,
        scenarios=file.scenarios,
        seed=file.seed,
        keep="task",
        profile=profile,
    )
    asyncio.run(collect(wanted, ExpertAccess(at_once=at_once), settings, file.path, lambda _: None))
