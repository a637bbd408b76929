"""Demonstrations of practice: lessons that its expert executed on the double, of which the right ones are kept.

Every few are of the gym, whose tasks a model knows how to solve: practice on one API alone makes it forget all
others.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec

from app.agent.prompt_profiles import choose_profile
from app.engine.tokenizer import ChatTokenizer
from app.errors import InvalidError
from app.sandbox.forked_sandbox import ForkedSandbox
from trainer.atomic_write import write_atomically
from trainer.environment import Scenario, open_environment
from trainer.learning.batch import Sample, samples_of_turns
from trainer.practice.environments import PracticeEnvironment
from trainer.practice.experts import load_expert
from trainer.rollouts.expert import Expert, ExpertContext, open_expert
from trainer.run_job import Job
from trainer.runs.practice_hours import Sheet
from trainer.sft_data.answer_tokens import UntokenizableError
from trainer.sft_data.chat_samples import TOO_LONG
from trainer.sft_data.rejection_sampling import UNTOKENIZABLE
from trainer.sft_data.selection import select

DIRECTORY = "demonstrations"  # of a run's
MOST = 10_000  # demonstrations, so that their tokens fit in memory
REHEARSED = "gym"  # the environment, and its expert
_EVERY = 4  # batches, one of them is rehearsed
_BATCH = 8  # scenarios at a time, each batch a file
_WITHHELD = 0.45  # of tasks are offered no skill: what serves at first has none
_IN_VAIN = 48  # tasks


class Demonstrations(msgspec.Struct):
    """Those kept, of how many `tried` tasks, and why the others were dropped."""

    samples: list[Sample] = []
    kept: int = 0
    tried: int = 0
    dropped: dict[str, int] = {}

    def add(self, other: "Demonstrations") -> None:
        self.samples += other.samples
        self.kept, self.tried = self.kept + other.kept, self.tried + other.tried
        self.dropped = dict(Counter(self.dropped) + Counter(other.dropped))


def read_demonstrations(directory: Path) -> tuple[Demonstrations, int]:
    """What earlier attempts left, and in how many files."""
    found, files = Demonstrations(), sorted(directory.glob("*.msgpack"))
    for each in files:
        found.add(msgspec.msgpack.decode(each.read_bytes(), type=Demonstrations))
    return found, len(files)


def collected_demonstrations(directory: Path, sheet: Sheet) -> Demonstrations | None:
    """Those of a run that has collected all; without their samples, which fill the memory, if they were taught."""
    if sheet.taught:
        return Demonstrations([], sheet.demonstrations, sheet.tried, sheet.dropped)
    return read_demonstrations(directory)[0] if sheet.collected else None


async def demonstrate(
    job: Job, environment: PracticeEnvironment, may_go_on: Callable[[], bool], report: Callable[[int], object]
) -> Demonstrations:
    """Collect into the run's directory until time is up; `report` is called with the number kept.

    Raises InvalidError where none is right.
    """
    directory = job.directory / DIRECTORY
    found, batches = read_demonstrations(directory)
    tokenizer = ChatTokenizer.load(job.deployment.model_dir, job.deployment.template_kwargs)
    rehearsed = open_environment(REHEARSED)
    async with ForkedSandbox() as sandbox:
        context = ExpertContext(
            environment=environment,
            tokenizer=tokenizer,
            profile=choose_profile(job.deployment.prompt_profile, tokenizer.card),
            sandbox=sandbox,
            seed=job.settings.seed,
        )
        known = replace(context, environment=rehearsed)
        async with load_expert(context, withheld=_WITHHELD) as own, open_expert(REHEARSED, known) as former:
            while not batches or (found.kept < MOST and may_go_on()):
                is_former = batches % _EVERY == _EVERY - 1
                world, expert = (rehearsed, former) if is_former else (environment, own)
                scenarios = world.scenarios("train", _BATCH, job.settings.seed * MOST + batches)
                batch = Demonstrations()
                for one in await asyncio.gather(*(_play(expert, each, tokenizer) for each in scenarios)):
                    batch.add(one)
                write_atomically(msgspec.msgpack.encode(batch), directory / f"{batches:05}.msgpack")
                found.add(batch)
                batches += 1
                report(found.kept)
                if not found.kept and found.tried >= _IN_VAIN:
                    break
    if not found.kept:
        reasons = ", ".join(f"{count} because {reason}" for reason, count in found.dropped.items())
        raise InvalidError(
            f"none of {found.tried} demonstrations can be learned from ({reasons}): use a model with a longer "
            "context, or a document whose operations do what it says"
        )
    return found


async def _play(expert: Expert, scenario: Scenario, tokenizer: ChatTokenizer) -> Demonstrations:
    tasks = len(scenario.tasks)
    try:
        selection = select(await expert.play(scenario, 0.0))
    except UntokenizableError:
        return Demonstrations(tried=tasks, dropped={UNTOKENIZABLE: tasks})
    samples, kept, dropped = list[Sample](), 0, Counter(selection.dropped)
    for each in selection.kept:
        own = samples_of_turns(each.trajectory.turns, failed=False)
        fits = all(len(sample.ids) <= tokenizer.max_length for sample in own)
        samples, kept = samples + (own if fits else []), kept + fits
        dropped += Counter({TOO_LONG: int(not fits)})
    return Demonstrations(samples, kept, tasks, dict(dropped))
