"""Updates on several hosts: two torchrun agents on this machine stand for two hosts beside the worker's."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from app.base.errors import InvalidError
from app.engine.adapter_files import WEIGHTS
from tests.support.processes import free_ports
from tests.support.team_learner import Outcome
from tests.support.tiny_model import make_model_dir
from trainer.learning import distributed
from trainer.learning.distributed import LearnerLostError, parse_address

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return make_model_dir(tmp_path_factory.mktemp("tiny"), spread=0.1)


def settings(model: Path, data: Path, address: str) -> dict[str, str]:
    names = {"SAGE_TRAIN_RENDEZVOUS": address, "SAGE_MODEL": str(model), "SAGE_DATA_DIR": str(data)}
    return names | {"SAGE_ENGINE_DEVICE": "cpu", "OMP_NUM_THREADS": "1"}


@contextmanager
def other_hosts(model: Path, data: Path, address: str, *options: str) -> Iterator[list["subprocess.Popen[str]"]]:
    """Two torchrun agents with one process each, which meet at a c10d rendezvous of their own."""
    (port,) = free_ports(1)
    given = os.environ | settings(model, data, address)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "sage"]
    command = [*torchrun, *meeting, "-m", "trainer.learning.follow", *options]
    agents = [subprocess.Popen(command, cwd=ROOT, env=given, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        yield agents
    finally:
        for agent in agents:
            agent.send_signal(signal.SIGTERM)
            agent.communicate()


def train(model: Path, out: Path, *options: str) -> Outcome:
    out.mkdir()
    command = [sys.executable, "-m", "tests.support.team_learner", str(model), str(out), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return msgspec.json.decode((out / "outcome.json").read_bytes(), type=Outcome)


@pytest.mark.slow
def test_processes_of_other_hosts_learn_what_processes_of_one_host_learn(model: Path, tmp_path: Path) -> None:
    """Copies in one run and shares of the model in the next, which the same processes follow."""
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    remote = ["--local", "1", "--remote", "2", "--rendezvous", address]
    with other_hosts(model, tmp_path / "data", address):
        spread = {
            shard: train(model, tmp_path / f"spread{shard}", *remote, *shard) for shard in ((), ("--shard",))
        }
    for shard, outcome in spread.items():
        spawned = train(model, tmp_path / f"spawned{shard}", "--local", "3", *shard)
        assert outcome.sharded == spawned.sharded == bool(shard)
        expected = load_file(tmp_path / f"spawned{shard}" / spawned.adapter / WEIGHTS)
        found = load_file(tmp_path / f"spread{shard}" / outcome.adapter / WEIGHTS)
        for name, each in expected.items():
            torch.testing.assert_close(found[name], each, atol=1e-7, rtol=1e-6)
        assert outcome.stats == spawned.stats
        assert outcome.probe == spawned.probe


def environment(model: Path, data: Path, address: str, *, count: int) -> dict[str, str]:
    """Of the first of `count` processes that torchrun started."""
    ranks = {"RANK": "0", "WORLD_SIZE": str(count), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": str(count)}
    return os.environ | ranks | settings(model, data, address)


FOLLOW = [sys.executable, "-m", "trainer.learning.follow", "--once"]


def test_a_process_ends_with_the_one_it_follows(model: Path, tmp_path: Path) -> None:
    store, meeting = distributed.serve("127.0.0.1", 0, local=1, remote=1)
    given = environment(model, tmp_path, f"127.0.0.1:{meeting.port}", count=1)
    with subprocess.Popen(FOLLOW, cwd=ROOT, env=given) as follower:
        distributed.await_remote(store, meeting, seconds=60)
        assert follower.poll() is None
        del store  # as if the run's process were killed
        assert follower.wait() == distributed.LOST


def test_another_number_of_processes_than_the_worker_waits_for_is_refused(model: Path, tmp_path: Path) -> None:
    store, meeting = distributed.serve("127.0.0.1", 0, local=1, remote=2)
    given = environment(model, tmp_path, f"127.0.0.1:{meeting.port}", count=1)
    done = subprocess.run(FOLLOW, cwd=ROOT, env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "torchrun started 1 processes, but the worker waits for 2" in done.stderr
    assert "set SAGE_TRAIN_REMOTE_PROCESSES=1 there" in done.stderr
    with pytest.raises(LearnerLostError, match="2 of 2 processes of other hosts did not join within 0 s"):
        distributed.await_remote(store, meeting, seconds=0.1)


@pytest.mark.slow
def test_the_first_process_ends_when_one_of_another_host_falls_silent() -> None:
    script = """
import time
from trainer.learning.distributed import heartbeat, serve, watch_remote
store, meeting = serve("127.0.0.1", 0, local=1, remote=1)
with watch_remote(meeting, silence_seconds=4):
    with heartbeat(meeting, 1):
        time.sleep(8)
    print("heard", flush=True)
    time.sleep(60)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("heard"), "no silence while it beats"
    assert done.returncode == distributed.LOST


@pytest.mark.parametrize("address", ["", "host", "host:", ":29500", "host:0", "host:x", "host:70000"])
def test_an_address_without_host_or_port_is_refused(address: str) -> None:
    with pytest.raises(InvalidError, match=r"SAGE_TRAIN_RENDEZVOUS=.*: write host:port"):
        parse_address(address)


def test_a_port_that_is_taken_is_named() -> None:
    first, meeting = distributed.serve("127.0.0.1", 0, local=1, remote=0)
    with pytest.raises(InvalidError, match=f"cannot listen on port {meeting.port}"):
        distributed.serve("127.0.0.1", meeting.port, local=1, remote=0)
    del first
