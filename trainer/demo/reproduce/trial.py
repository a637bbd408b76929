"""One trial in a process of its own: practise, validate on the way, keep the best step, sit the exam.

    python -m trainer.demo.reproduce.trial WORK train CONDITION SEED LR
    python -m trainer.demo.reproduce.trial WORK exam CONDITION SEED LR
    python -m trainer.demo.reproduce.trial WORK baselines SEED

Each leaves one JSON file in WORK/trials; a trial that was interrupted goes on after its last step.
"""

import asyncio
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import torch

from app.records import Policy
from app.settings import Settings
from trainer.atomic_write import write_atomically
from trainer.demo.reproduce.plan import BASELINES, Plan, Trial, exam_rows
from trainer.environment import Split
from trainer.evaluation.local import evaluate_scenarios
from trainer.evaluation.policy_metrics import TaskResult, measure
from trainer.learning.checkpoints import Checkpoints
from trainer.learning.lora import with_lora
from trainer.learning.model import load_model
from trainer.learning.update import Learner
from trainer.rollouts.episode import EpisodeRunner
from trainer.rollouts.stack import RolloutStack, open_stack
from trainer.runs.rollout import RolloutRun, RolloutStep

_VALIDATION_SEED = 500
_EXAM_SEED = 1000  # and the seed of the trial: all conditions sit the same


class Sat(msgspec.Struct, frozen=True, kw_only=True):
    """One exam, sat by one policy."""

    row: str
    seed: int
    results: list[TaskResult]


class Trained(msgspec.Struct, frozen=True, kw_only=True):
    """What a trial's training left."""

    trial: Trial
    best: int  # the step that did best on the validation templates
    score: float  # its SGC there, in percent
    adapter: str
    curve: list[dict[str, Any]]  # per step: its metrics, and the validation where there was one


def trained_file(work: Path, trial: Trial) -> Path:
    return work / "trials" / trial.name / "trained.json"


def exam_file(work: Path, row: str, seed: int) -> Path:
    return work / "exams" / f"{row}-{seed}.json"


@dataclass(frozen=True)
class Bench:
    """Where trials take place."""

    plan: Plan
    work: Path
    ground: RolloutStack
    settings: Settings

    async def train(self, trial: Trial) -> None:
        rules = self.plan.settings(trial)
        directory = self.work / "trials" / trial.name
        curve = _Curve(directory / "curve.json")
        if Checkpoints(directory).rounds > len(curve.points):  # cut off while a step was validated
            shutil.rmtree(directory)
            curve.points.clear()
        directory.mkdir(parents=True, exist_ok=True)
        base = load_model(self.settings.model_dir, torch.device("cpu"))
        start = self._start() if self.plan.conditions[trial.condition].sft else None
        policy = with_lora(base, rules.lora_rank, rules.lora_alpha, start, seed=trial.seed)
        run = RolloutRun(
            replace(self.ground.agent, temperature=1.0),
            self.ground.engine,
            self.ground.environment,
            Learner(policy, rules),
            rules,
            directory,
            self.ground.new_library,
        )

        async def report(done: RolloutStep) -> None:
            found: dict[str, Any] = {"step": done.index, **done.metrics}
            if done.index % self.plan.validate_every == 0:
                library = rules.skills
                results = await self.sit(done.adapter.hash, "validation", _VALIDATION_SEED, library=library)
                found["validation"] = msgspec.to_builtins(measure(results))
                found["adapter"] = done.adapter.hash
                _keep(done.adapter.path, self.work / "adapters")
            else:
                shutil.rmtree(done.adapter.path, ignore_errors=True)
            curve.add(found)

        await run.run(report)
        best = max((each for each in curve.points if "validation" in each), key=_worth)
        trained = Trained(
            trial=trial,
            best=best["step"],
            score=best["validation"]["sgc"]["mean"],
            adapter=best["adapter"],
            curve=curve.points,
        )
        write_atomically(msgspec.json.encode(trained), trained_file(self.work, trial))
        shutil.rmtree(directory / "adapters", ignore_errors=True)

    async def exam(self, trial: Trial) -> None:
        """The best step on the test templates; of SAGE also with its skills taken away."""
        trained = msgspec.json.decode(trained_file(self.work, trial).read_bytes(), type=Trained)
        await self.ground.engine.load_adapter(trained.adapter, self.work / "adapters" / trained.adapter)
        skills = self.plan.settings(trial).skills
        for row in exam_rows(trial.condition):
            await self._sit_exam(row, trial.seed, trained.adapter, library=skills and row == trial.condition)

    async def baselines(self, seed: int) -> None:
        """What needs no training: the base model with a library, and the supervised start."""
        start = self._start()
        await self.ground.engine.load_adapter(start.name, start)
        for row in BASELINES:
            model = Policy().model if row == "prompt_only" else start.name
            await self._sit_exam(row, seed, model, library=row != "sft_skills_off")

    async def _sit_exam(self, row: str, seed: int, model: str, *, library: bool) -> None:
        path = exam_file(self.work, row, seed)
        if not path.exists():  # or it was sat before an interruption
            results = await self.sit(model, "test", _EXAM_SEED + seed, library=library)
            write_atomically(msgspec.json.encode(Sat(row=row, seed=seed, results=results)), path)

    async def sit(self, model: str, split: Split, seed: int, *, library: bool) -> list[TaskResult]:
        count = self.plan.validation if split == "validation" else self.plan.exam
        return await evaluate_scenarios(
            EpisodeRunner(self.ground.agent, self.ground.environment, Policy(model)),
            self.ground.environment.scenarios(split, count, seed),
            library=library,
            new_library=self.ground.new_library,
            at_once=32,
        )

    def _start(self) -> Path:
        return self.work / "adapters" / (self.work / "start.txt").read_text()


class _Curve:
    """What each step measured, on disk: an interrupted trial does not forget it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.points: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []

    def add(self, point: dict[str, Any]) -> None:
        """A step that is done again replaces what it measured before."""
        self.points = [each for each in self.points if each["step"] < point["step"]] + [point]
        write_atomically(msgspec.json.encode(self.points), self._path)


def _worth(point: dict[str, Any]) -> tuple[float, float]:
    """SGC on the validation templates; of equals the one with fewer tokens."""
    figures = point["validation"]
    return figures["sgc"]["mean"], -figures["tokens"]["mean"]


def _keep(adapter: Path, root: Path) -> None:
    if not (root / adapter.name).exists():
        partial = root / f".{adapter.name}"
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(adapter, partial)
        partial.rename(root / adapter.name)


async def _run(work: Path, order: Sequence[str]) -> None:
    plan = msgspec.json.decode((work / "plan.json").read_bytes(), type=Plan)
    settings = Settings(data_dir=work)
    trial = Trial(order[1], int(order[2]), float(order[3])) if order[0] != "baselines" else None
    retrieval = plan.settings(trial).retrieval if trial else "scenario"
    async with open_stack(plan.environment, retrieval, settings, plan.limits) as ground:
        bench = Bench(plan, work, ground, settings)
        match order[0], trial:
            case "train", Trial():
                await bench.train(trial)
            case "exam", Trial():
                await bench.exam(trial)
            case _:
                await bench.baselines(int(order[1]))


if __name__ == "__main__":
    torch.set_num_threads(1)
    asyncio.run(_run(Path(sys.argv[1]), sys.argv[2:]))
