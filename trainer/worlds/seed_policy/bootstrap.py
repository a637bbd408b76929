"""Build the seed policy from scratch: tokenizer, demonstrations, training, model directory, evaluation.

Every stage but the evaluation leaves its result in the work directory and is skipped if the result exists, so an
interrupted build resumes, and a stage may run on another machine.
"""

import asyncio
import shutil
from pathlib import Path

import msgspec
import torch
from tqdm import tqdm

from app.agent.prompt_compact import Compact
from app.agent.rollout_loop import Agent
from app.engine.http_engine import HttpEngine
from app.engine.tokenizer import ChatTokenizer
from app.errors import InvalidError
from app.sandbox.forked_sandbox import ForkedSandbox
from trainer.engines.engine_process import engine_process
from trainer.evaluation.local import evaluate_scenarios
from trainer.evaluation.policy_metrics import PolicyMetrics, measure
from trainer.rollouts.episode import EpisodeRunner
from trainer.worlds.office.office_environment import OfficeEnvironment
from trainer.worlds.office.task_templates import TEMPLATES
from trainer.worlds.office.vocabulary import vocabulary
from trainer.worlds.recipe_file import claim_directory
from trainer.worlds.seed_policy.card import Provenance, card
from trainer.worlds.seed_policy.chunks import CHUNK, chunk_files, make_chunks
from trainer.worlds.seed_policy.demonstrations import LIMITS
from trainer.worlds.seed_policy.llama import as_llama
from trainer.worlds.seed_policy.pretrain import is_trained, new_model, read_record, train, write_drill_words
from trainer.worlds.seed_policy.recipe import MAX_LENGTH, Recipe
from trainer.worlds.seed_policy.samples import load_samples
from trainer.worlds.seed_policy.syntax import PIECES
from trainer.worlds.seed_policy.word_tokenizer import build_tokenizer, save_tokenizer

_TEST_SEED = 7


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


def teach(plan: SeedPlan) -> None:
    """Train the weights."""
    if not is_trained(plan.work):
        train(plan.work, plan.recipe, plan.device)


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
        results = []
        for library in (True, False):
            with tqdm(total=3 * len(scenarios), desc=f"evaluation, library {'on' if library else 'off'}") as bar:
                results.append(
                    measure(
                        await evaluate_scenarios(
                            EpisodeRunner(agent, environment), scenarios, library=library, report=bar.update
                        )
                    )
                )
    return results[0], results[1]


def bootstrap(plan: SeedPlan) -> tuple[PolicyMetrics, PolicyMetrics]:
    """Run all stages.

    Raises InvalidError if the scenarios fill no whole chunks, or `work` holds another recipe's.
    """
    if plan.scenarios < CHUNK or plan.scenarios % CHUNK:
        raise InvalidError(f"{plan.scenarios} scenarios fill no whole chunks: choose a multiple of {CHUNK}")
    prepare(plan.work, plan.recipe)
    make_chunks(plan.work, plan.recipe.seed, plan.scenarios // CHUNK, plan.processes)
    teach(plan)
    assemble(plan)
    metrics = asyncio.run(examine_on_test(plan))
    (plan.out / "README.md").write_text(card(_provenance(plan), *metrics))
    return metrics


def assemble(plan: SeedPlan) -> None:
    """Write the model directory; its card has no metrics yet."""
    plan.out.mkdir(parents=True, exist_ok=True)
    for path in sorted((plan.work / "model").iterdir()):
        shutil.copyfile(path, plan.out / path.name)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(plan.work / name, plan.out / name)
    (plan.out / "README.md").write_text("---\nprompt_profile: compact\nlearning_rate: 0.001\n---\n")


def _provenance(plan: SeedPlan) -> Provenance:
    return Provenance(
        command=plan.command,
        training=read_record(plan.work),
        demonstrations=len(load_samples(chunk_files(plan.work))),
        recipe=plan.recipe,
    )
