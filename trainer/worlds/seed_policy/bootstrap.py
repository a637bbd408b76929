"""Build the seed policy from scratch: tokenizer, demonstrations, training, directory, evaluation, card.

Every stage but the evaluation leaves its result in the work directory and is skipped if the result exists, so
an interrupted build resumes, and a stage may run on another machine. Demonstrations are rollouts of the scripted
expert, kept if every check passed: one file per chunk of scenarios, written by several processes and never twice.
"""

import asyncio
import json
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import msgspec
import torch
from tqdm import tqdm

from app.agent.prompts import Compact
from app.agent.rollout import Agent
from app.base.errors import InvalidError
from app.base.processes import exit_with_parent
from app.engine.client import HttpEngine
from app.engine.tokenizer import ChatTokenizer
from app.sandbox.forked_sandbox import ForkedSandbox
from trainer.engines.servers import engine_process
from trainer.environment import Scenario
from trainer.evaluation.local import evaluate_scenarios
from trainer.evaluation.metrics import PolicyMetrics, measure, metrics_table
from trainer.learning.batch import Sample, samples_of
from trainer.rollouts.episode import EpisodeRunner
from trainer.worlds.office.apps import operation_names
from trainer.worlds.office.environment import OfficeEnvironment
from trainer.worlds.office.expert import Faults, vocabulary
from trainer.worlds.office.rollouts import LIMITS, ScriptRunner, demonstrate
from trainer.worlds.office.scenarios import TEMPLATES
from trainer.worlds.recipes import MAX_LENGTH, Recipe, claim_directory
from trainer.worlds.seed_policy.pretrain import (
    TrainingCost,
    as_llama,
    is_trained,
    load_samples,
    new_model,
    read_record,
    save_samples,
    train,
    write_drill_words,
)
from trainer.worlds.seed_policy.tokenizer import PIECES, build_tokenizer, save_tokenizer

CROWDING = 0.6
FAULTS = Faults(unprepared=0.08, page=0.08, synonym=0.04, inline=0.02, ignore=0.02)
_CHUNK = 100  # scenarios
_TEST_SEED = 7
_TEXT = """---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
prompt_profile: compact
learning_rate: 0.001
tags: [agent, code]
made_for_apis:
{apis}
---
# Seed policy

A {parameters:,}-parameter Qwen2, converted to a Llama that computes the same function so that AutoTokenizer and
vLLM keep its tokenizer. It works in the bundled demo environment and knows nothing else: its vocabulary is that
environment's words. It was trained from scratch on {demonstrations:,} demonstrations of the scripted expert, all
of which had passed every check of the verifier. Reinforcement learning improves on it, and it serves where no
other model is named.

Built with `{command}` on {machine}, in {minutes:.0f} minutes of training.

Recipe: `{recipe}`

Held-out scenarios of the test templates, greedy decoding:

{figures}

Intervals are 95 %, by bootstrap over scenarios. TGC: tasks solved. SGC: scenarios with all three tasks solved.
"""


class SeedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to build, and where."""

    work: Path
    out: Path
    recipe: Recipe
    scenarios: int  # to demonstrate, three tasks each
    test_scenarios: int  # held out, for the evaluation
    processes: int
    device: torch.device
    command: str


def bootstrap(plan: SeedPlan) -> tuple[PolicyMetrics, PolicyMetrics]:
    """Run all stages.

    Raises InvalidError if the scenarios fill no whole chunks, or `work` holds another recipe's.
    """
    if plan.scenarios < _CHUNK or plan.scenarios % _CHUNK:
        raise InvalidError(f"{plan.scenarios} scenarios fill no whole chunks: choose a multiple of {_CHUNK}")
    prepare(plan.work, plan.recipe)
    make_chunks(plan.work, plan.recipe.seed, plan.scenarios // _CHUNK, plan.processes)
    teach(plan)
    assemble(plan)
    metrics = asyncio.run(examine_on_test(plan))
    demonstrations = len(load_samples(plan.work.glob("demonstrations-*.npz")))
    (plan.out / "README.md").write_text(card(plan, read_record(plan.work), demonstrations, *metrics))
    return metrics


def prepare(work: Path, recipe: Recipe) -> None:
    """Write the tokenizer and the words of the drills. Raises InvalidError if `work` holds another recipe's."""
    work.mkdir(parents=True, exist_ok=True)
    claim_directory(work, recipe)
    if (work / "config.json").exists():  # written last
        return
    words = vocabulary()
    actions = {template.function.partition("_by_")[0] for template in TEMPLATES}
    tokenizer = build_tokenizer([*words, *actions, *PIECES])
    write_drill_words(work, [word for word in words if tokenizer.token_to_id(word) is not None])
    save_tokenizer(tokenizer, work, MAX_LENGTH)
    as_llama(new_model(recipe, tokenizer)).config.save_pretrained(work)


def make_chunks(work: Path, seed: int, count: int, processes: int) -> None:
    """Write those of the `count` files of demonstrations that are missing."""
    missing = [index for index in range(count) if not _chunk_file(work, index).exists()]
    made = _CHUNK * (count - len(missing))
    with (
        ProcessPoolExecutor(
            processes, get_context("spawn"), initializer=exit_with_parent, initargs=(os.getpid(),)
        ) as pool,
        tqdm(total=_CHUNK * count, initial=made, desc="demonstrations", unit="scenario") as bar,
    ):
        for _ in pool.map(partial(_make_chunk, work, seed), missing):
            bar.update(_CHUNK)


def _make_chunk(work: Path, seed: int, index: int) -> None:
    """In a process of its own."""
    environment = OfficeEnvironment()
    scenarios = environment.scenarios("train", _CHUNK, seed * 100_000 + index)

    async def demonstrated() -> list[Sample]:
        async with ForkedSandbox() as sandbox:
            runner = ScriptRunner(environment, ChatTokenizer.load(work), sandbox, crowding=CROWDING)
            return await demonstrated_samples(runner, scenarios, FAULTS, seed)

    save_samples(asyncio.run(demonstrated()), _chunk_file(work, index))


def _chunk_file(work: Path, index: int) -> Path:
    return work / f"demonstrations-{index:04}.npz"


async def demonstrated_samples(
    runner: ScriptRunner, scenarios: Sequence[Scenario], faults: Faults, seed: int
) -> list[Sample]:
    """Of the expert's successful rollouts over these scenarios, in order; the same for the same seed."""
    episodes = await demonstrate(runner, scenarios, faults, seed)
    return [sample for each in episodes if each.verdict.success for sample in samples_of(each.trajectory)]


def teach(plan: SeedPlan) -> None:
    """Train the weights."""
    if not is_trained(plan.work):
        train(plan.work, plan.recipe, plan.device)


def assemble(plan: SeedPlan) -> None:
    """Write the model directory; its card has no metrics yet."""
    plan.out.mkdir(parents=True, exist_ok=True)
    for path in sorted((plan.work / "model").iterdir()):
        shutil.copyfile(path, plan.out / path.name)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(plan.work / name, plan.out / name)
    (plan.out / "README.md").write_text("---\nprompt_profile: compact\nlearning_rate: 0.001\n---\n")


async def examine_on_test(plan: SeedPlan) -> tuple[PolicyMetrics, PolicyMetrics]:
    """Evaluate greedily on the same held-out scenarios, with the library and without."""
    environment = OfficeEnvironment()
    scenarios = environment.scenarios("test", plan.test_scenarios, _TEST_SEED)
    async with (
        engine_process(plan.out, plan.device.type) as url,
        HttpEngine([url]) as engine,
        ForkedSandbox() as sandbox,
    ):
        agent = Agent(engine, ChatTokenizer.load(plan.out), Compact(), sandbox, LIMITS)
        runner, metrics = EpisodeRunner(agent, environment), []
        for library in (True, False):
            with tqdm(total=3 * len(scenarios), desc=f"evaluation, library {'on' if library else 'off'}") as bar:
                results = await evaluate_scenarios(runner, scenarios, library=library, report=bar.update)
            metrics.append(measure(results))
    return metrics[0], metrics[1]


def card(
    plan: SeedPlan,
    cost: TrainingCost,
    demonstrations: int,
    with_library: PolicyMetrics,
    without: PolicyMetrics,
) -> str:
    return _TEXT.format(
        apis="\n".join(f"  {app}: [{', '.join(names)}]" for app, names in operation_names().items()),
        parameters=cost.parameters,
        demonstrations=demonstrations,
        command=plan.command,
        machine=cost.machine,
        minutes=cost.seconds / 60,
        recipe=json.dumps(msgspec.to_builtins(plan.recipe)),
        figures=metrics_table({"with its library": with_library, "without": without}),
    )
