"""Run a plan: every training and every evaluation, several at once, without repeating finished ones."""

import asyncio
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from app.base.errors import AppError
from app.base.processes import end_with_parent, python_module
from trainer.runs.start import check_run_memory
from trainer.worlds.reproduce.plan import (
    ExperimentPlan,
    Trial,
    baseline_rows,
    evaluated_rows,
    repeated_trials,
    search_trials,
)
from trainer.worlds.reproduce.start import experiment_settings, update_device
from trainer.worlds.reproduce.trial import TrialResult, results_file, trained_steps, trial_file

_LOOK_SECONDS = 5


class TrialError(AppError):
    """The process of a trial failed. The message names its log."""


def check_memory(plan: ExperimentPlan, work: Path, at_once: int) -> None:
    """Of the trials that are not finished: each has a trainer and an engine. Raises ModelMemoryError."""
    settings = experiment_settings(plan, work)
    again = repeated_trials(plan, {each.condition: each.lr for each in search_trials(plan)})
    left = [each for each in (*search_trials(plan), *again) if not trial_file(work, each).exists()]
    if left:
        rules, device = plan.settings(left[0]), update_device(plan, settings)
        runs = min(at_once, len(left))
        check_run_memory(rules, settings, device, runs=runs, advice="or take fewer trials --at-once")


class Experiment:
    """One plan in one directory. `report` is called with the name of each process that has finished, `tell` with
    what one has done meanwhile.
    """

    def __init__(
        self,
        plan: ExperimentPlan,
        work: Path,
        report: Callable[[str], object],
        tell: Callable[[str], object] = lambda _: None,
    ) -> None:
        self.plan, self.work, self._report, self._tell = plan, work, report, tell

    def size(self) -> int:
        """The number of processes in all, finished ones included."""
        again = repeated_trials(self.plan, dict.fromkeys(self.plan.conditions, 0.0))
        return self.plan.seeds + len(search_trials(self.plan)) + 2 * len(again) + len(self.plan.conditions)

    async def execute(self, at_once: int) -> None:
        """Run everything that is not finished. Raises TrialError."""
        places = asyncio.Semaphore(at_once)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._baselines(places))
                group.create_task(self._trials(places))
        except ExceptionGroup as failed:
            raise _first(failed) from None

    async def _baselines(self, places: asyncio.Semaphore) -> None:
        for seed in range(self.plan.seeds):
            async with places:
                await self._process(["baselines", str(seed)], done=self._evaluated(baseline_rows(self.plan), seed))

    async def _trials(self, places: asyncio.Semaphore) -> None:
        await self._all(places, "train", search_trials(self.plan))
        lrs = self.chosen()
        await self._all(places, "exam", [Trial(name, 0, lr) for name, lr in lrs.items()])
        for seed in range(1, self.plan.seeds):
            trials = [trial for trial in repeated_trials(self.plan, lrs) if trial.seed == seed]
            await self._all(places, "train", trials)
            await self._all(places, "exam", trials)

    def chosen(self) -> dict[str, float]:
        """Each condition's learning rate with the best SGC on the validation templates.

        Conditions with an untried learning rate are left out.
        """
        tried: dict[str, list[Path]] = {}
        for trial in search_trials(self.plan):
            tried.setdefault(trial.condition, []).append(trial_file(self.work, trial))
        found = {
            name: [msgspec.json.decode(path.read_bytes(), type=TrialResult) for path in paths]
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
                done = trial_file(self.work, trial).exists()
            else:
                done = self._evaluated(evaluated_rows(self.plan, trial.condition), trial.seed)
            await self._process([what, trial.condition, str(trial.seed), str(trial.lr)], done=done)

    def _evaluated(self, rows: Sequence[str], seed: int) -> bool:
        """Whether all rows of the process exist: it may have been interrupted between two."""
        files = (results_file(self.work, row, seed, title) for row in rows for title in self.plan.exam_titles)
        return all(file.exists() for file in files)

    async def _process(self, order: Sequence[str], *, done: bool) -> None:
        if not done:
            await self._run(order)
        self._report(" ".join(order))

    async def _run(self, order: Sequence[str]) -> None:
        log = self.work / "logs" / f"{'-'.join(order)}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                *python_module("trainer.worlds.reproduce.trial", str(self.work), *order),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        try:
            code = await self._ended(process, order)
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGTERM)
                await process.wait()
        if code:
            raise TrialError(f"{' '.join(order)} ended with code {code}: see {log}, then run the command again")

    async def _ended(self, process: Process, order: Sequence[str]) -> int:
        """The code of the process. Tells of each step that it trains."""
        ending, told = asyncio.create_task(process.wait()), 0
        while not (await asyncio.wait([ending], timeout=_LOOK_SECONDS))[0]:
            if order[0] != "train":
                continue
            step = trained_steps(self.work, Trial(order[1], int(order[2]), float(order[3])))
            if step > told:
                self._tell(f"{' '.join(order)}: step {step} of {self.plan.steps}")
                told = step
        return ending.result()


def _first(failed: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first failure, out of the nested groups that nested task groups raise."""
    first = failed.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
