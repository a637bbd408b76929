"""What an experiment starts from: its model, the adapter of it, or a supervised start.

All conditions but one share that start, trained on a few demonstrations of the scripted expert.
"""

import shutil
from pathlib import Path

import msgspec
import torch
from tqdm import tqdm

from app.agent.prompts import adapter_profile, choose_profile
from app.base.errors import InvalidError
from app.base.model_catalog import SEED, find_model
from app.base.settings import Settings
from app.engine.adapter_files import content_hash
from app.engine.tokenizer import ChatTokenizer, read_card
from app.releases.bundled_adapter import BundledAdapter
from app.sandbox.forked_sandbox import ForkedSandbox
from trainer.environment import open_environment
from trainer.learning.adapter import check_adapter
from trainer.learning.batch import Sample
from trainer.learning.model import pick_device
from trainer.learning.supervised import SftStep
from trainer.runs.sft import SftSpec, train_sft
from trainer.worlds.office.rollouts import ScriptRunner
from trainer.worlds.reproduce.plan import ExperimentPlan
from trainer.worlds.seed_policy.bootstrap import demonstrated_samples
from trainer.worlds.seed_policy.pretrain import load_samples, save_samples

_SEED = 1  # of the demonstrations


def experiment_settings(plan: ExperimentPlan, work: Path) -> Settings:
    """Of the environment only the device counts, and not for the seed policy.

    Raises ModelError for a model that was not pulled.
    """
    if plan.model == SEED:
        return Settings(data_dir=work, model=SEED)
    here = Settings.from_env()
    model_dir = find_model(plan.model, here.data_dir)
    own = Settings(data_dir=work, model=str(model_dir.absolute()), engine_device=here.engine_device)
    return msgspec.structs.replace(own, prompt_profile=plan.profile)


def update_device(plan: ExperimentPlan, settings: Settings) -> torch.device:
    """The seed policy is updated on the CPU everywhere, as for the published results."""
    return torch.device("cpu") if plan.model == SEED else pick_device(settings.engine_device)


def find_start(model: str, adapter: Path | None) -> Path:
    """The directory of the adapter to start from: the one given, or the one that comes with the model.

    Raises InvalidError if there is none, ModelError for a model that was not pulled.
    """
    if adapter is not None:
        check_adapter(adapter)
        return adapter
    bundled = BundledAdapter.of(find_model(model, Settings.from_env().data_dir))
    if bundled is None:
        raise InvalidError(
            f"no adapter comes with {model}: make one with `sage bootstrap --model {model} DIR`, and name it with "
            "--adapter DIR"
        )
    return bundled.path


def start_profile(model: str, start: Path) -> str:
    """The prompt profile of the settings or of the start's card; empty where it is the model's own.

    Raises SettingError for an unknown one.
    """
    here = Settings.from_env()
    card = read_card(find_model(model, here.data_dir))
    chosen = choose_profile(here.prompt_profile or adapter_profile(start), card).name
    return "" if chosen == choose_profile("", card).name else chosen


def import_start(adapter: Path, work: Path) -> None:
    """Make an adapter the supervised start of the experiment in `work`. Safe to repeat."""
    name = content_hash(adapter)
    keep_adapter(adapter, name, work)
    (work / "start.txt").write_text(name)


def keep_adapter(adapter: Path, name: str, work: Path) -> None:
    """Copy it to those of the experiment under its content hash, completely or not at all."""
    kept, partial = work / "adapters" / name, work / "adapters" / f".{name}"
    if not kept.exists():
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(adapter, partial)
        partial.rename(kept)


async def make_start(plan: ExperimentPlan, work: Path) -> None:
    """Train it, for the seed policy. Trained once; resumes after an interruption."""
    torch.set_num_threads(1)  # a model this small is slower on two
    if (work / "start.txt").exists():
        return
    settings = experiment_settings(plan, work)
    spec = SftSpec(
        samples=await _demonstrations(plan, work, settings),
        settings=plan.sft,
        base=settings.model_dir,
        start=None,
        directory=work / "start",
        adapters=work / "adapters",
    )
    with tqdm(total=plan.sft.steps, desc="supervised start", unit="step", disable=None) as bar:

        async def report(_: SftStep) -> None:
            bar.update()

        published = await train_sft(spec, torch.device("cpu"), report)
    (work / "start.txt").write_text(published.hash)


async def _demonstrations(plan: ExperimentPlan, work: Path, settings: Settings) -> list[Sample]:
    path = work / "demonstrations.npz"
    if not path.exists():
        environment = open_environment(plan.environment)
        tokenizer = ChatTokenizer.load(settings.model_dir, settings.template_kwargs)
        async with ForkedSandbox() as sandbox:
            runner = ScriptRunner(environment, tokenizer, sandbox, crowding=plan.crowded)
            scenarios = environment.scenarios("train", plan.demonstrated, _SEED)
            samples = await demonstrated_samples(runner, scenarios, plan.faults, _SEED)
        save_samples(samples, path)
    return load_samples([path])
