"""Adapter directories as PEFT writes them, with random weights."""

from collections.abc import Sequence
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, PreTrainedModel

TARGETS = ["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"]


def make_adapter(
    model_dir: Path,
    path: Path,
    seed: int,
    *,
    rank: int = 4,
    fill: float | None = None,
    targets: Sequence[str] = TARGETS,
) -> Path:
    """`fill` sets one weight, to damage it."""
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=list(targets), task_type="CAUSAL_LM")
    model = get_peft_model(plain_model(model_dir), config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(0, 0.15, generator=generator)
                if fill is not None:
                    parameter[0, 0] = fill
    model.save_pretrained(str(path))
    return path


def plain_model(model_dir: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    model.eval()
    return model


@torch.inference_mode()
def reference(model_dir: Path, adapter: Path | None, prompt: list[int], sampled: list[int]) -> list[float]:
    """Logprobs of the sampled tokens from one forward pass over everything: no cache, no batch."""
    model: torch.nn.Module = plain_model(model_dir)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, str(adapter)).eval()
    logits = model(input_ids=torch.tensor([prompt + sampled])).logits[0, len(prompt) - 1 : -1]
    chosen = torch.log_softmax(logits, -1).gather(-1, torch.tensor(sampled)[:, None])
    values: list[float] = chosen[:, 0].tolist()
    return values
