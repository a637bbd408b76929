"""Small GGUF files, written with the gguf package from models with random weights."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from numpy.typing import NDArray
from safetensors.torch import load_file
from tokenizers import Tokenizer

from app.engine.tokenizer import read_json
from tests.support.tiny_model import SPECIAL, TEMPLATE, make_model_dir

_NORMAL, _CONTROL = 1, 3
_TENSORS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_ENDS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
MERGES = (("d", "e"), ("de", "f"), ("Ġ", "x"), ("1", "2"), ("Ġ", "Ġ"), ("ĠĠ", "ĠĠ"))


def write_gguf(
    path: Path,
    model_dir: Path,
    *,
    architecture: str = "qwen2",
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    template: str = TEMPLATE,
    leave_out: str = "",
    tensors: Mapping[str, NDArray[Any]] | None = None,
    **values: Any,
) -> Path:
    """The model of `make_model_dir(model_dir, architecture)` as GGUF; `values` replace metadata (__ for dots)."""
    if not model_dir.is_dir():
        make_model_dir(model_dir, architecture, merges=MERGES)
    config, weights = read_json(model_dir, "config.json"), load_file(model_dir / "model.safetensors")
    writer = GGUFWriter(path, values.pop("general_architecture", architecture))
    metadata = _metadata(config, model_dir, architecture, template) | {
        key.replace("__", "."): value for key, value in values.items()
    }
    for key, value in metadata.items():
        _add(writer, key, value)
    named = {_gguf_name(name): tensor.float().numpy() for name, tensor in weights.items()} | dict(tensors or {})
    for name, tensor in sorted(named.items()):
        if name == leave_out:
            continue
        if architecture == "llama" and ".attn_q." in name:
            tensor = _interleaved(tensor, config["num_attention_heads"])
        if architecture == "llama" and ".attn_k." in name:
            tensor = _interleaved(tensor, config["num_key_value_heads"])
        if tensor.ndim == 2 and kind != GGMLQuantizationType.F32:
            writer.add_tensor(name, quantize(tensor, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _metadata(config: dict[str, Any], model_dir: Path, architecture: str, template: str) -> dict[str, Any]:
    vocabulary = Tokenizer.from_file(str(model_dir / "tokenizer.json")).get_vocab(with_added_tokens=True)
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    return {
        f"{architecture}.block_count": config["num_hidden_layers"],
        f"{architecture}.context_length": config["max_position_embeddings"],
        f"{architecture}.embedding_length": config["hidden_size"],
        f"{architecture}.feed_forward_length": config["intermediate_size"],
        f"{architecture}.attention.head_count": config["num_attention_heads"],
        f"{architecture}.attention.head_count_kv": config["num_key_value_heads"],
        f"{architecture}.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        f"{architecture}.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm" if architecture == "llama" else "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [_CONTROL if token in SPECIAL else _NORMAL for token in tokens],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in MERGES],
        "tokenizer.ggml.eos_token_id": vocabulary[SPECIAL[0]],
        "tokenizer.ggml.padding_token_id": vocabulary[SPECIAL[0]],
        "tokenizer.chat_template": template,
    }


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    match value:
        case str():
            writer.add_string(key, value)
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case _:
            writer.add_array(key, value)


def _gguf_name(name: str) -> str:
    module, _, kind = name.rpartition(".")
    if module in _ENDS:
        return f"{_ENDS[module]}.{kind}"
    _, _, layer, inner = module.split(".", 3)
    return f"blk.{layer}.{_TENSORS[inner]}.{kind}"


def _interleaved(rows: NDArray[Any], heads: int) -> NDArray[Any]:
    """As llama.cpp's converter stores queries and keys of a llama."""
    height, width = rows.shape
    return rows.reshape(heads, 2, height // heads // 2, width).swapaxes(1, 2).reshape(height, width).copy()
