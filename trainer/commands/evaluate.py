"""`sage eval`."""

import asyncio
import json
import time
from pathlib import Path

import click
import msgspec
from tqdm import tqdm

from app.settings import Settings
from trainer.demo_token import read_token
from trainer.evaluate import Metrics, TaskResult, measure
from trainer.exam import Exam, sit
from trainer.report import plain, table


class Sitting(msgspec.Struct, frozen=True):
    """One pass over all scenarios."""

    metrics: Metrics
    results: list[TaskResult]
    seconds: float  # from the first submission to the last end


@click.command()
@click.option("--key", envvar="KEY", required=True, help="an admin key  [env KEY]")
@click.option("--url", default="http://127.0.0.1:8000", show_default=True, help="the server")
@click.option("--services", default="http://127.0.0.1:8100", show_default=True, help="the demo APIs")
@click.option("--split", type=click.Choice(["train", "validation", "test"]), default="test", show_default=True)
@click.option("--scenarios", type=click.IntRange(1), default=200, show_default=True, help="of three tasks each")
@click.option(
    "--sites", type=click.IntRange(1), default=20, show_default=True, help="projects they are spread over"
)
@click.option("--at-once", type=click.IntRange(1), default=16, show_default=True, help="tasks in flight")
@click.option("--seed", default=0, show_default=True)
@click.option("--library", type=click.Choice(["on", "off", "both"]), default="both", show_default=True)
@click.option(
    "--json", "out", type=click.Path(path_type=Path, dir_okay=False, writable=True), help="file for all results"
)
def evaluate(  # noqa: PLR0913 - the command's options
    key: str,
    url: str,
    services: str,
    split: str,
    scenarios: int,
    sites: int,
    at_once: int,
    seed: int,
    library: str,
    out: Path | None,
) -> None:
    """Let a running server sit held-out scenarios over REST, and report what it can do."""
    if scenarios % sites:
        raise click.BadParameter(f"{scenarios} scenarios cannot be spread evenly over {sites} sites")
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
    sittings = {}
    for each in ("on", "off") if library == "both" else (library,):
        exam = Exam(
            server=url.rstrip("/"),
            key=key,
            services=services.rstrip("/"),
            admin_token=read_token(Settings.from_env().data_dir),
            split=msgspec.convert(split, type=Exam.__annotations__["split"]),
            scenarios=scenarios,
            sites=sites,
            seed=seed,
            library=each == "on",
            at_once=at_once,
        )
        sittings[f"library {each}"] = _sit(exam, f"library {each}")
    click.echo(table({name: sitting.metrics for name, sitting in sittings.items()}))
    for name, sitting in sittings.items():
        rate = sitting.metrics.tasks / sitting.seconds
        click.echo(f"{name}: {rate:.1f} tasks/s, {at_once} at once")
    if out is not None:
        out.write_text(json.dumps({name: _plain(sitting) for name, sitting in sittings.items()}, indent=1) + "\n")


def _sit(exam: Exam, name: str) -> Sitting:
    times: list[float] = []
    with tqdm(total=3 * exam.scenarios, desc=name, unit="task") as bar:

        def report(ended: int) -> None:
            times.append(time.monotonic())
            bar.update(ended)

        results = asyncio.run(sit(exam, report))
        return Sitting(measure(results), results, times[-1] - times[0])


def _plain(sitting: Sitting) -> dict[str, object]:
    return {
        "metrics": plain(sitting.metrics),
        "seconds": sitting.seconds,
        "results": msgspec.to_builtins(sitting.results),
    }
