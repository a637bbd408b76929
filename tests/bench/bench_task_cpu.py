"""CPU time that a task takes the server, all of its processes together but the model server's and the live APIs'.

    python -m tests.bench.bench_task_cpu [--tasks 100] [--at-once 16] [--repeats 3] [--tree DIRECTORY]

`sage up` with the seed policy and the demo's office tasks; `--tree` starts the server of another checkout, to
compare two versions in turn on one machine.
"""

import statistics
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from tests.bench.bench_overhead import ROOT, agent_server
from tests.bench.results_file import write_results
from tests.integration.vllm.server import SEED_POLICY
from tests.support.engine_process import engine_process


@click.command()
@click.option("--tasks", default=100, show_default=True, help="in a round")
@click.option("--at-once", default=16, show_default=True, help="tasks, in all runners together")
@click.option("--repeats", default=3, show_default=True, help="rounds")
@click.option("--tree", default=ROOT, type=click.Path(path_type=Path), help="the checkout to measure")
def main(tasks: int, at_once: int, repeats: int, tree: Path) -> None:
    """Measure the CPU time of a task."""
    with (
        TemporaryDirectory(prefix="sage-cpu-") as directory,
        engine_process(SEED_POLICY, "--max-loras", str(at_once + 2)) as engine,
        agent_server(Path(directory), SEED_POLICY, engine, at_once, tree=tree.absolute()) as town,
    ):
        town.serve(at_once, seed=0)  # whatever is done only once
        rounds = [1000 * town.serve(tasks, seed=1 + repeat)["cpu"] / tasks for repeat in range(repeats)]
    print(f"ms of CPU a task: {statistics.median(rounds):.0f}, in {[round(each) for each in rounds]}")
    if tree == ROOT:
        write_results("task_cpu", {"tasks": tasks, "at_once": at_once, "ms": rounds})


if __name__ == "__main__":
    main()
