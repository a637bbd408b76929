"""Make the adapter of a pretrained model: demonstrations, training with exams on the way, evaluation, card.

Every stage leaves its result in the work directory and is skipped if the result exists, so a build that was
killed resumes, and a stage may run on another machine.
"""

import asyncio
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import torch
from safetensors.torch import save_file
from tqdm import tqdm

from app.agent.prompts import choose_profile
from app.base.errors import InvalidError, StorageError
from app.base.files import scratch_directory, write_atomically
from app.base.model_catalog import CATALOG
from app.base.settings import Settings
from app.engine.adapter_files import CONFIG, WEIGHTS, content_hash
from app.engine.tokenizer import ChatTokenizer, read_card
from trainer.environment import Split
from trainer.evaluation.local import LocalEvaluation, open_local_evaluation
from trainer.evaluation.metrics import PolicyMetrics, TaskResult, measure, metrics_table
from trainer.learning.adapter import check_adapter
from trainer.learning.distributed_learner import fingerprint
from trainer.learning.supervised import SftSettings
from trainer.worlds.base_adapter.training import (
    CurvePoint,
    SftSegment,
    check_memory,
    collect_files,
    fitting_processes,
    plan_files,
    read_training_set,
    train_segment,
    write_training_set,
)
from trainer.worlds.recipes import HELD_OUT, AdapterRecipe, check_recipe, claim_directory, file_name

Figures = dict[str, dict[str, PolicyMetrics]]
"""Metrics by the title of an exam, then by policy and library."""

_VALIDATION = {"gym": "gym", "strangers": "strangers", "office": "office"}
_SEED = 7
_LIBRARY = {True: "on", False: "off"}
_BASE_SHARE = 20
_TURNS = 8  # twice what a task needs
_AT_ONCE = 32  # chains
_CURVE = ["step", "examples", "tokens", "learned", "CPU minutes", "loss", "held-out loss", "TGC on validation, %"]
_TEXT = """---
base_model: {model}
license: apache-2.0
library_name: peft
prompt_profile: {profile}
tags: [agent, code, lora]
---
# Adapter for {model}

LoRA of rank {rank} on all linear layers, in bfloat16, content hash `{hash}`. It learned from {examples:,} examples
({tokens:,} tokens, {learned:,} of them answers) of {demonstrations:,} demonstrations of experts. Each was executed
and judged right. The scenarios below are of other splits.

Built with `{command}` at commit {commit}, by {processes} processes in {cost}.

{start}Recipe: `{recipe}`

## Data

{data}

## Learning curve

{curve}

## Evaluation

Held-out scenarios, greedy decoding; `base` is the model without the adapter. Intervals are 95 %, by bootstrap over
scenarios, and exact where all or none were solved. TGC: tasks solved. SGC: scenarios with all tasks solved.

{figures}
"""
_START = """It went on from the adapter `{hash}`, the directory after `--start`: without it, the command does not
make this adapter again.

"""


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
    def training(self) -> Path:
        return self.work / "training"

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
    write_half(plan.training / "adapters" / curve[-1].adapter, plan.adapter)
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
    recipe = plan.recipe
    for since in range(0, recipe.steps, recipe.report_every):
        until = min(since + recipe.report_every, recipe.steps)
        point = train_segment(_segment(plan, since, until), plan.learners)
        if until % recipe.exam_every == 0 and until < recipe.steps:  # the last one has the final exams
            adapter = plan.training / "adapters" / point.adapter
            exams = validation_exams(adapter, recipe.exam_scenarios, plan.work / "exams" / f"step-{until:06}")
            metrics = {exam.title: run_exam(exam, plan.rollout_settings)[True] for exam in exams}
            point = msgspec.structs.replace(point, exams=metrics)
        curve.append(point)
        lines = b"".join(msgspec.json.encode(each) + b"\n" for each in curve)
        write_atomically(lines, plan.work / "learning-curve.jsonl")
    return curve


def write_half(source: Path, target: Path) -> None:
    """Write `target` whole or not at all, unless it is there. The same adapter gives the same files.

    Raises StorageError if the disk is full.
    """
    if target.exists():
        return
    weights = {name: each.to(torch.bfloat16).contiguous() for name, each in check_adapter(source).items()}
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with scratch_directory(target.parent) as scratch:
            partial = scratch / target.name
            partial.mkdir()
            save_file(weights, partial / WEIGHTS, metadata={"format": "pt"})
            shutil.copyfile(source / CONFIG, partial / CONFIG)
            partial.rename(target)
    except OSError as error:
        raise StorageError(f"{target} could not be written ({error.strerror}): free disk space") from error


def examine(plan: AdapterPlan) -> Figures:
    """Run the final exams, with the adapter and with the base alone."""
    figures: Figures = {}
    files = plan.work / "exams" / f"test-{plan.test_scenarios}"  # those of another size are others, and stay
    for exam in final_exams(plan.adapter, plan.test_scenarios, files, plan.exams):
        policy = f"base, {exam.scenarios} scenarios" if exam.adapter is None else exam.policy
        for library, metrics in run_exam(exam, plan.rollout_settings).items():
            figures.setdefault(exam.title, {})[f"{policy}, library {_LIBRARY[library]}"] = metrics
    return figures


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


def _segment(plan: AdapterPlan, since: int, until: int) -> SftSegment:
    recipe = plan.recipe
    return SftSegment(
        model_dir=plan.model_dir,
        start=plan.start,
        base_name=recipe.model if recipe.model in CATALOG else None,
        samples=plan.samples("train"),
        held_out=plan.samples("validation"),
        work=plan.training,
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


class AdapterExam(msgspec.Struct, frozen=True, kw_only=True):
    """One environment, with and without an adapter's directory, and the files of its results."""

    title: str
    environment: str
    adapter: Path | None
    split: Split
    scenarios: int
    libraries: tuple[bool, ...]
    files: Path  # their directory

    @property
    def policy(self) -> str:
        return "base" if self.adapter is None else "adapter"

    def file(self, library: bool) -> Path:
        return self.files / f"{file_name(self.title)}-{self.policy}-library-{_LIBRARY[library]}.json"

    @property
    def missing(self) -> list[bool]:
        return [each for each in self.libraries if not self.file(each).exists()]


def final_exams(
    adapter: Path, scenarios: int, files: Path, environments: Mapping[str, str]
) -> Iterator[AdapterExam]:
    """Each environment by the adapter, and its first scenarios by the base alone, which is slow at failing."""
    for title, environment in environments.items():
        for policy in (adapter, None):
            yield AdapterExam(
                title=title,
                environment=environment,
                adapter=policy,
                split="test",
                scenarios=scenarios if policy else -(-scenarios // _BASE_SHARE),
                libraries=(True, False) if policy else (True,),
                files=files,
            )


def validation_exams(adapter: Path, scenarios: int, files: Path) -> Iterator[AdapterExam]:
    """A few scenarios of validation with the library on: how the training goes."""
    for title, environment in _VALIDATION.items():
        yield AdapterExam(
            title=title,
            environment=environment,
            adapter=adapter,
            split="validation",
            scenarios=scenarios,
            libraries=(True,),
            files=files,
        )


def run_exam(exam: AdapterExam, settings: Settings) -> dict[bool, PolicyMetrics]:
    """Metrics with the library on and off. What an earlier call finished is read, not repeated."""
    if exam.missing:
        asyncio.run(_evaluate(exam, settings))
    found = {library: exam.file(library).read_bytes() for library in exam.libraries}
    return {library: measure(msgspec.json.decode(each, type=list[TaskResult])) for library, each in found.items()}


async def _evaluate(exam: AdapterExam, settings: Settings) -> None:
    evaluation = LocalEvaluation(
        environment=exam.environment,
        adapter=str(exam.adapter or ""),
        split=exam.split,
        scenarios=exam.scenarios,
        at_once=_AT_ONCE,
    )
    limited = msgspec.structs.replace(settings, max_turns=min(settings.max_turns, _TURNS))
    async with open_local_evaluation(evaluation, limited) as evaluate:
        for library in exam.missing:
            with tqdm(desc=f"{exam.title}, {exam.policy}, library {_LIBRARY[library]}", unit="task") as bar:
                results = await evaluate(_SEED, library, bar.update)
            write_atomically(msgspec.json.encode(results), exam.file(library))


class AdapterOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """How the adapter was built."""

    command: str
    commit: str
    processes: int
    hash: str
    demonstrations: dict[str, int]  # by part of the mix
    dropped: dict[str, int]  # demonstrations that the model cannot read, by reason
    recipe: AdapterRecipe


def adapter_card(
    origin: AdapterOrigin, curve: Sequence[CurvePoint], figures: dict[str, dict[str, PolicyMetrics]]
) -> str:
    """`figures` are columns of metrics by the title of their exam."""
    recipe, last = origin.recipe, curve[-1]
    return _TEXT.format(
        model=recipe.model,
        profile=recipe.profile,
        rank=recipe.rank,
        hash=origin.hash,
        demonstrations=sum(origin.demonstrations.values()),
        examples=last.examples,
        tokens=last.tokens,
        learned=last.learned_tokens,
        command=origin.command,
        commit=origin.commit,
        processes=origin.processes,
        cost=f"{last.cpu_minutes:.0f} CPU minutes of training" + (last.device and f", each on {last.device}"),
        start=_START.format(hash=recipe.start) if recipe.start else "",
        recipe=msgspec.json.encode(recipe).decode(),
        data=_data(origin),
        curve=_curve(curve),
        figures="\n\n".join(f"### {title}\n\n{metrics_table(each)}" for title, each in figures.items()),
    )


def _data(origin: AdapterOrigin) -> str:
    rows = [
        f"| {part.name} | {part.environment} | `{part.expert}` | {part.share:.0%} "
        f"| {origin.demonstrations.get(part.name, 0):,} |"
        for part in origin.recipe.mix
    ]
    dropped = [f"\nLeft out {count:,}: {reason}." for reason, count in origin.dropped.items()]
    head = "| part | environment | expert | share of scenarios | demonstrations |"
    return "\n".join([head, "|---|---|---|---|---|", *rows, *dropped])


def _curve(curve: Sequence[CurvePoint]) -> str:
    """Without the last column where no exam was run on the way."""
    rows = [
        [
            f"{each.step}",
            f"{each.examples:,}",
            f"{each.tokens:,}",
            f"{each.learned_tokens:,}",
            f"{each.cpu_minutes:.1f}",
            f"{each.loss:.4f}",
            f"{each.held_out_loss:.4f}",
            ", ".join(
                f"{title} {exam.tgc.mean:.0f} [{exam.tgc.low:.0f}, {exam.tgc.high:.0f}]"
                for title, exam in each.exams.items()
            ),
        ]
        for each in curve
    ]
    shown = len(_CURVE) if any(each.exams for each in curve) else len(_CURVE) - 1
    return "\n".join(f"| {' | '.join(row[:shown])} |" for row in [_CURVE, ["---"] * len(_CURVE), *rows])
