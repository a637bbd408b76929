"""An adapter fits a base model by the names and shapes of its modules, in any tower of layers."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from app.base.errors import AdapterError
from app.engine.adapter_files import CONFIG, WEIGHTS, base_shapes, inspect

SPEAKS = "language_model.model.layers"
SEES = "vision_tower.vision_model.encoder.layers"
TOWERS = {
    f"{SPEAKS}.{number}.{part}.weight": torch.zeros(8, 8)
    for number in (0, 1)
    for part in ("self_attn.q_proj", "mlp.up_proj")
} | {f"{SEES}.{number}.self_attn.q_proj.weight": torch.zeros(4, 4) for number in (0, 1, 2)}
Q0 = "model.layers.0.self_attn.q_proj"


def model(path: Path, tensors: Mapping[str, torch.Tensor]) -> Path:
    path.mkdir()
    save_file(dict(tensors), path / "model.safetensors")
    return path


def adapter(path: Path, modules: Mapping[str, tuple[int, int]], rank: int = 2) -> Path:
    """`modules` has the height and width of the adapted weights."""
    path.mkdir()
    (path / CONFIG).write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": rank}))
    tensors = {}
    for name, (height, width) in modules.items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = torch.ones(rank, width)
        tensors[f"base_model.model.{name}.lora_B.weight"] = torch.ones(height, rank)
    save_file(tensors, path / WEIGHTS)
    return path


def check(tmp_path: Path, base: Mapping[str, torch.Tensor], modules: Mapping[str, tuple[int, int]]) -> None:
    inspect(adapter(tmp_path / "adapter", modules), base_shapes(model(tmp_path / "base", base)))


@pytest.mark.parametrize(
    "tower",
    [
        SPEAKS,
        "model.layers",  # of the language model, loaded alone
        "model.language_model.layers",  # the same in memory: only the shapes tell the towers apart
    ],
)
def test_each_tower_of_layers_is_compared_with_its_own(tmp_path: Path, tower: str) -> None:
    check(tmp_path, TOWERS, {f"{tower}.{number}.self_attn.q_proj": (8, 8) for number in (0, 1)})


def test_an_adapter_on_both_towers_fits_both(tmp_path: Path) -> None:
    speaks = {f"model.language_model.layers.{number}.self_attn.q_proj": (8, 8) for number in (0, 1)}
    sees = {f"model.vision_tower.vision_model.encoder.layers.{n}.self_attn.q_proj": (4, 4) for n in (0, 1, 2)}
    check(tmp_path, TOWERS, speaks | sees)


def test_the_widths_of_the_other_tower_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match=r"does not fit .*need \(2, 8\) and \(8, 2\)"):
        check(tmp_path, TOWERS, {f"{SPEAKS}.{number}.self_attn.q_proj": (4, 4) for number in (0, 1)})


def test_a_missing_layer_is_detected_within_its_tower(tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match=f"lacks weights of 1 layers, such as {SEES}.2.self_attn.q_proj"):
        check(tmp_path, TOWERS, {f"{SEES}.{number}.self_attn.q_proj": (4, 4) for number in (0, 1)})


def test_modules_outside_of_layers_are_matched_by_their_parent(tmp_path: Path) -> None:
    base = {"h.0.mlp.c_fc.weight": torch.zeros(8, 2), "h.0.attn.c_fc.weight": torch.zeros(4, 2)}
    check(tmp_path, base, {"transformer.h.0.mlp.c_fc": (8, 2), "transformer.h.0.attn.c_fc": (4, 2)})


@pytest.mark.parametrize(
    "packed",
    [
        {f"{Q0}.qweight": torch.zeros(1, 8, dtype=torch.int32), f"{Q0}.scales": torch.zeros(1, 8)},
        {f"{Q0}.weight_packed": torch.zeros(8, 1, dtype=torch.int32)},
        {f"{Q0}.weight": torch.zeros(32, 1, dtype=torch.uint8), f"{Q0}.weight.absmax": torch.zeros(1)},
    ],
    ids=["gptq", "compressed-tensors", "bitsandbytes"],
)
def test_packed_weights_give_module_names_but_no_shapes(tmp_path: Path, packed: dict[str, torch.Tensor]) -> None:
    check(tmp_path, packed, {Q0: (8, 8)})
    with pytest.raises(AdapterError, match=r"k_proj, which this base model does not have"):
        inspect(
            adapter(tmp_path / "other", {Q0.replace("q_proj", "k_proj"): (8, 8)}), base_shapes(tmp_path / "base")
        )


def test_a_missing_layer_of_packed_weights_is_detected(tmp_path: Path) -> None:
    packed = {f"model.layers.{n}.mlp.up_proj.qweight": torch.zeros(1, 8, dtype=torch.int32) for n in (0, 1)}
    with pytest.raises(AdapterError, match=r"such as model\.layers\.1\.mlp\.up_proj"):
        check(tmp_path, packed, {"model.layers.0.mlp.up_proj": (8, 8)})


def test_a_norm_is_no_linear_layer(tmp_path: Path) -> None:
    base = {"model.layers.0.input_layernorm.weight": torch.zeros(8)}
    with pytest.raises(AdapterError, match="does not have as a linear layer"):
        check(tmp_path, base, {"model.layers.0.input_layernorm": (8, 8)})
