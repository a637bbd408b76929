"""The supervised start that all conditions but one share: trained on a few demonstrations of the scripted
expert.
"""

from collections.abc import Callable
from pathlib import Path

import torch

from app.agent.prompt_compact import Compact
from app.engine.tokenizer import ChatTokenizer
from app.sandbox.forked_sandbox import ForkedSandbox
from app.settings import Settings
from trainer.environment import open_environment
from trainer.learning.batch import Sample, samples_of
from trainer.learning.supervised import SftStep
from trainer.runs.sft import SftSpec, train_sft
from trainer.worlds.office.scripted_rollouts import ScriptRunner, demonstrate
from trainer.worlds.reproduce.plan import ExperimentPlan
from trainer.worlds.seed_policy.samples import load_samples, save_samples

_SEED = 1  # of the demonstrations


async def make_start(
    plan: ExperimentPlan, work: Path, settings: Settings, report: Callable[[SftStep], object]
) -> Path:
    """The adapter's directory. Trained once; resumes after an interruption."""
    torch.set_num_threads(1)  # a model this small is slower on two
    pointer = work / "start.txt"
    if not pointer.exists():
        samples = await _demonstrations(plan, work, settings)

        async def tell(step: SftStep) -> None:
            report(step)

        spec = SftSpec(
            samples=samples,
            settings=plan.sft,
            base=settings.model_dir,
            start=None,
            directory=work / "start",
            adapters=work / "adapters",
        )
        published = await train_sft(spec, torch.device("cpu"), tell)
        pointer.write_text(published.hash)
    return work / "adapters" / pointer.read_text()


async def _demonstrations(plan: ExperimentPlan, work: Path, settings: Settings) -> list[Sample]:
    path = work / "demonstrations.npz"
    if not path.exists():
        environment = open_environment(plan.environment)
        tokenizer = ChatTokenizer.load(settings.model_dir, settings.template_kwargs)
        async with ForkedSandbox() as sandbox:
            runner = ScriptRunner(
                environment=environment,
                tokenizer=tokenizer,
                sandbox=sandbox,
                profile=Compact(),
                crowding=plan.crowded,
            )
            scenarios = environment.scenarios("train", plan.demonstrated, _SEED)
            outcomes = await demonstrate(runner, scenarios, plan.faults, _SEED)
        solved = [each.trajectory for each in outcomes if each.verdict.success]
        save_samples([sample for each in solved for sample in samples_of(each)], path)
    return load_samples([path])
