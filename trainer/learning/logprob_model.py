"""The policy as one module with one forward pass, to which multi-device wrappers attach."""

from typing import cast

from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel

from trainer.learning.batch import Batch
from trainer.learning.model import sampled_logits, sampled_logprobs


class LogprobModel(nn.Module):
    """Where processes share the weights, every pass must go through this module, which gathers them."""

    def __init__(self, model: PeftModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch, *, most_likely: bool = False) -> Tensor:
        """log p of each sampled token, (N,), in row-major order; or the most likely token in each one's place."""
        base = cast(PreTrainedModel, self.model.get_base_model())  # with the LoRA layers in it
        return sampled_logits(base, batch).argmax(-1) if most_likely else sampled_logprobs(base, batch)
