"""The model of an experiment and the adapter that it starts from."""

import shutil
from pathlib import Path

import msgspec
import torch

from app.adapters.bundled_adapter import BundledAdapter
from app.adapters.files import content_hash
from app.agent.prompt_profiles import adapter_profile, choose_profile
from app.engine.tokenizer import read_card
from app.errors import InvalidError
from app.model_catalog import SEED, find_model
from app.settings import Settings
from trainer.learning.model import pick_device
from trainer.learning.publishing import check_adapter
from trainer.worlds.reproduce.plan import ExperimentPlan


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
    if not (work / "adapters" / name).exists():
        partial = work / "adapters" / f".{name}"
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(adapter, partial)
        partial.rename(work / "adapters" / name)
    (work / "start.txt").write_text(name)
