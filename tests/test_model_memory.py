"""A model for which there is no memory is refused before it is loaded, with the figures."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import torch

from app.engine.available_memory import memory_available
from app.engine.embedded import decoder
from app.engine.embedded.decoder import Decoder
from app.engine.embedded.device_memory import free_gpu_memory, report_exhaustion
from app.engine.embedded.fused_layers import copied_weights
from app.engine.embedded.int8_layers import can_pack
from app.engine.model_memory import (
    check_fits,
    memory_needed,
    served_needs,
    tied_weights,
    trained_needs,
    weights_in,
)
from app.errors import ModelError, ModelMemoryError
from tests.engine_process import engine_command
from tests.tiny_model import make_model_dir
from trainer.learning.model import load_model

ROWS, WIDTH = 1 << 20, 1 << 20  # 4 TB in float32, held twice; the file has holes instead of numbers


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
    told, error = done.stderr.splitlines()
    assert told == f"loading {huge}, 2,097,152 MB"
    assert error.startswith(f"Error: the model in {huge} needs 8,389,558 MB (8,388,608 MB for 2,199,023,")
    assert "100 MB for the KV cache, 850 MB for the process) of memory, " in error


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


def test_a_tied_output_layer_that_gets_weights_of_its_own_counts(tmp_path: Path) -> None:
    path, tied = make_model_dir(tmp_path / "tiny"), 259 * 64
    assert tied_weights(path) == copied_weights(path, torch.float32) == tied
    assert copied_weights(path, torch.int8) == (tied if can_pack() else 0)
    assert copied_weights(path, torch.bfloat16) == 0
    held = Decoder(decoder.load_model(path, "cpu", torch.float32), kv_mb=1).weight_bytes
    counted = memory_needed(path, 4, tied) - memory_needed(path, 0)
    assert counted <= held < counted + tied  # some small buffers more
    assert copied_weights(make_model_dir(tmp_path / "llama", "llama"), torch.float32) == 0


def test_a_gpu_keeps_weights_and_cache_and_the_host_reads_the_weights(huge: Path) -> None:
    needs = served_needs(huge, 2, bytes_to_read=2, cache=512 << 20, gpu=True)
    weights = 2 * ROWS * WIDTH
    assert needs.host.total == weights + (850 << 20)
    assert needs.gpu is not None
    assert needs.gpu.total == weights + (512 << 20) + (1 << 30)
    check_fits(huge, needs.gpu, needs.gpu.total)
    words = r"needs 2,098,688 MB \(2,097,152 MB for .* weights, 512 MB for the KV cache, 1,024 MB for passes\) of "
    with pytest.raises(ModelMemoryError, match=words + "memory of cuda:0, 81,559 MB are free"):
        check_fits(huge, needs.gpu, 81_559 << 20, "memory of cuda:0")
    check_fits(huge, needs.gpu, None)  # unknown


def test_training_reads_weights_straight_into_a_gpu(huge: Path) -> None:
    needs = trained_needs(huge, 2, gpu=True)
    assert needs.host.total == 850 << 20
    assert needs.gpu is not None
    assert needs.gpu.total == 2 * ROWS * WIDTH + (1 << 30)


def test_memory_that_runs_out_is_an_error_with_advice() -> None:
    words = "memory ran out in an update (CUDA out of memory. Tried to allocate 2 GiB.): lower micro_batch_tokens"
    with (
        pytest.raises(ModelMemoryError, match=re.escape(words)),
        report_exhaustion("in an update", "lower micro_batch_tokens"),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nof several lines")


@pytest.mark.gpu
def test_a_gpu_says_what_is_free() -> None:
    assert 0 < free_gpu_memory(torch.device("cuda")) <= torch.cuda.get_device_properties(0).total_memory


def test_a_file_that_was_cut_off_is_named(tmp_path: Path) -> None:
    path = make_model_dir(tmp_path / "tiny")
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelError, match=r"model\.safetensors was cut off"):
        weights_in(path)
