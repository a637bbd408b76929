"""A model for which there is no memory is refused before it is loaded, with the figures."""

import json
import subprocess
from pathlib import Path

import pytest
import torch

from app.engine.model_memory import memory_available, memory_needed, weights_in
from app.errors import ModelError, ModelMemoryError
from tests.engine_process import engine_command
from tests.tiny_model import make_model_dir
from trainer.learning.model import load_model

ROWS, WIDTH = 1 << 20, 1 << 20  # 4 TB in float32; the file has holes instead of numbers


@pytest.fixture
def huge(tmp_path: Path) -> Path:
    path = make_model_dir(tmp_path / "huge")
    size = 2 * ROWS * WIDTH
    entry = {"dtype": "BF16", "shape": [ROWS, WIDTH], "data_offsets": [0, size]}
    header = json.dumps({"model.embed_tokens.weight": entry}).encode()
    with (path / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    return path


def test_the_engine_says_what_a_model_needs_before_it_loads_it(huge: Path) -> None:
    command = engine_command("--model", str(huge), "--port", "0", "--device", "cpu", "--kv-mb", "100")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: the model in {huge} needs 4,195,254 MB of memory (1,099,511,627,776")
    assert "100 MB of KV cache" in done.stderr
    assert done.stderr.count("\n") == 1


def test_training_refuses_such_a_model(huge: Path) -> None:
    with pytest.raises(ModelMemoryError, match="needs 2,098,002 MB"):
        load_model(huge, torch.device("cpu"), dtype=torch.bfloat16)


def test_a_model_that_fits_is_counted_by_its_headers(tmp_path: Path) -> None:
    path = make_model_dir(tmp_path / "tiny")
    model = load_model(path, torch.device("cpu"))
    assert weights_in(path) == sum(parameter.numel() for parameter in model.parameters())
    available = memory_available()
    assert available is not None
    assert memory_needed(path, 4) < available


def test_a_file_that_was_cut_off_is_named(tmp_path: Path) -> None:
    path = make_model_dir(tmp_path / "tiny")
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelError, match=r"model\.safetensors was cut off"):
        weights_in(path)
