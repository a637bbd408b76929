"""Demonstrations on disk, one file per chunk of scenarios, written by several processes and never twice."""

import asyncio
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import msgspec
from tqdm import tqdm

from app.engine.tokenizer import ChatTokenizer
from app.parent_death import exit_with_parent
from app.sandbox.forked_sandbox import ForkedSandbox
from trainer.worlds.office.office_environment import OfficeEnvironment
from trainer.worlds.seed_policy.demonstrations import Demonstrator
from trainer.worlds.seed_policy.samples import save_samples

CHUNK = 100  # scenarios


class Chunk(msgspec.Struct, frozen=True):
    """One file of demonstrations."""

    work: Path
    seed: int
    index: int

    @property
    def file(self) -> Path:
        return self.work / f"demonstrations-{self.index:04}.npz"


def make_chunks(work: Path, seed: int, count: int, processes: int) -> None:
    """Write those of the `count` chunks that are missing."""
    chunks = [Chunk(work, seed, index) for index in range(count)]
    missing = [chunk for chunk in chunks if not chunk.file.exists()]
    made = CHUNK * (count - len(missing))
    with (
        ProcessPoolExecutor(
            processes, get_context("spawn"), initializer=exit_with_parent, initargs=(os.getpid(),)
        ) as pool,
        tqdm(total=CHUNK * count, initial=made, desc="demonstrations", unit="scenario") as bar,
    ):
        for _ in pool.map(_make, missing):
            bar.update(CHUNK)


def chunk_files(work: Path) -> list[Path]:
    return sorted(work.glob("demonstrations-*.npz"))


def _make(chunk: Chunk) -> None:
    """Demonstrate one chunk, in a process of its own."""

    async def run() -> None:
        scenarios = OfficeEnvironment().scenarios("train", CHUNK, chunk.seed * 100_000 + chunk.index)
        async with ForkedSandbox() as sandbox:
            demonstrated = await Demonstrator(ChatTokenizer.load(chunk.work), sandbox).demonstrate(
                scenarios, chunk.seed
            )
        save_samples(demonstrated.samples, chunk.file)

    asyncio.run(run())
