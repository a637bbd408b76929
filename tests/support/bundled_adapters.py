"""Adapters that stand in for those in the package: of rank 16, small random weights, for a tiny base model."""

import hashlib
from pathlib import Path

import torch

from app.releases.adapter_store import AdapterStore
from app.releases.bundled_adapter import BundledAdapter
from app.releases.promotion import FirstRelease
from trainer.learning.adapter import publish, with_lora
from trainer.learning.model import load_model

BASE = "tiny-1m"


def bundle(model_dir: Path, root: Path, seed: int = 1) -> BundledAdapter:
    """Published under `root` as a training run publishes."""
    policy = with_lora(load_model(model_dir, torch.device("cpu")), 16, 32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "lora_" in name:
                parameter.normal_(0, 0.05, generator=generator)
    made = publish(policy, root, base=BASE)
    weights = hashlib.sha256((model_dir / "model.safetensors").read_bytes()).hexdigest()
    return BundledAdapter(model=BASE, path=made.path, hash=made.hash, weights=weights)


def first_release(
    bundled: BundledAdapter | None, model_dir: Path, data_dir: Path, base: str = BASE
) -> FirstRelease:
    return FirstRelease(bundled, model_dir, AdapterStore(data_dir / "adapters"), base=base)
