"""Runs a plan: every trial and every exam, several at once. What is there is not done again."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from app.errors import AppError
from trainer.reproduce.plan import Plan, Trial, repeats, searches
from trainer.reproduce.trial import Trained, exam_file, trained_file

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
        except* TrialError as failed:
            raise failed.exceptions[0] from None

    async def _baselines(self, places: asyncio.Semaphore) -> None:
        for seed in range(self.plan.seeds):
            async with places:
                done = all(exam_file(self.work, row, seed).exists() for row in ("prompt_only", "sft"))
                await self._process(["baselines", str(seed)], done=done)

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
        """The learning rate of each condition that did best on the validation templates."""
        best: dict[str, Trained] = {}
        for trial in searches(self.plan):
            trained = msgspec.json.decode(trained_file(self.work, trial).read_bytes(), type=Trained)
            if trial.condition not in best or trained.score > best[trial.condition].score:
                best[trial.condition] = trained
        return {name: each.trial.lr for name, each in best.items()}

    async def _all(self, places: asyncio.Semaphore, what: str, trials: Sequence[Trial]) -> None:
        async with asyncio.TaskGroup() as group:
            for trial in trials:
                group.create_task(self._one(places, what, trial))

    async def _one(self, places: asyncio.Semaphore, what: str, trial: Trial) -> None:
        async with places:
            file = trained_file(self.work, trial)
            done = (file if what == "train" else exam_file(self.work, trial.condition, trial.seed)).exists()
            await self._process([what, trial.condition, str(trial.seed), str(trial.lr)], done=done)

    async def _process(self, order: Sequence[str], *, done: bool) -> None:
        name = " ".join(order)
        if not done:
            await self._run(order, self.work / "logs" / f"{'-'.join(order)}.log")
        self._told(name)

    async def _run(self, order: Sequence[str], log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "trainer.reproduce.trial", str(self.work), *order),
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
