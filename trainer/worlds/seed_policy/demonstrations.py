"""Demonstrations by rejection sampling: rollouts of the scripted expert, kept if every check passed.

On disk they are one file per chunk of scenarios, written by several processes and never twice.
"""

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import msgspec
from tqdm import tqdm

from app.base.processes import exit_with_parent
from app.engine.tokenizer import ChatTokenizer
from app.sandbox.forked_sandbox import ForkedSandbox
from app.sandbox.protocol import Sandbox
from trainer.environment import Scenario
from trainer.learning.batch import Sample, samples_of
from trainer.worlds.office.environment import OfficeEnvironment
from trainer.worlds.office.expert import Faults
from trainer.worlds.office.rollouts import LIMITS, ScriptRunner, demonstrate
from trainer.worlds.seed_policy.samples import save_samples

__all__ = ["FAULTS", "LIMITS", "Demonstrations", "Demonstrator"]

FAULTS = Faults(unprepared=0.08, page=0.08, synonym=0.04, inline=0.02, ignore=0.02)
_CROWDING = 0.6


class Demonstrations(msgspec.Struct, frozen=True):
    """Samples of successful rollouts, and how many rollouts there were."""

    samples: list[Sample]
    tried: int


class Demonstrator:
    """Runs the scripted expert and records its turns in a tokenizer."""

    def __init__(self, tokenizer: ChatTokenizer, sandbox: Sandbox) -> None:
        self._runner = ScriptRunner(
            environment=OfficeEnvironment(), tokenizer=tokenizer, sandbox=sandbox, crowding=_CROWDING
        )

    async def demonstrate(self, scenarios: Sequence[Scenario], seed: int) -> Demonstrations:
        """The expert's successful trajectories over these scenarios, in order; the same for the same seed."""
        outcomes = await demonstrate(self._runner, scenarios, FAULTS, seed)
        solved = [each.trajectory for each in outcomes if each.verdict.success]
        return Demonstrations([sample for each in solved for sample in samples_of(each)], len(outcomes))


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
