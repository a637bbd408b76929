"""Adapters for the seed policy, written by the trainer's own code, with reference logprobs; and damaged ones."""

import shutil
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file

from app.base.model_catalog import SEED
from app.base.settings import Settings
from app.engine.adapter_files import WEIGHTS, content_hash
from tests.integration.vllm.server import SEED_POLICY
from tests.support.tiny_adapter import plain_model
from trainer.learning.adapter import PublishedAdapter, publish, with_lora
from trainer.runs.start import probe_prompt

RANK = 8
_SPREAD = 0.05  # of the weights: logprobs change by several tenths, and the text stays readable

Weights = dict[str, torch.Tensor]


def make_adapter(
    root: Path, seed: int, *, rank: int = RANK, base: str | None = str(SEED_POLICY)
) -> PublishedAdapter:
    """One adapter per seed, with its probe. `base` is the name of the model that it carries."""
    model = with_lora(plain_model(SEED_POLICY), rank, 2 * rank, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, _SPREAD, generator=generator)
    return publish(model, root, probe_prompt(Settings(model=SEED)), base=base)


@torch.inference_mode()
def reference(adapter: Path | None, prompt: Sequence[int], sampled: Sequence[int]) -> list[float]:
    """Logprobs of the sampled tokens by transformers and PEFT: one pass over everything, no cache, no batch."""
    logits = _model(adapter)(input_ids=torch.tensor([[*prompt, *sampled]])).logits[0, len(prompt) - 1 : -1]
    chosen = torch.log_softmax(logits.float(), -1).gather(-1, torch.tensor(sampled)[:, None])
    values: list[float] = chosen[:, 0].tolist()
    return values


@cache
def _model(adapter: Path | None) -> torch.nn.Module:
    model = plain_model(SEED_POLICY)
    return model if adapter is None else PeftModel.from_pretrained(model, str(adapter)).eval()


def damaged(good: PublishedAdapter, root: Path, change: Callable[[Weights], None]) -> Path:
    """The adapter with changed weights, in `root`, named by its new content hash."""
    partial = Path(shutil.copytree(good.path, root / "partial"))
    weights = load_file(partial / WEIGHTS)
    change(weights)
    save_file(weights, partial / WEIGHTS)
    return partial.rename(root / content_hash(partial))


def not_finite(weights: Weights) -> None:
    weights[_first(weights, "lora_A")][0, 0] = float("nan")


def blown_up(weights: Weights) -> None:
    for each in weights.values():
        each.mul_(1e20)


def half_as_wide(weights: Weights) -> None:
    name = _first(weights, "lora_A")
    weights[name] = weights[name][:, ::2].contiguous()


def without_a_layer(weights: Weights) -> None:
    for name in [name for name in weights if ".layers.3." in name]:
        del weights[name]


def with_strange_names(weights: Weights) -> None:
    for name in list(weights):
        weights[name.replace("q_proj", "z_proj")] = weights.pop(name)


def _first(weights: Weights, part: str) -> str:
    return next(name for name in sorted(weights) if part in name)
