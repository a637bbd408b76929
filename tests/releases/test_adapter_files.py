"""Adapters are checked before a model server gets them, and each defect is named."""

import json
import shutil
from collections.abc import Callable
from errno import EIO
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from app.base.errors import AdapterError, UnreadableAdapterError
from app.engine import adapter_files
from app.engine.adapter_files import CONFIG, WEIGHTS, Shapes, base_shapes, content_hash, inspect, verify
from tests.support.every_row import every_row
from tests.support.named_adapters import make_named
from tests.support.tiny_adapter import make_adapter
from tests.support.tiny_model import make_model_dir

Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model_dir(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def base(model_dir: Path) -> Shapes | None:
    return base_shapes(model_dir)


@pytest.fixture(scope="module")
def whole(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("adapters")
    return root / make_named(model_dir, root, 1)


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return copy_of(whole, tmp_path)


def copy_of(whole: Path, directory: Path) -> Path:
    return Path(shutil.copytree(whole, directory / whole.name))


def changed(path: Path, change: Callable[[Tensors], Any]) -> Path:
    tensors = load_file(path / WEIGHTS)
    change(tensors)
    save_file(tensors, path / WEIGHTS)
    return path


def with_header(path: Path, header: bytes, data: int = 0) -> Path:
    """A weights file with this header and this number of data bytes."""
    (path / WEIGHTS).write_bytes(len(header).to_bytes(8, "little") + header + bytes(data))
    return path


def told(**entry: object) -> bytes:
    """The header of one tensor of two numbers in 8 bytes, with changes."""
    name = "base_model.model.layers.0.q_proj.lora_A.weight"
    return json.dumps({name: {"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]} | entry}).encode()


def some(tensors: Tensors, half: str) -> str:
    return min(name for name in tensors if f"lora_{half}" in name)


def test_a_valid_adapter_has_its_hash_and_rank(whole: Path, base: Shapes | None) -> None:
    found = verify(whole, base)
    assert (found.hash, found.rank, found.path) == (whole.name, 4, whole)
    assert base is not None


@pytest.mark.parametrize("file", [CONFIG, WEIGHTS])
def test_a_file_that_is_missing_is_named(copy: Path, file: str) -> None:
    (copy / file).unlink()
    with pytest.raises(UnreadableAdapterError, match=f"there is no adapter in .*{file}"):
        verify(copy)


def test_a_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnreadableAdapterError, match=r"there is no adapter in .*gone"):
        verify(tmp_path / "gone")


def test_a_disk_that_fails_says_nothing_about_the_adapter(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Path) -> str:
        raise OSError(EIO, "Input/output error")

    monkeypatch.setattr(adapter_files, "content_hash", fail)
    with pytest.raises(UnreadableAdapterError, match=r"cannot be read \(.*Input/output error\): check the disk"):
        verify(copy)


@pytest.mark.parametrize("left", [0, 4, 100, -100])
def test_a_truncated_file_is_named(copy: Path, left: int) -> None:
    (copy / WEIGHTS).write_bytes((copy / WEIGHTS).read_bytes()[:left])
    with pytest.raises(AdapterError, match=f"{WEIGHTS} cannot be read: it was cut off"):
        verify(copy)


def test_a_file_that_is_not_safetensors_is_named(copy: Path) -> None:
    (copy / WEIGHTS).write_bytes((2).to_bytes(8, "little") + b"[]")
    with pytest.raises(AdapterError, match="not a safetensors file"):
        verify(copy)
    (copy / CONFIG).write_text("{")
    with pytest.raises(AdapterError, match="cannot be read as JSON"):
        verify(copy)


WRONG_HEADERS: list[bytes] = [
    told(data_offsets=[8, 4]),
    told(data_offsets=[8, 0]),
    told(data_offsets=[-8, 8]),
    told(data_offsets=[0, 7]),
    told(data_offsets=[4, 8]),
    told(data_offsets=[0.5, 8]),
    told(data_offsets=[0]),
    told(data_offsets=None),
    told(shape=[1, 1]),
    told(shape=[-1, -2]),
    told(shape=[1 << 40, 1 << 40]),
    told(dtype="F7"),
    b'{"lora": {"dtype": "F32"}}',
    b'{"lora": 1}',
    b'{"lora": ' + b"[" * 100_000,
    b"\xff\xfe{}",
    b"null",
    b"",
]


def test_a_wrong_header_is_reported_at_once(whole: Path, tmp_path: Path) -> None:
    with every_row() as row:
        for at, header in enumerate(WRONG_HEADERS):
            with row(header):
                copy = copy_of(whole, tmp_path / str(at))
                with pytest.raises(AdapterError, match=f"{WEIGHTS} cannot be read: .* not a safetensors file"):
                    inspect(with_header(copy, header, 8))


def test_overlapping_weights_are_reported(copy: Path) -> None:
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    with pytest.raises(AdapterError, match="not a safetensors file"):
        inspect(with_header(copy, json.dumps({"a": entry, "b": entry}).encode(), 8))


@pytest.mark.parametrize("length", [101, 1 << 33, (1 << 64) - 1])
def test_a_header_longer_than_its_file_is_reported_before_it_is_read(copy: Path, length: int) -> None:
    (copy / WEIGHTS).write_bytes(length.to_bytes(8, "little") + bytes(100))
    with pytest.raises(AdapterError, match="it was cut off"):
        inspect(copy)


def test_an_endlessly_nested_configuration_is_reported(copy: Path) -> None:
    (copy / CONFIG).write_text("[" * 100_000)
    with pytest.raises(AdapterError, match="cannot be read as JSON"):
        inspect(copy)


def test_one_changed_weight_is_detected_by_the_hash(copy: Path, base: Shapes | None) -> None:
    changed(copy, lambda tensors: tensors[some(tensors, "A")].add_(1))
    inspect(copy, base)
    with pytest.raises(AdapterError, match="not those that were written there"):
        verify(copy, base)


def spoil(kind: torch.dtype, value: float, tensors: Tensors) -> None:
    """One weight gets the value, and all get the type."""
    tensors[some(tensors, "B")][-1, -1] = value
    tensors |= {name: tensor.to(kind) for name, tensor in tensors.items()}


def test_a_weight_that_is_not_finite_is_named(whole: Path, tmp_path: Path) -> None:
    with every_row() as row:
        for kind in [torch.float16, torch.bfloat16, torch.float32, torch.float64]:
            for value in [float("nan"), float("inf"), float("-inf")]:
                with row(kind, value):
                    copy = copy_of(whole, tmp_path / f"{kind} {value}")
                    spoiled = changed(copy, partial(spoil, kind, value))
                    with pytest.raises(AdapterError, match=r"not finite: .*lora_B"):
                        inspect(spoiled)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_only_numbers_below_65536_count_as_finite(copy: Path, kind: torch.dtype) -> None:
    def filled(value: float) -> Path:
        def fill(tensors: Tensors) -> None:
            tensors |= {
                name: torch.full_like(each, value, dtype=torch.float64).to(kind) for name, each in tensors.items()
            }

        return changed(copy, fill)

    assert inspect(filled(-65280.0)).rank == 4
    with pytest.raises(AdapterError, match="not finite"):
        inspect(filled(-65536.0))


def test_an_invalid_scale_is_named(whole: Path, tmp_path: Path) -> None:
    with every_row() as row:
        for name in ["lora_alpha", "alpha_pattern"]:
            for at, alpha in enumerate(["NaN", "1e300", "-Infinity", '"16"', "true", "null"]):
                with row(name, alpha):
                    copy = copy_of(whole, tmp_path / f"{name} {at}")
                    value = alpha if name == "lora_alpha" else f'{{"q_proj": {alpha}}}'
                    config = json.loads((copy / CONFIG).read_text()) | {name: "VALUE"}
                    (copy / CONFIG).write_text(json.dumps(config).replace('"VALUE"', value))
                    with pytest.raises(AdapterError, match=r"lora_alpha .* must be a number"):
                        inspect(copy)


def test_weights_in_integers_are_refused(copy: Path) -> None:
    with pytest.raises(AdapterError, match="only floats are supported"):
        inspect(changed(copy, lambda tensors: tensors.update({n: t.int() for n, t in tensors.items()})))


def test_half_a_width_is_refused_though_a_server_would_accept_it(copy: Path, base: Shapes | None) -> None:
    def halve(tensors: Tensors) -> None:
        name = some(tensors, "A")
        tensors[name] = tensors[name][:, ::2].contiguous()

    with pytest.raises(AdapterError, match=r"does not fit .*, but rank 4"):
        inspect(changed(copy, halve), base)


def test_another_rank_than_in_the_configuration_is_refused(copy: Path) -> None:
    config = json.loads((copy / CONFIG).read_text())
    (copy / CONFIG).write_text(json.dumps(config | {"r": 8}))
    with pytest.raises(AdapterError, match="rank 8"):
        inspect(copy)
    (copy / CONFIG).write_text(json.dumps(config | {"r": "four"}))
    with pytest.raises(AdapterError, match="does not set r"):
        inspect(copy)


def test_a_layer_without_weights_is_refused(copy: Path, base: Shapes | None) -> None:
    def drop(tensors: Tensors) -> None:
        for name in [each for each in tensors if ".layers.1.self_attn.q_proj." in each]:
            del tensors[name]

    with pytest.raises(
        AdapterError, match=r"lacks weights of 1 layers, such as model\.layers\.1\.self_attn\.q_proj"
    ):
        inspect(changed(copy, drop), base)


def test_one_of_two_lora_matrices_alone_is_refused(copy: Path) -> None:
    with pytest.raises(AdapterError, match="lacks one of lora_A and lora_B"):
        inspect(changed(copy, lambda tensors: tensors.pop(some(tensors, "B"))))


def test_an_adapter_of_another_base_is_refused(tmp_path: Path, base: Shapes | None) -> None:
    other = make_adapter(make_model_dir(tmp_path / "llama", "llama"), tmp_path / "x", 1)
    with pytest.raises(AdapterError, match=r"does not fit .*: set SAGE_MODEL to its model"):
        inspect(other, base)
    config = json.loads((other / CONFIG).read_text())
    (other / CONFIG).write_text(json.dumps(config | {"base_model_name_or_path": "smollm2-135m"}))
    with pytest.raises(AdapterError, match="It was made for smollm2-135m: set SAGE_MODEL"):
        inspect(other, base)


def test_a_layer_that_the_base_does_not_have_is_refused(copy: Path, base: Shapes | None) -> None:
    def rename(tensors: Tensors) -> None:
        for name in [each for each in tensors if ".layers.2." in each]:
            tensors[name.replace(".layers.2.", ".layers.7.")] = tensors.pop(name)

    with pytest.raises(AdapterError, match=r"layers\.7\..* which this base model does not have"):
        inspect(changed(copy, rename), base)


def test_an_adapter_without_weights_is_refused(copy: Path) -> None:
    with pytest.raises(AdapterError, match="holds no LoRA weights"):
        inspect(changed(copy, lambda tensors: tensors.clear()))


def test_another_type_than_lora_is_refused(copy: Path) -> None:
    (copy / CONFIG).write_text(json.dumps({"peft_type": "IA3", "r": 4}))
    with pytest.raises(AdapterError, match="only LoRA is supported"):
        inspect(copy)


BEYOND: list[tuple[str, object]] = [
    ("use_dora", True),
    ("modules_to_save", ["lm_head"]),
    ("bias", "all"),
    ("bias", "lora_only"),
    ("bias", True),
    ("lora_bias", True),
    ("target_parameters", ["mlp.experts.up_proj"]),
    ("trainable_token_indices", [1]),
]


def test_settings_beyond_plain_lora_are_refused(copy: Path) -> None:
    config = json.loads((copy / CONFIG).read_text())
    with every_row() as row:
        for name, value in BEYOND:
            with row(name, value):
                (copy / CONFIG).write_text(json.dumps(config | {name: value}))
                with pytest.raises(AdapterError, match=f"{CONFIG} sets {name}: only plain LoRA is supported"):
                    inspect(copy)
    (copy / CONFIG).write_text(json.dumps(config | {"bias": "none", "lora_bias": False, "rank_pattern": {}}))
    inspect(copy)


def test_ranks_of_single_modules_are_plain_names_and_those_of_their_weights(copy: Path) -> None:
    config = json.loads((copy / CONFIG).read_text())
    full, name = config["r"], some(load_file(copy / WEIGHTS), "A").removesuffix(".lora_A.weight")
    module = name.removeprefix("base_model.model.")
    down, up = f"{name}.lora_A.weight", f"{name}.lora_B.weight"
    changed(copy, lambda all: all.update({down: all[down][:1].contiguous(), up: all[up][:, :1].contiguous()}))
    (copy / CONFIG).write_text(json.dumps(config | {"rank_pattern": {module: 1}}))
    assert inspect(copy).rank == full
    odd: list[object] = [
        {},
        {module: 2},
        {module: 0},
        {module: True},
        {module: "1"},
        {module: full + 1},
        {"(a+)+$": 1, module: 1},
        {f".*{module}": 1},
        [module],
        "1",
        7,
    ]
    with every_row() as row:
        for pattern in odd:
            with row(pattern):
                (copy / CONFIG).write_text(json.dumps(config | {"rank_pattern": pattern}))
                with pytest.raises(AdapterError, match=r"rank_pattern|does not fit"):
                    inspect(copy)


@pytest.mark.parametrize(
    "name", ["lm_head.weight", "model.layers.0.q_proj.lora_magnitude_vector", "model.layers.0.q_proj.lora_B.bias"]
)
def test_weights_other_than_lora_weights_are_refused(copy: Path, name: str) -> None:
    more = {f"base_model.model.{name}": torch.ones(2, 2)}
    with pytest.raises(AdapterError, match=f"holds .*{name}, which is not a LoRA weight of a linear layer"):
        inspect(changed(copy, lambda tensors: tensors.update(more)))


def test_the_trainer_names_adapters_by_the_same_hash(whole: Path) -> None:
    assert content_hash(whole) == whole.name
    assert len(whole.name) == 32


def test_a_machine_without_the_base_weights_checks_everything_but_the_fit(copy: Path, tmp_path: Path) -> None:
    assert base_shapes(tmp_path / "nothing") is None
    assert verify(copy, None).rank == 4
