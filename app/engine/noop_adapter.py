"""Writes an adapter that changes nothing, to probe whether a server loads adapters of a given rank."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from safetensors.numpy import save_file

from app.engine.tokenizer import read_json
from app.errors import ModelError
from app.scratch import scratch_directory

_LAYERS = ("num_hidden_layers", "hidden_size", "num_attention_heads")


class QueryShape(msgspec.Struct, frozen=True):
    """Shape of the query projections that the adapter covers."""

    layers: int
    width: int  # input features
    queries: int  # output features


def read_shape(model: Path) -> QueryShape | None:
    """None if the base's config.json does not give it, or the layers differ from each other."""
    try:
        config: dict[str, Any] = read_json(model, "config.json")
    except ModelError:
        return None
    kinds = set(config.get("layer_types") or ["full_attention"])
    if not all(isinstance(config.get(name), int) for name in _LAYERS) or kinds != {"full_attention"}:
        return None
    layers, width, heads = (config[name] for name in _LAYERS)
    return QueryShape(layers, width, heads * (config.get("head_dim") or width // heads))


def write_noop_adapter(directory: Path, shape: QueryShape, rank: int) -> Path:
    """Write `directory`/.capability-... atomically, once. Raises OSError."""
    path = directory / f".capability-{rank}-{shape.layers}x{shape.width}x{shape.queries}"
    if path.is_dir():
        return path
    directory.mkdir(parents=True, exist_ok=True)
    with scratch_directory(directory) as scratch:
        draft = scratch / path.name
        draft.mkdir(0o755)  # the server may run as another user
        (draft / "adapter_config.json").write_text(json.dumps(_config(rank)), "utf-8")
        save_file(_weights(shape, rank), draft / "adapter_model.safetensors")
        try:
            draft.rename(path)
        except OSError:
            if not path.is_dir():  # otherwise another process was faster
                raise
    return path


def _config(rank: int) -> dict[str, Any]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": rank,
        "lora_dropout": 0.0,
        "target_modules": ["q_proj"],
        "bias": "none",
    }


def _weights(shape: QueryShape, rank: int) -> dict[str, np.ndarray[Any, Any]]:
    weights: dict[str, np.ndarray[Any, Any]] = {}
    for layer in range(shape.layers):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        weights[f"{name}.lora_A.weight"] = np.zeros((rank, shape.width), np.float32)
        weights[f"{name}.lora_B.weight"] = np.zeros((shape.queries, rank), np.float32)
    return weights
