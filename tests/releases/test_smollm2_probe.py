"""Model servers of both float formats prove that they serve the adapter of SmolLM2, and no other one."""

from pathlib import Path

import pytest
import torch
from peft import PeftModel

from app.base.errors import AdapterError
from app.base.settings import Settings
from app.engine.client import HttpEngine
from app.machine.models import pull
from app.releases.bundled_adapter import BUNDLED
from app.releases.swap import load_everywhere
from tests.support.engine_process import engine_process
from tests.support.smollm2 import SMOL, download
from trainer.learning.adapter import LogprobModel, PublishedAdapter, publish, with_lora
from trainer.learning.batch import Sample, pad
from trainer.learning.model import load_model
from trainer.runs.start import probe_prompt

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)  # beside other tests, two wait for each other
    return pull(SMOL.name, tmp_path_factory.mktemp("models"), given=download(tmp_path_factory.mktemp("gguf")))


@pytest.fixture(scope="module")
def trained(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[PublishedAdapter]:
    """The bundled adapter, with the probes of a trainer in float32 and of one in bfloat16."""
    prompt, path = prompt_of(model), tmp_path_factory.mktemp("trained")
    return [publish(policy(model, dtype), path, prompt) for dtype in (torch.float32, torch.bfloat16)]


@pytest.fixture(scope="module")
def next_step(model: Path, tmp_path_factory: pytest.TempPathFactory) -> PublishedAdapter:
    """The bundled adapter after one step of the default learning rate."""
    later, ids = policy(model, torch.float32), prompt_of(model)
    batch = pad([Sample(ids, (False,) + (True,) * (len(ids) - 1))])
    (-LogprobModel(later)(batch).mean()).backward()
    torch.optim.AdamW((each for each in later.parameters() if each.requires_grad), lr=1e-3).step()
    return publish(later, tmp_path_factory.mktemp("later"))


@pytest.mark.parametrize("served", ["float32", "bfloat16"])
async def test_the_trained_adapter_is_verified_and_the_next_step_refused(
    served: str, model: Path, trained: list[PublishedAdapter], next_step: PublishedAdapter
) -> None:
    with engine_process(model, "--dtype", served, "--embeddings", "none") as url:
        async with HttpEngine([url]) as engine:
            for adapter in trained:
                await load_everywhere(engine.replicas, adapter.path, adapter.probe)
                with pytest.raises(AdapterError, match="serves other weights than the trained ones"):
                    await load_everywhere(engine.replicas, next_step.path, adapter.probe)


def prompt_of(model: Path) -> tuple[int, ...]:
    return probe_prompt(Settings(model=str(model), prompt_profile="brief"))


def policy(model: Path, dtype: torch.dtype) -> PeftModel:
    return with_lora(load_model(model, torch.device("cpu"), dtype=dtype), 16, 32, BUNDLED / SMOL.name)
