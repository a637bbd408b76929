"""Makes the seed policy from nothing: tokenizer, demonstrations, training, examination, model directory.

Every stage leaves its result in the work directory and is skipped where that is there already, so an interrupted
run goes on where it was, and a stage may run on another machine.
"""

import asyncio
import shutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import msgspec
import torch
from tqdm import tqdm

from app.agent.compact import Compact
from app.agent.loop import Agent
from app.engine.client import HttpEngine
from app.engine.tokenizer import ChatTokenizer
from app.errors import InvalidError
from app.sandbox.host import ForkedSandbox
from trainer.collect import Practice
from trainer.engine_process import engine_process
from trainer.environments.office.environment import OfficeEnvironment
from trainer.environments.office.templates import TEMPLATES
from trainer.environments.office.vocabulary import vocabulary
from trainer.evaluate import Metrics, measure
from trainer.examine import examine
from trainer.seed_policy.card import Making, card
from trainer.seed_policy.demonstrations import LIMITS, Classroom
from trainer.seed_policy.samples import load_samples, save_samples
from trainer.seed_policy.syntax import PIECES
from trainer.seed_policy.tokenizer import build_tokenizer, save_tokenizer
from trainer.seed_policy.train import MAX_LENGTH, Recipe, new_model, read_record, train, write_drill_words

CHUNK = 100  # scenarios in one file of demonstrations
_EXAM_SEED = 7


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to make."""

    work: Path
    out: Path
    recipe: Recipe
    scenarios: int  # that the expert demonstrates, three tasks each
    exam: int  # held-out scenarios
    processes: int
    device: torch.device
    command: str


def prepare(work: Path, recipe: Recipe) -> None:
    """The tokenizer, and the words to drill."""
    if (work / "tokenizer.json").exists():
        return
    work.mkdir(parents=True, exist_ok=True)
    words = vocabulary()
    actions = {template.function.partition("_by_")[0] for template in TEMPLATES}
    tokenizer = build_tokenizer([*words, *actions, *PIECES])
    write_drill_words(work, [word for word in words if tokenizer.token_to_id(word) is not None])
    save_tokenizer(tokenizer, work, MAX_LENGTH)
    new_model(recipe, tokenizer).config.save_pretrained(work)


def demonstrate(plan: Plan) -> None:
    """The demonstrations, one file a chunk, several chunks at once."""
    missing = list(_missing(plan))
    with (
        ProcessPoolExecutor(plan.processes, get_context("spawn")) as pool,
        tqdm(total=plan.scenarios, initial=plan.scenarios - CHUNK * len(missing), desc="demonstrations") as bar,
    ):
        for _ in pool.map(_chunk, [plan.work] * len(missing), [plan.recipe.seed] * len(missing), missing):
            bar.update(CHUNK)


def teach(plan: Plan) -> None:
    """The weights."""
    if (plan.work / "model" / "config.json").exists():
        return
    train(plan.work, plan.recipe, plan.device)


async def examine_on_test(plan: Plan) -> tuple[Metrics, Metrics]:
    """With the library and without, on the same held-out scenarios, greedily."""
    environment = OfficeEnvironment()
    scenarios = environment.scenarios("test", plan.exam, _EXAM_SEED)
    async with (
        engine_process(plan.out, plan.device) as url,
        HttpEngine([url]) as engine,
        ForkedSandbox() as sandbox,
    ):
        agent = Agent(engine, ChatTokenizer.load(plan.out), Compact(), sandbox, LIMITS)
        results = []
        for library in (True, False):
            with tqdm(total=3 * len(scenarios), desc=f"exam, library {'on' if library else 'off'}") as bar:
                results.append(
                    measure(
                        await examine(Practice(agent, environment), scenarios, library=library, report=bar.update)
                    )
                )
    return results[0], results[1]


def bootstrap(plan: Plan) -> tuple[Metrics, Metrics]:
    """All stages. Raises InvalidError if the demonstrations are too few to be taught from."""
    prepare(plan.work, plan.recipe)
    demonstrate(plan)
    teach(plan)
    assemble(plan)
    metrics = asyncio.run(examine_on_test(plan))
    (plan.out / "README.md").write_text(card(_making(plan), *metrics))
    return metrics


def assemble(plan: Plan) -> None:
    """The model directory, its card still without figures."""
    plan.out.mkdir(parents=True, exist_ok=True)
    for path in sorted((plan.work / "model").iterdir()):
        shutil.copyfile(path, plan.out / path.name)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(plan.work / name, plan.out / name)
    (plan.out / "README.md").write_text("---\nprompt_profile: compact\n---\n")


def _missing(plan: Plan) -> Iterator[int]:
    if plan.scenarios < CHUNK:
        raise InvalidError(f"{plan.scenarios} scenarios are too few to teach from: give at least {CHUNK}")
    for index in range(plan.scenarios // CHUNK):
        if not _chunk_file(plan.work, index).exists():
            yield index


def _chunk_file(work: Path, index: int) -> Path:
    return work / f"demonstrations-{index:04}.npz"


def _chunk(work: Path, seed: int, index: int) -> None:
    """Runs in a process of its own."""

    async def run() -> None:
        scenarios = OfficeEnvironment().scenarios("train", CHUNK, seed * 100_000 + index)
        async with ForkedSandbox() as sandbox:
            kept = await Classroom(ChatTokenizer.load(work), sandbox).demonstrate(scenarios, seed)
        save_samples(kept.samples, _chunk_file(work, index))

    asyncio.run(run())


def _making(plan: Plan) -> Making:
    return Making(
        command=plan.command,
        training=read_record(plan.work),
        demonstrations=len(load_samples(sorted(plan.work.glob("demonstrations-*.npz")))),
        recipe=plan.recipe,
    )
