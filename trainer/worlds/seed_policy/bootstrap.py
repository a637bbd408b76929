"""Build the seed policy from scratch: tokenizer, demonstrations, training, directory, evaluation, card.

Every stage but the evaluation leaves its result in the work directory and is skipped if the result exists, so
an interrupted build resumes, and a stage may run on another machine.
"""

import asyncio
import json
import shutil
from pathlib import Path

import msgspec
import torch
from tqdm import tqdm

from app.agent.prompts import Compact
from app.agent.rollout import Agent
from app.base.errors import InvalidError
from app.engine.client import HttpEngine
from app.engine.tokenizer import ChatTokenizer
from app.sandbox.forked_sandbox import ForkedSandbox
from trainer.engines.servers import engine_process
from trainer.evaluation.local import evaluate_scenarios
from trainer.evaluation.metrics import PolicyMetrics, measure, metrics_table
from trainer.rollouts.episode import EpisodeRunner
from trainer.worlds.office.apps import operation_names
from trainer.worlds.office.environment import OfficeEnvironment
from trainer.worlds.office.expert import vocabulary
from trainer.worlds.office.scenarios import TEMPLATES
from trainer.worlds.recipes import MAX_LENGTH, Recipe, claim_directory
from trainer.worlds.seed_policy.demonstrations import CHUNK, LIMITS, chunk_files, make_chunks
from trainer.worlds.seed_policy.pretrain import (
    TrainingCost,
    as_llama,
    is_trained,
    new_model,
    read_record,
    train,
    write_drill_words,
)
from trainer.worlds.seed_policy.samples import load_samples
from trainer.worlds.seed_policy.tokenizer import PIECES, build_tokenizer, save_tokenizer

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


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """How the policy was built."""

    command: str
    training: TrainingCost
    demonstrations: int
    recipe: Recipe


def card(provenance: Provenance, with_library: PolicyMetrics, without: PolicyMetrics) -> str:
    facts = msgspec.structs.asdict(provenance) | {
        "parameters": provenance.training.parameters,
        "minutes": provenance.training.seconds / 60,
        "apis": "\n".join(f"  {app}: [{', '.join(names)}]" for app, names in operation_names().items()),
        "machine": provenance.training.machine,
        "recipe": json.dumps(msgspec.to_builtins(provenance.recipe)),
        "figures": metrics_table({"with its library": with_library, "without": without}),
    }
    return _TEXT.format(**facts)


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
