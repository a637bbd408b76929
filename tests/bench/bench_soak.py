"""Memory, file descriptors, connections and disk of a deployment under a constant load.

    python -m tests.bench.bench_soak [--minutes 60] [--pace 1] [--warm-up 10]

`sage up` with two runners and the embedded PostgreSQL, a scripted model server, and an API that counts the writes.
A task of four turns and ten calls every `pace` seconds; meanwhile tasks are listed and watched, and metrics read.
Each minute, what every process takes; at the end the growth per hour since the warm-up, with its 95 % interval.
"""

import asyncio
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import httpx
from sqlalchemy import text

from app.base.loop import Loop
from tests.bench.process_figures import disk_mb, slope, usage_of
from tests.bench.results_file import write_results
from tests.support.chaos_deployment import Deployment, deployed
from tests.support.chaos_load import Load, faults

_LOOK_SECONDS = 2.0
_NAMES = {
    "api": "app.cli serve",
    "runners": "app.cli runner",
    "sandboxes": "zygote",
    "worker": "app.cli worker",
    "sage up": "app.cli up",
}
_CONNECTIONS = text("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'")

Minute = dict[str, float]


@click.command()
@click.option("--minutes", default=60.0, show_default=True)
@click.option("--pace", default=1.0, show_default=True, help="seconds from task to task")
@click.option("--warm-up", default=10.0, show_default=True, help="minutes that do not count")
def main(minutes: float, pace: float, warm_up: float) -> None:
    """Measure what a deployment takes over time."""
    with TemporaryDirectory(prefix="sage-soak-") as directory:
        asyncio.run(_soak(Path(directory), minutes, pace, warm_up))


async def _soak(directory: Path, minutes: float, pace: float, warm_up: float) -> None:
    samples = list[Minute]()
    async with deployed(directory, directory) as deployment:
        load = Load(deployment, at_once=16, seconds=pace, scenario="write")
        looks = Loop("look", lambda: _look(deployment), _LOOK_SECONDS, expected=(httpx.HTTPError,))
        began = time.monotonic()
        async with load.running(), looks:
            while time.monotonic() < began + 60 * minutes:
                await asyncio.sleep(began + 60 * (len(samples) + 1) - time.monotonic())
                samples.append(await _sample(deployment, load) | {"minute": (time.monotonic() - began) / 60})
                print({name: round(value, 1) for name, value in samples[-1].items()}, flush=True)
        await load.settle()
        wrong = faults(await load.ends())
    _report(samples, warm_up, {"tasks": len(load.accepted), "faults": wrong, "pace": pace})


async def _look(deployment: Deployment) -> None:
    """As people and Prometheus do."""
    listed = (await deployment.client.get("/v1/tasks", params={"limit": 50})).raise_for_status().json()["tasks"]
    for path in ("/readyz", "/metrics", "/v1/runners", *(f"/v1/tasks/{task['id']}" for task in listed[:5])):
        await deployment.client.get(path)
    if listed:
        await deployment.client.get(f"/v1/tasks/{listed[-1]['id']}/trajectory")


async def _sample(deployment: Deployment, load: Load) -> Minute:
    groups = {name: deployment.pids(command) for name, command in _NAMES.items()}
    groups["postgres"] = deployment.postgres()
    taken = dict[str, float]()
    for name, pids in groups.items():
        usages = [usage_of(pid) for pid in pids]
        taken[f"{name} MB"] = sum(each.pss_mb for each in usages)
        taken[f"{name} own MB"] = sum(each.own_mb for each in usages)
        taken[f"{name} descriptors"] = sum(each.descriptors for each in usages)
    async with deployment.sessions() as session:
        taken["connections"] = await session.scalar(_CONNECTIONS) or 0
    taken["disk MB"] = await asyncio.to_thread(disk_mb, deployment.disk)
    return taken | {"tasks": len(load.accepted), "pending": len(load.pending)}


def _report(samples: list[Minute], warm_up: float, figures: dict[str, Any]) -> None:
    counted = [each for each in samples if each["minute"] > warm_up]
    at = [each["minute"] for each in counted]
    growth = {name: slope(at, [each[name] for each in counted]) for name in samples[0] if name != "minute"}
    for name, each in growth.items():
        change = f"{counted[0][name]:.1f} -> {counted[-1][name]:.1f}"
        print(f"{name}: {change}, {each.per_hour:+.2f} +- {each.interval:.2f} per hour")
    print(figures)
    per_hour = {name: [each.per_hour, each.interval] for name, each in growth.items()}
    write_results("soak", {**figures, "minutes": samples, "per_hour": per_hour})


if __name__ == "__main__":
    main()
