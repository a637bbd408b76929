"""Adapters named by content hash, as a deployment keeps them, and their probes."""

from pathlib import Path

from peft import PeftModel

from app.base.values import Probe
from app.engine.adapter_files import WEIGHTS, content_hash
from tests.support.tiny_adapter import make_adapter, plain_model
from trainer.learning.adapter import LogprobModel, make_probe

OPENING = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5)


def name_by_content(path: Path) -> str:
    """Renames the directory and returns its new name."""
    name = content_hash(path)
    path.rename(path.parent / name)
    return name


def make_named(model_dir: Path, root: Path, seed: int, *, rank: int = 4, fill: float | None = None) -> str:
    """`fill` sets one weight, to damage it."""
    return name_by_content(make_adapter(model_dir, root / f"new-{seed}", seed, rank=rank, fill=fill))


def cut_short(root: Path, name: str) -> None:
    """Truncates the weights."""
    weights = root / name / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-100])


def probe_of(model_dir: Path, path: Path) -> Probe:
    """The probe that a trainer would publish."""
    return make_probe(LogprobModel(PeftModel.from_pretrained(plain_model(model_dir), str(path))), OPENING)
