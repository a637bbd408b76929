"""A model for which there is no memory is refused before it is loaded, with the figures."""

import json
import re
import subprocess
from math import prod
from pathlib import Path

import pytest
import torch

from app.base.errors import ModelError, ModelMemoryError
from app.base.settings import Settings
from app.engine.memory import (
    WeightFormat,
    _shapes,
    adapter_bytes,
    check_fits,
    kept_bytes,
    memory_available,
    served_needs,
    trained_needs,
    usual_format,
    usual_need,
    weights_in,
)
from app.model_server import decoder
from app.model_server.decoder import Decoder
from app.model_server.device import free_gpu_memory, report_exhaustion
from app.model_server.layers import weight_format
from app.model_server.lora import AdaptedLinear, AdapterSet
from tests.support.engine_process import engine_command
from tests.support.every_row import every_row
from tests.support.tiny_adapter import make_adapter
from tests.support.tiny_model import make_model_dir
from trainer.learning.model import load_model

CPU = torch.device("cpu")
ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
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
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    told, error = done.stderr.splitlines()
    assert told == f"loading {huge}, 2,097,152 MB"
    assert error.startswith(
        f"Error: the model in {huge} needs 8,389,558 MB (8,388,608 MB for 1,099,511,627,776 weights, "
    )
    assert "100 MB for the KV cache, 850 MB for the process) of memory, " in error


def test_training_refuses_such_a_model(huge: Path) -> None:
    with pytest.raises(ModelMemoryError, match=r"needs 2,098,002 MB .* or train it"):
        load_model(huge, torch.device("cpu"), dtype=torch.bfloat16)


def test_a_model_that_fits_is_counted_by_its_headers(tmp_path: Path) -> None:
    path = make_model_dir(tmp_path / "tiny")
    model = load_model(path, torch.device("cpu"))
    assert weights_in(path) == sum(parameter.numel() for parameter in model.parameters())
    available = memory_available()
    assert available is not None
    assert trained_needs(path, 4).host.total < available


def test_weights_count_as_they_are_kept(tmp_path: Path) -> None:
    with every_row() as row:
        for dtype in [torch.float32, torch.bfloat16, torch.int8]:
            for architecture in ["qwen2", "llama"]:
                for saved in [torch.float32, torch.bfloat16]:
                    with row(dtype, architecture, saved):
                        path = make_model_dir(
                            tmp_path / f"{saved} {architecture} {dtype}", architecture
                        )  # qwen2: the output layer is tied to the embeddings
                        model = load_model(path, CPU)
                        (model.bfloat16() if saved == torch.bfloat16 else model).save_pretrained(path)
                        form = weight_format(path, CPU, dtype)
                        held = Decoder(decoder.load_model(path, "cpu", dtype), kv_mb=1).weight_bytes
                        small = 8 * sum(
                            prod(shape) for shape in _shapes(path).values() if len(shape) == 1
                        )  # norms, biases and scales
                        assert kept_bytes(path, form) == pytest.approx(held, abs=small + 20_000)


@pytest.mark.parametrize("architecture", ["qwen2", "llama"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adapters_count_as_they_are_kept(tmp_path: Path, architecture: str, dtype: torch.dtype) -> None:
    path = make_model_dir(tmp_path / "model", architecture)
    adapters = AdapterSet(Decoder(decoder.load_model(path, "cpu", dtype), kv_mb=1).model)
    adapters.install(1, adapters.read(make_adapter(path, tmp_path / "adapter", 1, rank=16, targets=ALL)))
    deltas = [part.deltas[1] for part in adapters.model.modules() if isinstance(part, AdaptedLinear)]
    held = sum(delta.down.nbytes + delta.up.nbytes for delta in deltas)
    form = weight_format(path, CPU, dtype)
    assert adapter_bytes(path, form) == held
    need = served_needs(path, form, cache=1000, adapters=3).host
    assert need.total == kept_bytes(path, form) + 1000 + 3 * held + (850 << 20)


def test_without_torch_a_model_counts_as_the_engine_keeps_it(tmp_path: Path) -> None:
    path = make_model_dir(tmp_path)
    load_model(path, CPU).bfloat16().save_pretrained(path)
    for name, dtype in (("auto", torch.float32), ("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        assert usual_format(path, name) == weight_format(path, CPU, dtype)  # type: ignore[arg-type]
    assert usual_format(path, "int8").packing == "copied"  # at most
    settings = Settings(engine_kv_mb=100, engine_adapters=3)
    need = served_needs(path, usual_format(path, "auto"), cache=100 << 20, adapters=3).host
    assert usual_need(path, settings) == need


def test_a_gpu_keeps_weights_and_cache_and_the_host_reads_the_weights(huge: Path) -> None:
    needs = served_needs(huge, WeightFormat(bytes_per_weight=2, bytes_to_read=2), cache=512 << 20, gpu=True)
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
