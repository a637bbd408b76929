"""Convert the trained Qwen2 to a Llama that computes the same function.

For every Qwen2, transformers uses Qwen's own tokenizer class, regardless of the model directory's configuration,
and that class splits text in its own way. A Llama keeps the tokenizer in its directory. The two differ in one
bias, after the attention output, which Llama has and is zero here.
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

_SHARED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_parameters",
    "tie_word_embeddings",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
)
_ADDED = "self_attn.o_proj.bias"


@torch.no_grad()
def as_llama(model: PreTrainedModel) -> LlamaForCausalLM:
    """A copy on the CPU. Raises RuntimeError if a weight has no counterpart."""
    shared = {name: getattr(model.config, name) for name in _SHARED}
    llama = LlamaForCausalLM(LlamaConfig(**shared, attention_bias=True))
    weights = {name: weight.cpu() for name, weight in model.state_dict().items()}
    for name, parameter in llama.named_parameters():
        if name.endswith(_ADDED):
            weights[name] = torch.zeros_like(parameter)
    llama.load_state_dict(weights)
    return llama
