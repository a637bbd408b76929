"""The memory of all processes of a run on a CPU."""

from pathlib import Path

import msgspec
import pytest
import torch

from app.base.errors import ModelMemoryError
from app.base.run_settings import RunKind, RunSettings
from app.base.settings import Settings
from app.engine.memory import adapter_bytes, kept_bytes, usual_format, weights_in
from tests.support.tiny_model import make_model_dir
from trainer.learning.adapter import LogprobModel, with_lora
from trainer.learning.model import ACTIVATION_BYTES, activation_bytes, load_model
from trainer.runs.start import check_run_memory, run_need

CPU = torch.device("cpu")
PROCESS = 850 << 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model_dir(tmp_path_factory.mktemp("model"), "llama")


def deployment(model: Path, **settings: object) -> Settings:
    given = Settings(model=str(model), engine_device="cpu", engine_kv_mb=100, train_dtype="float32")
    return msgspec.structs.replace(given, **settings)


def test_a_rollout_run_needs_its_updates_and_engines(model: Path) -> None:
    settings = RunSettings(kind=RunKind.ROLLOUT, lora_rank=4, micro_batch_tokens=1 << 30)
    policy = with_lora(load_model(model, CPU), 4, 8)
    trained = sum(parameter.numel() for parameter in policy.parameters() if parameter.requires_grad)
    learner = 4 * weights_in(model) + 5 * 4 * trained + ACTIVATION_BYTES + PROCESS
    form = usual_format(model, "auto")
    engine = kept_bytes(model, form) + (100 << 20) + 2 * adapter_bytes(model, form) + PROCESS
    assert run_need(settings, deployment(model), CPU).total == learner + engine
    assert run_need(settings, deployment(model, train_processes=3), CPU).total == 3 * (learner + engine)
    servers = deployment(model, train_processes=3, rollout_engine_urls="http://gpu:8000")
    assert run_need(settings, servers, CPU).total == 3 * learner
    logged = msgspec.structs.replace(settings, kind=RunKind.LOGGED)
    assert run_need(logged, deployment(model, train_processes=3), CPU).total == 3 * learner
    sft = msgspec.structs.replace(settings, kind=RunKind.SFT, gradient_checkpointing=True)
    assert run_need(sft, deployment(model, train_processes=3), CPU).total == learner - ACTIVATION_BYTES


def test_activations_of_short_passes_count_about_as_measured(model: Path) -> None:
    settings = RunSettings(kind=RunKind.LOGGED, micro_batch_tokens=1000)
    none = msgspec.structs.replace(settings, gradient_checkpointing=True)
    whole, rest = (run_need(each, deployment(model), CPU).total for each in (settings, none))
    policy = LogprobModel(with_lora(load_model(model, CPU), 16, 32))
    assert whole - rest == pytest.approx(1000 * activation_bytes(policy, CPU), rel=0.5)


def test_a_run_without_room_is_refused_with_the_settings_to_lower(model: Path) -> None:
    settings = RunSettings(kind=RunKind.ROLLOUT)
    check_run_memory(settings, deployment(model), CPU)
    large = deployment(model, engine_kv_mb=1_000_000, train_processes=2)
    words = r"training with the model .* 2 x rollouts of .* 1,000,000 MB for the KV cache, .*SAGE_TRAIN_PROCESSES"
    with pytest.raises(ModelMemoryError, match=words):
        check_run_memory(settings, large, CPU)
    with pytest.raises(ModelMemoryError, match=r"4 x 2 x rollouts of .* take fewer"):
        check_run_memory(settings, large, CPU, runs=4, advice="take fewer")
    check_run_memory(settings, large, torch.device("cuda"))  # its processes check what they use
