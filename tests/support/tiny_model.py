"""A model directory with random weights and a real tokenizer, made in a second."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = """{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
MAX_LENGTH = 512


def make_model_dir(
    path: Path, architecture: str = "qwen2", *, spread: float = 0.3, merges: Sequence[tuple[str, str]] = ()
) -> Path:
    """Weights with enough variance that distributions are neither flat nor certain."""
    path.mkdir(parents=True, exist_ok=True)
    vocabulary = write_tokenizer(path, merges)
    model = _model(architecture, vocabulary)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, spread, generator=generator)
    model.save_pretrained(path)
    return path


def write_tokenizer(path: Path, merges: Sequence[tuple[str, str]] = ()) -> int:
    """A byte-level tokenizer with these merges and the chat's special tokens; returns the vocabulary's size."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet()) + [left + right for left, right in merges]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(alphabet)}, list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(path / "tokenizer.json"))
    options = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIAL[0], "pad_token": SPECIAL[0]}
    (path / "tokenizer_config.json").write_text(json.dumps(options), "utf-8")
    (path / "chat_template.jinja").write_text(TEMPLATE, "utf-8")
    return len(alphabet) + len(SPECIAL)


def _model(architecture: str, vocabulary: int) -> PreTrainedModel:
    torch.manual_seed(0)
    if architecture == "qwen2":
        return Qwen2ForCausalLM(
            Qwen2Config(
                vocab_size=vocabulary,
                hidden_size=64,
                intermediate_size=128,
                num_hidden_layers=3,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=MAX_LENGTH,
                tie_word_embeddings=True,
                eos_token_id=vocabulary - 3,
                bos_token_id=None,
            )
        )
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=48,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=MAX_LENGTH,
            eos_token_id=vocabulary - 3,
            bos_token_id=None,
        )
    )
