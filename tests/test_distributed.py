"""Several processes: do they end with the weights of one? Real processes, joined by gloo on the CPU."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from tests.distributed_process import SETTINGS, new_learner, round_of
from tests.sharded_learner import Told, learned
from tests.tiny_model import make_model_dir
from trainer.learning.distributed_learner import LearnerSpec, Team, open_learner
from trainer.learning.publishing import WEIGHTS, publish

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return make_model_dir(tmp_path_factory.mktemp("tiny"), spread=0.1)


def run_two(model: Path, out: Path, *options: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-m", "tests.distributed_process", str(model), str(out), *options]
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
            _, said = process.communicate(timeout=200)
            assert process.returncode == 0, said
    finally:
        for process in processes:
            process.kill()


@pytest.fixture(scope="module", params=[(), ("--shards",)], ids=["copies", "shards"])
def ended(model: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """What two processes left after three updates. Each holds a copy of the model, or a share of it (FSDP2)."""
    out = tmp_path_factory.mktemp("ended")
    run_two(model, out, *request.param)
    return out


def test_two_processes_learn_what_one_learns(model: Path, ended: Path, tmp_path: Path) -> None:
    alone = new_learner(model)
    for number in range(3):
        figures = alone.update(round_of(number))
    assert figures is not None
    told = [figures.loss, figures.grad_norm, figures.clip_fraction, figures.ratio_max, figures.tokens]
    expected = load_file(publish(alone.model, tmp_path).path / WEIGHTS)
    published = []
    for rank in range(2):
        (adapter,) = (ended / f"adapters-{rank}").iterdir()
        published.append(adapter.name)
        found = load_file(adapter / WEIGHTS)
        for name, each in expected.items():
            torch.testing.assert_close(found[name], each, atol=2e-6, rtol=1e-4)
        said = [float(each) for each in (ended / f"figures-{rank}.txt").read_text().split()]
        assert said == pytest.approx(told, rel=1e-3)
    assert published[0] == published[1]


def test_a_checkpoint_of_two_processes_is_gone_on_from_by_one(model: Path, ended: Path) -> None:
    straight, resumed = new_learner(model), new_learner(model)
    for number in range(4):
        straight.update(round_of(number))
    resumed.restore(ended / "it.checkpoint")
    assert resumed.steps == 3
    resumed.update(round_of(3))
    weights = resumed.state()["weights"]
    for name, each in straight.state()["weights"].items():
        torch.testing.assert_close(weights[name], each, atol=5e-6, rtol=1e-4)


def test_a_run_whose_processes_hold_parts_of_the_model_publishes_what_one_process_does(
    model: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tests.sharded_learner", str(model), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    told = msgspec.json.decode((tmp_path / "told.json").read_bytes(), type=Told)
    assert told.parts
    with open_learner(
        LearnerSpec(model_dir=model, settings=SETTINGS, start=None, device="cpu"), Team()
    ) as learner:
        alone = learned(learner, tmp_path / "alone")
    found = load_file(tmp_path / told.adapter / WEIGHTS)
    for name, each in load_file(alone.path / WEIGHTS).items():
        torch.testing.assert_close(found[name], each, atol=2e-6, rtol=1e-4)
    assert told.probe is not None
    assert alone.probe is not None
    assert told.probe.prompt_ids == alone.probe.prompt_ids
    assert len([each for each in tmp_path.iterdir() if each.is_dir()]) == 3, "one after each round, and `alone`"
    for one, other in zip(told.probe.points, alone.probe.points, strict=True):
        assert (one.logprob, one.base) == pytest.approx((other.logprob, other.base), abs=1e-4)
