"""What a task costs when many run at once, and with several model servers.

Two API processes and four runners serve the demo's office tasks with the seed policy; the load goes to both.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from app.db import postgres
from tests.bench.bench_overhead import Town, agent_server
from tests.integration.vllm.server import SEED_POLICY
from tests.support.engine_process import engine_process
from tests.support.processes import free_ports

_LEAST = 32  # tasks of a figure
_RUNNERS = 4
_AT_ONCE_PER_RUNNER = 250
_PROBE_SECONDS = 10.0


def at_once(sizes: Sequence[int]) -> Iterator[tuple[int, float]]:
    """For each number of tasks at once, milliseconds of CPU a task."""
    with _deployment(1) as town:
        for size in sizes:
            yield size, _cost(town, size)


def replicas(sizes: Sequence[int]) -> Iterator[tuple[int, float]]:
    """For each number of model servers, milliseconds of CPU a task, 16 at once."""
    for size in sizes:
        with _deployment(size) as town:
            yield size, _cost(town, 16)


def _cost(town: Town, size: int) -> float:
    """All end well, while another client reads from the second API process."""
    rounds = -(-_LEAST // size)
    town.serve(min(size, _LEAST), seed=size)  # what is done only once
    command = (sys.executable, "-m", "tests.bench.latency_probe", f"{town.url}/v1/tasks", town.key)
    served = [town.serve(size, seed=1000 * size + each) for each in range(rounds)]
    with subprocess.Popen([*command, str(_PROBE_SECONDS)], stdout=subprocess.PIPE) as probe:
        town.serve(size, seed=999 * size)
        assert probe.stdout is not None
        times = sorted(json.load(probe.stdout))
    seconds = sum(each["seconds"] for each in served)
    p50, p99 = (times[len(times) * percent // 100] for percent in (50, 99))
    rate = size * rounds / seconds
    print(f"  {size} at once: {rate:.1f} tasks/s, GET /v1/tasks p50 {p50:.0f} ms, p99 {p99:.0f} ms", flush=True)
    return float(1000 * sum(each["cpu"] for each in served) / (size * rounds))


@contextmanager
def _deployment(engines: int) -> Iterator[Town]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="sage-crowd-")))
        adapters = ("--max-loras", str(_RUNNERS * _AT_ONCE_PER_RUNNER + 2))
        urls = [stack.enter_context(engine_process(SEED_POLICY, *adapters)) for _ in range(engines)]
        settings = {"SAGE_RUNNERS": str(_RUNNERS), "SAGE_RETRIEVAL": "query_ngram"}
        at_once = _RUNNERS * _AT_ONCE_PER_RUNNER
        town = stack.enter_context(agent_server(folder, SEED_POLICY, ",".join(urls), at_once, settings=settings))
        town.url = stack.enter_context(_second_api(town))
        yield town


@contextmanager
def _second_api(town: Town) -> Iterator[str]:
    """Yields its URL. It shares the directory of the first one."""
    [port] = free_ports(1)
    database = postgres.start(town.data / "postgres")  # it runs: this only tells where
    env = {"DATABASE_URL": database, "SAGE_PORT": str(port), "SAGE_DATA_DIR": str(town.data)}
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen([sys.executable, "-m", "app.cli", "serve"], env={**town.env, **env}) as process:
        try:
            while process.poll() is None and not _answers(url):
                time.sleep(0.2)
            town.roots.append(process.pid)
            yield url
        finally:
            process.terminate()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz").is_success
    except httpx.HTTPError:
        return False
