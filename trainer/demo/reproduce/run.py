"""Runs a plan: every trial and every exam, several at once. What is there is not done again."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from app.errors import AppError
from trainer.demo.reproduce.plan import BASELINES, Plan, Trial, exam_rows, repeats, searches
from trainer.demo.reproduce.trial import Trained, exam_file, trained_file

Told = Callable[[str], object]
"""Hears what was just finished."""


class TrialError(AppError):
    """A trial's process failed. The message names its log."""


class Experiment:
    """One plan in one directory."""

    def __init__(self, plan: Plan, work: Path, told: Told) -> None:
        self.plan, self.work, self._told = plan, work, told

    def size(self) -> int:
        """Processes there are to run in all, done ones included."""
        again = repeats(self.plan, dict.fromkeys(self.plan.conditions, 0.0))
        return self.plan.seeds + len(searches(self.plan)) + 2 * len(again) + len(self.plan.conditions)

    async def carry_out(self, at_once: int) -> dict[str, float]:
        """Everything. The learning rate that was chosen for each condition. Raises TrialError."""
        places = asyncio.Semaphore(at_once)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._baselines(places))
                main = group.create_task(self._trials(places))
            return main.result()
        except ExceptionGroup as failed:
            raise _first(failed) from None

    async def _baselines(self, places: asyncio.Semaphore) -> None:
        for seed in range(self.plan.seeds):
            async with places:
                await self._process(["baselines", str(seed)], done=self._sat(BASELINES, seed))

    async def _trials(self, places: asyncio.Semaphore) -> dict[str, float]:
        await self._all(places, "train", searches(self.plan))
        lrs = self.chosen()
        first = [Trial(name, 0, lr) for name, lr in lrs.items()]
        await self._all(places, "exam", first)
        for seed in range(1, self.plan.seeds):
            trials = [trial for trial in repeats(self.plan, lrs) if trial.seed == seed]
            await self._all(places, "train", trials)
            await self._all(places, "exam", trials)
        return lrs

    def chosen(self) -> dict[str, float]:
        """The learning rate of each condition that did best on the validation templates.

        Without the conditions that have one still to be tried.
        """
        tried: dict[str, list[Path]] = {}
        for trial in searches(self.plan):
            tried.setdefault(trial.condition, []).append(trained_file(self.work, trial))
        found = {
            name: [msgspec.json.decode(path.read_bytes(), type=Trained) for path in paths]
            for name, paths in tried.items()
            if all(path.exists() for path in paths)
        }
        return {name: max(each, key=lambda one: one.score).trial.lr for name, each in found.items()}

    async def _all(self, places: asyncio.Semaphore, what: str, trials: Sequence[Trial]) -> None:
        async with asyncio.TaskGroup() as group:
            for trial in trials:
                group.create_task(self._one(places, what, trial))

    async def _one(self, places: asyncio.Semaphore, what: str, trial: Trial) -> None:
        async with places:
            if what == "train":
                done = trained_file(self.work, trial).exists()
            else:
                done = self._sat(exam_rows(trial.condition), trial.seed)
            await self._process([what, trial.condition, str(trial.seed), str(trial.lr)], done=done)

    def _sat(self, rows: Sequence[str], seed: int) -> bool:
        """Every row that the process writes: it may have been interrupted between two."""
        return all(exam_file(self.work, row, seed).exists() for row in rows)

    async def _process(self, order: Sequence[str], *, done: bool) -> None:
        name = " ".join(order)
        if not done:
            await self._run(order, self.work / "logs" / f"{'-'.join(order)}.log")
        self._told(name)

    async def _run(self, order: Sequence[str], log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "trainer.demo.reproduce.trial", str(self.work), *order),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        try:
            code = await process.wait()
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGTERM)
                await process.wait()
        if code:
            raise TrialError(f"{' '.join(order)} ended with code {code}: see {log}, then run the command again")


def _first(failed: BaseExceptionGroup[BaseException]) -> BaseException:
    """What went wrong first, out of the groups that task groups in task groups make of it."""
    first = failed.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
