"""Several processes end with the weights of one. Real processes, connected by gloo on the CPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from app.engine.adapter_files import WEIGHTS
from tests.support.distributed_process import new_learner, round_of
from tests.support.processes import free_ports
from tests.support.tiny_model import make_model_dir
from trainer.learning.adapter import publish

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return make_model_dir(tmp_path_factory.mktemp("tiny"), spread=0.1)


def run_two(model: Path, out: Path, *options: str) -> None:
    (port,) = free_ports(1)
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-m", "tests.support.distributed_process", str(model), str(out), *options]
    processes = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for process in processes:
            _, errors = process.communicate()
            assert process.returncode == 0, errors
    finally:
        for process in processes:
            process.kill()


@pytest.fixture(scope="module", params=[(), ("--shards",)], ids=["copies", "shards"])
def out(model: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """The files of two processes after three updates. Each holds a copy of the model, or a share of it (FSDP2)."""
    out = tmp_path_factory.mktemp("out")
    run_two(model, out, *request.param)
    return out


@pytest.mark.slow
def test_two_processes_learn_what_one_learns(model: Path, out: Path, tmp_path: Path) -> None:
    alone = new_learner(model)
    for number in range(3):
        stats = alone.update(round_of(number))
    assert stats is not None
    expected = [stats.loss, stats.grad_norm, stats.clip_fraction, stats.ratio_max, stats.tokens]
    weights = load_file(publish(alone.model, tmp_path).path / WEIGHTS)
    published = []
    for rank in range(2):
        (adapter,) = (out / f"adapters-{rank}").iterdir()
        published.append(adapter.name)
        found = load_file(adapter / WEIGHTS)
        for name, each in weights.items():
            torch.testing.assert_close(found[name], each, atol=2e-6, rtol=1e-4)
        reported = [float(each) for each in (out / f"stats-{rank}.txt").read_text().split()]
        assert reported == pytest.approx(expected, rel=1e-3)
    assert published[0] == published[1]


def test_one_process_resumes_from_a_checkpoint_of_two(model: Path, out: Path) -> None:
    straight, resumed = new_learner(model), new_learner(model)
    for number in range(4):
        straight.update(round_of(number))
    resumed.restore(out / "it.checkpoint")
    assert resumed.steps == 3
    resumed.update(round_of(3))
    weights = resumed.state()["weights"]
    for name, each in straight.state()["weights"].items():
        torch.testing.assert_close(weights[name], each, atol=5e-6, rtol=1e-4)
