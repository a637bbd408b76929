"""A model that answers as another does and takes longer: some of its layers change nothing."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

_OUTPUTS = ("o_proj", "down_proj")  # what a layer adds to what it was given


def deepen(source: Path, into: Path, layers: int) -> Path:
    """A copy of the model directory `source` with so many layers more, which compute and add zero."""
    shutil.copytree(source, into)
    config = json.loads((into / "config.json").read_text())
    weights = load_file(into / "model.safetensors")
    depth = config["num_hidden_layers"]
    first = {name: each for name, each in weights.items() if name.startswith("model.layers.0.")}
    for index in range(depth, depth + layers):
        for name, each in first.items():
            silent = any(output in name for output in _OUTPUTS)
            weights[name.replace(".0.", f".{index}.", 1)] = torch.zeros_like(each) if silent else each.clone()
    save_file(weights, into / "model.safetensors", metadata={"format": "pt"})
    config["num_hidden_layers"] = depth + layers
    (into / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    return into
