"""What the agent server leaves of a vLLM's speed: tasks per second through it, beside the same tokens without it.

    python -m tests.bench.bench_overhead [--layers 120] [--tasks 96] [--at-once 16] [--repeats 3] [--together]

Through the server: `sage up` with the demo's office suite before a vLLM on this machine's CPU, tasks over HTTP
and the whole loop: queue, skills, sandbox, API calls, journal. Straight: the prompts of those very tasks again,
as many tokens generated for each, the turns of a task one after the other, as many tasks at once, sent to vLLM by
a bare HTTP client. vLLM forgets what it has cached before each. It has half of this machine's cores and all else
the other half, since it is on a machine of its own where it matters; `--together` lets all have all. The seed
policy is so small that vLLM needs less time for a task than its services do. So vLLM gets the same policy with
more layers, which add nothing but work; `--layers 0` leaves it as it is. What the server's processes compute per
task is told, too: that does not depend on the model.
"""

import asyncio
import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from subprocess import PIPE, Popen
from tempfile import TemporaryDirectory
from typing import Any

import click
from tqdm import tqdm

from app.client.server import SageClient
from tests.bench.deepen import deepen
from tests.bench.results_file import write_results
from tests.bench.straight import Request, Straight
from tests.bench.traffic import draw_traffic, kinds_of, submission
from tests.integration.vllm.server import SEED_POLICY, WITH_LORA, VllmServer
from tests.support.processes import command_of, cpu_seconds_of, descendants, free_ports
from trainer.worlds.simulate_live.simulation import ended_task

ROOT = Path(__file__).parents[2]
_KINDS = 20  # of tasks
_SAMPLING = {"SAGE_TEMPERATURE": "1", "SAGE_RETRIEVAL": "query_ngram"}
_ROOM = ("--kv-cache-memory-bytes", str(1 << 30))  # many layers remember much


@click.command()
@click.option("--layers", default=120, show_default=True, help="that the model gets and that change nothing")
@click.option("--tasks", default=96, show_default=True, help="in a round")
@click.option("--at-once", default=16, show_default=True, help="tasks")
@click.option("--repeats", default=3, show_default=True, help="rounds")
@click.option("--together", is_flag=True, help="vLLM has no cores of its own")
def main(layers: int, tasks: int, at_once: int, repeats: int, *, together: bool) -> None:
    """Measure the agent server's overhead."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        model = deepen(SEED_POLICY, folder / "model", layers)
        cores = sorted(os.sched_getaffinity(0))
        half = 0 if together else len(cores) // 2
        with only(cores[half:]):
            url = stack.enter_context(vllm(folder, model))
        stack.enter_context(only(cores[:half] or cores))
        town = stack.enter_context(agent_server(folder, model, url, at_once, settings=_SAMPLING))
        rounds = []
        town.serve(at_once, seed=0)  # whatever is done only once
        for repeat in range(repeats):
            asyncio.run(_forget(url))
            served = town.serve(tasks, seed=1 + repeat)
            seconds = asyncio.run(_straight(url, served["requests"], at_once))
            rounds.append(_round(served, seconds))
            print(rounds[-1], flush=True)
    ratio = statistics.median(each["ratio"] for each in rounds)
    print(f"of vLLM's own speed, median: {ratio:.0%}")
    write_results(
        "overhead-together" if together else "overhead",
        {"layers": layers, "tasks": tasks, "at_once": at_once, "ratio": ratio, "rounds": rounds},
    )


def _round(served: dict[str, Any], straight: float) -> dict[str, float]:
    requests = [request for sequence in served["requests"] for request in sequence]
    tasks, seconds = len(served["requests"]), served["seconds"]
    return {
        "turns": len(requests),
        "tokens": sum(request.tokens for request in requests),
        "tasks/s through the server": round(tasks / seconds, 2),
        "tasks/s straight": round(tasks / straight, 2),
        "ratio": round(straight / seconds, 3),
        "ms of CPU a task, agent server": round(1000 * served["cpu"] / tasks, 1),
    }


@contextmanager
def only(cores: Sequence[int]) -> Iterator[None]:
    """What is started in it, and this process meanwhile, run on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def vllm(directory: Path, model: Path) -> Iterator[str]:
    server = VllmServer(directory / "vllm.log", [*WITH_LORA, *_ROOM], model=model, dev=True)
    try:
        yield server.wait().url
    finally:
        server.stop()


class Town:
    """The demo project, and those who send it tasks."""

    def __init__(self, url: str, key: str, root: int, env: Mapping[str, str]) -> None:
        self.url, self.key, self.env, self.data = url, key, env, Path(env["SAGE_DATA_DIR"])
        self.roots = [root]  # processes that count with their descendants
        self._server = SageClient(url, key)

    def serve(self, count: int, seed: int) -> dict[str, Any]:
        """Seconds from the first task that was accepted to the last that ended; what vLLM was asked for it."""
        places = draw_traffic(kinds_of("train", _KINDS), 0, count, seed)
        bodies = [submission(place, "demo", labels=True, scored=False) for place in places]
        computed = self._cpu()
        accepted = self._server.request("POST", "/v1/tasks", {"tasks": bodies})["tasks"]
        ended = [ended_task(self._server, task["id"]) for task in tqdm(accepted, unit="task")]
        computed = self._cpu() - computed
        times = [[datetime.fromisoformat(task[name]) for task in ended] for name in ("created_at", "finished_at")]
        requests = [self._requests(task["id"]) for task in ended if task["turns"]]
        return {
            "seconds": (max(times[1]) - min(times[0])).total_seconds(),
            "requests": requests,
            "cpu": computed,
        }

    def _requests(self, task_id: str) -> list[Request]:
        requests, ids = list[Request](), tuple[int, ...]()
        for turn in self._server.request("GET", f"/v1/tasks/{task_id}/trajectory")["turns"]:
            ids = (ids if turn["extends"] else ()) + tuple(turn["context_ids"])
            requests.append(Request(ids, len(turn["sampled_ids"])))
            ids += tuple(turn["sampled_ids"])
        return requests

    def _cpu(self) -> float:
        """Seconds that API, sandboxes, worker and database have computed; the live APIs are not the server's."""
        postgres = int((self.data / "postgres" / "postmaster.pid").read_text().split()[0])
        roots = [*self.roots, postgres]
        own = {*roots}.union(*map(descendants, roots))
        return sum(cpu_seconds_of(pid) for pid in own if "demo-apis" not in command_of(pid))


@contextmanager
def agent_server(
    directory: Path,
    model: Path,
    engine_url: str,
    at_once: int,
    *,
    tree: Path = ROOT,
    settings: Mapping[str, str] | None = None,
) -> Iterator[Town]:
    """`sage up` of a checkout, as a user starts it."""
    settings = settings or {}
    port, demo = free_ports(2)
    runners = int(settings.get("SAGE_RUNNERS", len(os.sched_getaffinity(0))))
    env = os.environ | {
        "DATABASE_URL": "",
        "ENGINE_URLS": engine_url,
        "SAGE_MODEL": str(model),
        "SAGE_DATA_DIR": str(directory / "data"),
        "SAGE_PORT": str(port),
        "SAGE_DEMO_PORT": str(demo),
        "SAGE_MAX_TASKS_IN_FLIGHT": str(max(1, at_once // runners)),  # of one runner
        "PYTHONPATH": str(tree),
        **settings,
    }
    with Popen([sys.executable, "-m", "app.cli", "up"], env=env, cwd=tree, stdout=PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            key = next(line for line in process.stdout if line.strip().startswith("export KEY="))
            key = Path(key.strip().removeprefix("export KEY=$(cat ").removesuffix(")")).read_text().strip()
            yield Town(f"http://127.0.0.1:{port}", key, process.pid, env)
        finally:
            process.terminate()


async def _forget(url: str) -> None:
    async with Straight(url, 1) as server:
        await server.forget()


async def _straight(url: str, sequences: Sequence[Sequence[Request]], at_once: int) -> float:
    async with Straight(url, at_once) as server:
        await server.forget()
        return await server.run(sequences)


if __name__ == "__main__":
    main()
