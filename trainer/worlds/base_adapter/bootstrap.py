"""Make the adapter of a pretrained model: demonstrations, training with exams on the way, evaluation, card.

Every stage leaves its result in the work directory and is skipped if the result exists, so a build that was killed
resumes, and a stage may run on another machine.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec
import torch

from app.adapters.files import CONFIG, WEIGHTS, content_hash
from app.agent.prompt_profiles import choose_profile
from app.engine.tokenizer import ChatTokenizer, read_card
from app.errors import InvalidError
from app.model_catalog import CATALOG
from app.settings import Settings
from trainer.atomic_write import write_atomically
from trainer.environment import Split
from trainer.evaluation.policy_metrics import PolicyMetrics
from trainer.learning.distributed_learner import fingerprint
from trainer.learning.publishing import check_adapter
from trainer.learning.supervised import SftSettings
from trainer.worlds.base_adapter.adapter_card import AdapterOrigin, adapter_card
from trainer.worlds.base_adapter.adapter_exams import LIBRARY, AdapterExam, final_exams, run_exam, validation_exams
from trainer.worlds.base_adapter.adapter_recipe import AdapterRecipe, check_recipe
from trainer.worlds.base_adapter.demonstration_files import collect_files, plan_files
from trainer.worlds.base_adapter.half_precision import write_half
from trainer.worlds.base_adapter.learning_curve import CurvePoint
from trainer.worlds.base_adapter.sft_segment import SftSegment, check_memory, fitting_processes, train_segment
from trainer.worlds.base_adapter.training_set import read_training_set, write_training_set
from trainer.worlds.held_out import HELD_OUT
from trainer.worlds.recipe_file import claim_directory

Figures = dict[str, dict[str, PolicyMetrics]]
"""Metrics by the title of an exam, then by policy and library."""


class AdapterPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to build from which model, and where."""

    work: Path
    out: Path
    model_dir: Path
    start: Path | None = None  # the adapter of the recipe's `start`
    recipe: AdapterRecipe
    test_scenarios: int  # of each final exam
    processes: int  # of the demonstrations, and of the training where the device allows as many
    device: str
    command: str
    commit: str
    settings: Settings  # of the rollouts; its model is replaced
    exams: Mapping[str, str] = msgspec.field(default_factory=lambda: HELD_OUT)  # at the end: environments by title

    @property
    def rollout_settings(self) -> Settings:
        return msgspec.structs.replace(
            self.settings,
            model=str(self.model_dir.absolute()),
            prompt_profile=self.recipe.profile,
            engine_device=self.device,
            rollout_engine_urls="",
        )

    @property
    def learners(self) -> int:
        """The processes of the training."""
        return fitting_processes(self.processes, self.device, torch.cuda.device_count())

    def samples(self, split: Split) -> Path:
        return self.work / f"samples-{split}.msgpack"

    @property
    def adapter(self) -> Path:
        return self.work / "adapter"


def new_recipe(model: str, model_dir: Path, start: Path | None = None) -> AdapterRecipe:
    """The default recipe for a model, with the hashes that tell it and an adapter to go on from from others.

    Raises InvalidError for an adapter that cannot be read.
    """
    if start is not None:
        check_adapter(start)
    return AdapterRecipe(
        model=model, base=fingerprint(model_dir), start="" if start is None else content_hash(start)
    )


def bootstrap_adapter(plan: AdapterPlan) -> Figures:
    """Run all stages. Raises InvalidError for a recipe that does not fit, or a work directory of another one."""
    check_recipe(plan.recipe)
    if fingerprint(plan.model_dir) != plan.recipe.base:
        raise InvalidError(f"{plan.model_dir} is not the model of the recipe: start another work directory")
    check_memory(_segment(plan, 0, plan.recipe.steps), plan.learners)  # demonstrations take hours
    claim_directory(plan.work, plan.recipe)
    demonstrate(plan)
    curve = learn(plan)
    write_half(_trained(plan) / "adapters" / curve[-1].adapter, plan.adapter)
    figures = examine(plan)
    _assemble(plan, curve, figures)
    return figures


def serving_advice(plan: AdapterPlan) -> str:
    """The setting to serve the adapter with, if the model's own prompt is not the one that it learned with."""
    learned, own = plan.recipe.profile, choose_profile("", read_card(plan.model_dir)).name
    return "" if learned == own else f"; serve it with SAGE_PROMPT_PROFILE={learned}"


def demonstrate(plan: AdapterPlan) -> None:
    """Collect the demonstrations of training and of the held-out loss, and tokenize them."""
    tokenizer = ChatTokenizer.load(plan.model_dir)
    splits: tuple[Split, ...] = ("train", "validation")
    for split in splits:
        if not plan.samples(split).exists():
            files = plan_files(plan.recipe, plan.work, split)
            collect_files(files, plan.recipe.profile, plan.rollout_settings, plan.processes)
            write_training_set(files, tokenizer, plan.samples(split))


def learn(plan: AdapterPlan) -> list[CurvePoint]:
    """Train in segments, with exams between some. The learning curve is on disk after each."""
    curve: list[CurvePoint] = []
    recipe, since = plan.recipe, 0
    while since < recipe.steps:
        until = min(since + recipe.report_every, recipe.steps)
        point = train_segment(_segment(plan, since, until), plan.learners)
        if until % recipe.exam_every == 0 and until < recipe.steps:  # the last one has the final exams
            adapter = _trained(plan) / "adapters" / point.adapter
            exams = validation_exams(adapter, recipe.exam_scenarios, plan.work / "exams" / f"step-{until:06}")
            metrics = {exam.title: run_exam(exam, plan.rollout_settings)[True] for exam in exams}
            point = msgspec.structs.replace(point, exams=metrics)
        curve.append(point)
        lines = b"".join(msgspec.json.encode(each) + b"\n" for each in curve)
        write_atomically(lines, plan.work / "learning-curve.jsonl")
        since = until
    return curve


def examine(plan: AdapterPlan) -> Figures:
    """Run the final exams, with the adapter and with the base alone."""
    figures: Figures = {}
    for exam in final_exams(plan.adapter, plan.test_scenarios, _final_files(plan), plan.exams):
        columns = figures.setdefault(exam.title, {})
        for library, metrics in run_exam(exam, plan.rollout_settings).items():
            columns[_column(exam, library)] = metrics
    return figures


def _segment(plan: AdapterPlan, since: int, until: int) -> SftSegment:
    recipe = plan.recipe
    return SftSegment(
        model_dir=plan.model_dir,
        start=plan.start,
        base_name=recipe.model if recipe.model in CATALOG else None,
        samples=plan.samples("train"),
        held_out=plan.samples("validation"),
        work=_trained(plan),
        settings=SftSettings(
            steps=recipe.steps,
            lr=recipe.lr,
            warmup=recipe.warmup,
            schedule="plateau",
            decay=recipe.decay,
            tokens=recipe.tokens,
            weight_decay=0.0,  # it would pull the policy back to the base
            seed=recipe.seed,
            checkpoint_every=recipe.report_every,
        ),
        rank=recipe.rank,
        alpha=recipe.alpha,
        dtype=recipe.dtype,
        device=plan.device,
        since=since,
        until=until,
    )


def _trained(plan: AdapterPlan) -> Path:
    return plan.work / "training"


def _final_files(plan: AdapterPlan) -> Path:
    """Exams of another size are others: they are run anew, and the old ones stay."""
    return plan.work / "exams" / f"test-{plan.test_scenarios}"


def _column(exam: AdapterExam, library: bool) -> str:
    policy = f"base, {exam.scenarios} scenarios" if exam.adapter is None else exam.policy
    return f"{policy}, library {LIBRARY[library]}"


def _assemble(plan: AdapterPlan, curve: list[CurvePoint], figures: Figures) -> None:
    training = read_training_set(plan.samples("train"))
    origin = AdapterOrigin(
        command=plan.command,
        commit=plan.commit,
        processes=plan.learners,
        hash=content_hash(plan.adapter),
        demonstrations=training.demonstrations,
        dropped=training.dropped,
        recipe=plan.recipe,
    )
    plan.out.mkdir(parents=True, exist_ok=True)
    for name in (CONFIG, WEIGHTS):
        shutil.copyfile(plan.adapter / name, plan.out / name)
    write_atomically(adapter_card(origin, curve, figures).encode(), plan.out / "README.md")
