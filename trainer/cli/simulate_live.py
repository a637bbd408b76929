"""`sage simulate-live`."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import httpx
import msgspec
from tqdm import tqdm

from app.client.options import server_options
from app.client.sage_client import SageClient
from app.parent_death import end_with_parent
from app.ports import check_port
from app.python_process import python_module
from trainer.worlds.demo import read_token
from trainer.worlds.simulate_live.simulation import Day, Services, Simulation, SimulationPlan, SimulationState

_CONNECTION_RETRIES = 6  # while the services start: 16 seconds


def _default(name: str) -> Any:
    return getattr(SimulationPlan(), name)


@click.command()
@server_options
@click.option(
    "--work",
    type=click.Path(path_type=Path, file_okay=False),
    default=".simulate-live",
    show_default=True,
    help="directory to resume from",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default="tests/bench/results",
    show_default=True,
    help="directory of the table and the figure",
)
@click.option("--port", default=8190, show_default=True, help="where the users' office suite is served meanwhile")
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True, help="one after the other")
@click.option("--days", type=click.IntRange(1), default=_default("days"), show_default=True)
@click.option("--tasks", type=click.IntRange(1), default=_default("tasks"), show_default=True, help="a day")
@click.option("--kinds", type=click.IntRange(1, 40), default=_default("kinds"), show_default=True)
@click.option(
    "--feedback",
    type=click.FloatRange(0, 1, min_open=True),
    default=_default("feedback"),
    show_default=True,
    help="share of the tasks that a person scores",
)
@click.option("--only", multiple=True, metavar="ARM", help="repeatable; default: all projects")
@click.option("--table-only", is_flag=True, help="write the results so far without running anything")
def simulate_live(
    url: str, key: str, work: Path, out: Path, port: int, *, only: tuple[str, ...], table_only: bool, **sizes: Any
) -> None:
    """Simulate months of traffic that nobody looks after, with training and without.

    Projects of a running server get the same tasks each day: kinds of tasks come and go, the APIs change, some
    feedback is wrong. One learns from the feedback, one does not; one is examined on half of its own kinds of
    tasks, another is scored throughout, another has a check that is always true, and another is poisoned. An
    interrupted simulation resumes when it is called again.
    Start the server with SAGE_MODEL=seed SAGE_TEMPERATURE=1 SAGE_MAX_TURNS=3 SAGE_MAX_TASK_TOKENS=130.
    """
    seeds = sizes.pop("seeds")
    plans = [SimulationPlan(seed=seed, **sizes) for seed in range(seeds)]
    unknown = sorted(set(only) - set(plans[0].arms))
    if unknown:
        known = ", ".join(plans[0].arms)
        raise click.BadParameter(f"{', '.join(unknown)}: there is {known}", param_hint="--only")
    arms = only or tuple(plans[0].arms)
    simulations = [Simulation(plan, arms, work / f"seed-{plan.seed}") for plan in plans]
    if not table_only:
        with SageClient(url, key) as server, _office_suite(port, plans[0].busy, work) as services:
            for simulation in simulations:
                _run(simulation, server, services, len(arms))
    _write_findings([simulation.state for simulation in simulations], out)


def _run(simulation: Simulation, server: SageClient, services: Services, arms: int) -> None:
    from trainer.worlds.simulate_live.lesson import teach  # noqa: PLC0415  torch takes seconds, which `--help` need not wait for

    plan = simulation.state.plan
    with tqdm(total=plan.days * arms, initial=len(simulation.state.days), unit="day", disable=None) as bar:

        def report(day: Day) -> None:
            bar.set_postfix_str(f"seed {plan.seed}, {day.arm}: {sum(day.solved)} of {len(day.solved)} solved")
            bar.update()

        simulation.run(server, services, lambda project: teach(server, project, plan.busy), report)


@contextmanager
def _office_suite(port: int, busy: float, work: Path) -> Iterator[Services]:
    """It runs in a process of its own until the users are done with it."""
    check_port("127.0.0.1", port, "another --port")
    url, data = f"http://127.0.0.1:{port}", work / "services"
    argv = python_module("app.cli", "demo-apis", "--port", str(port), "--busy", str(busy))
    env = {**os.environ, "SAGE_DATA_DIR": str(data)}
    with subprocess.Popen(argv, env=env, preexec_fn=end_with_parent) as process:
        try:
            transport = httpx.HTTPTransport(retries=_CONNECTION_RETRIES)
            with httpx.Client(transport=transport, trust_env=False) as client:
                client.get(f"{url}/demo").raise_for_status()
            yield Services(url, read_token(data))
        finally:
            process.terminate()


def _write_findings(runs: list[SimulationState], out: Path) -> None:
    from trainer.worlds.chart import draw  # noqa: PLC0415
    from trainer.worlds.simulate_live.findings import as_markdown, curves, findings, success_by_day  # noqa: PLC0415  numpy, as above

    runs = [run for run in runs if run.days]
    if not runs:
        raise click.ClickException("there are no results yet: run it without --table-only")
    found = findings(runs)
    out.mkdir(parents=True, exist_ok=True)
    plan = msgspec.structs.replace(runs[0].plan, seed=0)
    whole = {
        "seeds": len(runs),
        "plan": msgspec.to_builtins(plan),
        "arms": msgspec.to_builtins(found),
        "success_by_day": success_by_day(runs),
    }
    (out / "simulate_live.json").write_text(json.dumps(whole, indent=1) + "\n")
    (out / "simulate_live.md").write_text(as_markdown(found))
    chart = draw(curves(runs), ylabel="tasks solved, %, 5 days", xlabel="day")
    (out / "simulate_live.svg").write_text(chart)
    click.echo(as_markdown(found))
