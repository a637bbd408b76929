"""One trial in a process of its own: train, validate on the way, keep the best step, evaluate it.

    python -m trainer.worlds.reproduce.trial WORK train CONDITION SEED LR
    python -m trainer.worlds.reproduce.trial WORK exam CONDITION SEED LR
    python -m trainer.worlds.reproduce.trial WORK baselines SEED

Each writes JSON files below WORK; an interrupted trial resumes after its last step.
"""

import asyncio
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from app.base.files import write_atomically
from app.base.run_settings import RunSettings
from app.base.settings import Settings
from app.base.values import Policy
from trainer.environment import Environment, Scenario, Split, open_environment
from trainer.evaluation.local import evaluate_scenarios
from trainer.evaluation.metrics import TaskResult, measure
from trainer.learning.adapter import PublishedAdapter, with_lora
from trainer.learning.learner import Checkpoints, Learner
from trainer.learning.model import base_dtype, load_model
from trainer.rollouts.episode import EpisodeRunner, Mix, RolloutStack, open_stack
from trainer.rollouts.memories import open_memory
from trainer.runs.rollout import RolloutTraining, TrainingStep
from trainer.worlds.office.rollouts import crowd_around
from trainer.worlds.recipes import file_name
from trainer.worlds.reproduce.plan import ExperimentPlan, Trial, baseline_rows, condition_of, evaluated_rows
from trainer.worlds.reproduce.start import experiment_settings, keep_adapter, update_device

_VALIDATION_SEED = 500
_TEST_SEED = 1000  # plus the seed of the trial: the same scenarios for all conditions


class RowResults(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one policy on the test templates."""

    row: str
    seed: int
    results: list[TaskResult]


class TrialResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a trial's training."""

    trial: Trial
    best: int  # the step with the best SGC on the validation templates
    score: float  # its SGC there, in percent
    adapter: str
    curve: list[dict[str, Any]]  # per step: its metrics, and the validation where there was one


def trial_file(work: Path, trial: Trial) -> Path:
    return work / "trials" / trial.name / "trained.json"


def trained_steps(work: Path, trial: Trial) -> int:
    """How many steps have been trained so far."""
    points = _Curve(_curve_file(work, trial)).points
    return int(points[-1]["step"]) if points else 0


def _curve_file(work: Path, trial: Trial) -> Path:
    return work / "trials" / trial.name / "curve.json"


def results_file(work: Path, row: str, seed: int, exam: str = "") -> Path:
    return work / "exams" / file_name(exam) / f"{row}-{seed}.json"


@dataclass(frozen=True)
class TrialRunner:
    """Runs trials of a plan."""

    plan: ExperimentPlan
    work: Path
    stack: RolloutStack
    settings: Settings

    async def train(self, trial: Trial) -> None:
        rules = self.plan.settings(trial)
        directory = self.work / "trials" / trial.name
        curve = _Curve(_curve_file(self.work, trial))
        directory.mkdir(parents=True, exist_ok=True)
        device, model_dir = update_device(self.plan, self.settings), self.settings.model_dir
        base = load_model(model_dir, device, dtype=base_dtype("auto", device, model_dir))
        condition = self.plan.condition(trial.condition)
        start = self._start() if condition.sft else None
        policy = with_lora(base, rules.lora_rank, start=start, seed=trial.seed)
        learner = Learner(policy, rules)
        run = RolloutTraining(self.stack, learner, rules, directory, crowded=condition.crowded)
        await self._validate_last(run, curve)

        async def report(done: TrainingStep) -> None:
            curve.add({"step": done.index, **done.metrics})  # now: its validation may be interrupted
            if self._is_validated(done.index):
                await self._validate(done.index, done.adapter, curve, rules)
            else:
                shutil.rmtree(done.adapter.path, ignore_errors=True)

        await run.run(report)
        best = max((each for each in curve.points if "validation" in each), key=_quality)
        trained = TrialResult(
            trial=trial,
            best=best["step"],
            score=best["validation"]["sgc"]["mean"],
            adapter=best["adapter"],
            curve=curve.points,
        )
        write_atomically(msgspec.json.encode(trained), trial_file(self.work, trial))
        shutil.rmtree(directory / "adapters", ignore_errors=True)

    def _is_validated(self, step: int) -> bool:
        return step % self.plan.validate_every == 0

    async def _validate(self, step: int, adapter: PublishedAdapter, curve: "_Curve", rules: RunSettings) -> None:
        """Add the validation of a step, whose adapter the engine has loaded, to its metrics."""
        results = await self.evaluate(adapter.hash, "validation", _VALIDATION_SEED, rules)
        keep_adapter(adapter.path, adapter.hash, self.work)
        validation = msgspec.to_builtins(measure(results))
        curve.add(curve.at(step) | {"validation": validation, "adapter": adapter.hash})

    async def _validate_last(self, run: RolloutTraining, curve: "_Curve") -> None:
        """Validate the last step of an earlier attempt if that was interrupted before."""
        step = Checkpoints(run.directory).restore(run.learner)
        if step and self._is_validated(step) and "validation" not in curve.at(step):
            adapter = run.learner.publish(run.directory / "adapters")
            await self.stack.engine.load_adapter(adapter.hash, adapter.path)
            await self._validate(step, adapter, curve, run.settings)
            await self.stack.engine.unload_adapter(adapter.hash)

    async def evaluate_best(self, trial: Trial) -> None:
        """Evaluate the best step on the test templates; for SAGE also with skills off."""
        trained = msgspec.json.decode(trial_file(self.work, trial).read_bytes(), type=TrialResult)
        await self.stack.engine.load_adapter(trained.adapter, self.work / "adapters" / trained.adapter)
        rules = self.plan.settings(trial)
        for row in evaluated_rows(self.plan, trial.condition):
            off = msgspec.structs.replace(rules, skills=False)
            await self._evaluate_row(row, trial.seed, trained.adapter, off if row == "sage_skills_off" else rules)

    async def baselines(self, seed: int) -> None:
        """Evaluate the base model with a library, and the supervised start."""
        start = self._start()
        await self.stack.engine.load_adapter(start.name, start)
        for row in baseline_rows(self.plan):
            model = Policy().model if row == "prompt_only" else start.name
            await self._evaluate_row(row, seed, model, RunSettings(skills=row != "sft_skills_off"))

    async def _evaluate_row(self, row: str, seed: int, model: str, rules: RunSettings) -> None:
        for title in self.plan.exam_titles:
            path = results_file(self.work, row, seed, title)
            if not path.exists():  # or it was evaluated before an interruption
                environment = open_environment(self.plan.exams[title]) if title else None
                mix = crowd_around if condition_of(row) != row and rules.skills else None
                test = _TEST_SEED + seed
                results = await self.evaluate(model, "test", test, rules, environment, mix)
                write_atomically(msgspec.json.encode(RowResults(row=row, seed=seed, results=results)), path)

    async def evaluate(
        self,
        model: str,
        split: Split,
        seed: int,
        rules: RunSettings,
        environment: Environment | None = None,
        mix: Callable[[Scenario], Mix] | None = None,
    ) -> list[TaskResult]:
        """In the plan's environment unless another one is given, with the skills and the memory of a run."""
        count = self.plan.validation if split == "validation" else self.plan.exam
        place = environment or self.stack.environment
        return await evaluate_scenarios(
            EpisodeRunner(self.stack.agent, place, Policy(model), post_hoc=rules.extraction == "post_hoc"),
            place.scenarios(split, count, seed),
            library=rules.skills,
            new_library=self.stack.new_library,
            at_once=32,
            mix=mix,
            new_memory=open_memory(rules.memory),
        )

    def _start(self) -> Path:
        return self.work / "adapters" / (self.work / "start.txt").read_text()


class _Curve:
    """The metrics of each step, on disk, so that an interrupted trial keeps them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.points: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []

    def at(self, step: int) -> dict[str, Any]:
        """The step alone where its metrics are missing."""
        return next((each for each in self.points if each["step"] == step), {"step": step})

    def add(self, point: dict[str, Any]) -> None:
        """A repeated step replaces its earlier metrics."""
        self.points = [each for each in self.points if each["step"] < point["step"]] + [point]
        write_atomically(msgspec.json.encode(self.points), self._path)


def _quality(point: dict[str, Any]) -> tuple[float, float]:
    """Sort key: SGC on the validation templates, then fewer tokens."""
    figures = point["validation"]
    return figures["sgc"]["mean"], -figures["tokens"]["mean"]


async def _run(work: Path, order: Sequence[str]) -> None:
    plan = msgspec.json.decode((work / "plan.json").read_bytes(), type=ExperimentPlan)
    settings = experiment_settings(plan, work)
    trial = Trial(order[1], int(order[2]), float(order[3])) if order[0] != "baselines" else None
    retrieval = plan.condition(trial.condition).retrieval if trial else "scenario"
    async with open_stack(open_environment(plan.environment), retrieval, settings, plan.limits) as stack:
        runner = TrialRunner(plan, work, stack, settings)
        match order[0], trial:
            case "train", Trial():
                await runner.train(trial)
            case "exam", Trial():
                await runner.evaluate_best(trial)
            case _:
                await runner.baselines(int(order[1]))


if __name__ == "__main__":
    torch.set_num_threads(1)
    asyncio.run(_run(Path(sys.argv[1]), sys.argv[2:]))
