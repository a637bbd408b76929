"""CPU time that a task takes the server, all of its processes together but the model server's and the live APIs'.

    python -m tests.bench.bench_task_cpu [--tasks 100] [--at-once 16] [--repeats 3] [--tree DIRECTORY]

`sage up` with the seed policy and the demo's office tasks; `--tree` starts the server of another checkout, to
compare two versions in turn on one machine.
"""

import os
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen
from tempfile import TemporaryDirectory

import click

from tests.bench.bench_overhead import Town
from tests.bench.results_file import write_results
from tests.engine_process import engine_process
from tests.processes import free_ports
from tests.vllm.server import SEED_POLICY

_ROOT = Path(__file__).parents[2]


@click.command()
@click.option("--tasks", default=100, show_default=True, help="in a round")
@click.option("--at-once", default=16, show_default=True, help="tasks, in all runners together")
@click.option("--repeats", default=3, show_default=True, help="rounds")
@click.option("--tree", default=_ROOT, type=click.Path(path_type=Path), help="the checkout to measure")
def main(tasks: int, at_once: int, repeats: int, tree: Path) -> None:
    """Measure the CPU time of a task."""
    with (
        TemporaryDirectory(prefix="sage-cpu-") as directory,
        engine_process(SEED_POLICY, "--max-loras", str(at_once + 2)) as engine,
        _server(Path(directory), engine, at_once, tree.absolute()) as town,
    ):
        town.serve(at_once, seed=0)  # whatever is done only once
        rounds = [1000 * town.serve(tasks, seed=1 + repeat)["cpu"] / tasks for repeat in range(repeats)]
    print(f"ms of CPU a task: {statistics.median(rounds):.0f}, in {[round(each) for each in rounds]}")
    if tree == _ROOT:
        write_results("task_cpu", {"tasks": tasks, "at_once": at_once, "ms": rounds})


@contextmanager
def _server(directory: Path, engine: str, at_once: int, tree: Path) -> Iterator[Town]:
    port, demo = free_ports(2)
    per_process = at_once if not (tree / "app" / "standalone_runner.py").exists() else at_once // _runners()
    env = os.environ | {
        "DATABASE_URL": "",
        "ENGINE_URLS": engine,
        "SAGE_DATA_DIR": str(directory / "data"),
        "SAGE_PORT": str(port),
        "SAGE_DEMO_PORT": str(demo),
        "SAGE_MAX_TASKS_IN_FLIGHT": str(max(1, per_process)),
        "PYTHONPATH": str(tree),
    }
    with Popen([sys.executable, "-m", "app.cli", "up"], env=env, cwd=tree, stdout=PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            key = next(line for line in process.stdout if line.strip().startswith("export KEY="))
            postgres = directory / "data" / "postgres" / "postmaster.pid"
            yield Town(f"http://127.0.0.1:{port}", key.strip().removeprefix("export KEY="), process.pid, postgres)
        finally:
            process.terminate()


def _runners() -> int:
    return len(os.sched_getaffinity(0))


if __name__ == "__main__":
    main()
