"""`sage eval`."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import click
import msgspec
from tqdm import tqdm

from app import plugins
from app.ports import base_url
from app.settings import Settings
from trainer.cli.options import url_option
from trainer.demo.admin_token import read_token
from trainer.demo.defaults import ENVIRONMENT
from trainer.environment import Split
from trainer.evaluation.metrics import Metrics, TaskResult, measure
from trainer.evaluation.over_rest import Exam, sit
from trainer.evaluation.report import plain, table

Report: TypeAlias = Callable[[int], object]
SitOnce: TypeAlias = Callable[[int, bool, Report], Awaitable[list[TaskResult]]]
"""One exam, by its seed, with the library on or off; the last hears of tasks done."""


class Sitting(msgspec.Struct, frozen=True):
    """One pass over the scenarios of all seeds."""

    metrics: Metrics
    results: list[TaskResult]
    seconds: float  # from the first submission to the last end


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The command's options."""

    key: str | None
    url: str
    services: str
    split: Split
    scenarios: int
    sites: int
    at_once: int
    seed: int
    seeds: int
    library: str
    in_process: bool
    adapter: str
    environment: str
    retrieval: str
    chain: int | None
    out: Path | None

    @property
    def at_home(self) -> bool:
        return self.in_process or bool(self.adapter)

    @property
    def tasks(self) -> int:
        return self.seeds * self.scenarios * min(3, self.chain or 3)

    @property
    def draws(self) -> range:
        """The seeds, so far apart that no two draw the same: over REST each site takes the next one."""
        stride = 1 if self.at_home else self.sites
        return range(self.seed, self.seed + self.seeds * stride, stride)


@click.command()
@click.option("--key", envvar="KEY", help="an admin key of the server  [env KEY]")
@url_option
@click.option(
    "--services",
    default=lambda: base_url("127.0.0.1", Settings.from_env().demo_port),
    show_default="those at SAGE_DEMO_PORT",
    help="the demo APIs",
)
@click.option("--split", type=click.Choice(["train", "validation", "test"]), default="test", show_default=True)
@click.option("--scenarios", type=click.IntRange(1), default=200, show_default=True, help="of three tasks each")
@click.option(
    "--sites", type=click.IntRange(1), default=20, show_default=True, help="projects they are spread over"
)
@click.option("--at-once", type=click.IntRange(1), default=16, show_default=True, help="chains in flight")
@click.option("--seed", default=0, show_default=True, help="the first")
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True, help="draws of as many scenarios")
@click.option("--library", type=click.Choice(["on", "off", "both"]), default="both", show_default=True)
@click.option(
    "--in-process", is_flag=True, help="without a server: SAGE_MODEL and an own sandbox, in this process"
)
@click.option("--adapter", default="", help="a directory or a hash, in this process")
@click.option("--environment", default=ENVIRONMENT, show_default=True, help="in this process")
@click.option(
    "--retrieval",
    default="scenario",
    show_default=True,
    help="how skills are found, in this process: a registered name or module:attribute",
)
@click.option("--chain", type=click.IntRange(1), help="tasks of each scenario, in this process  [default: all]")
@click.option(
    "--json", "out", type=click.Path(path_type=Path, dir_okay=False, writable=True), help="file for all results"
)
def evaluate(**options: Any) -> None:
    """Let a policy sit held-out scenarios, and report what it can do.

    By default a running server sits them over REST, as its users would send them; with --in-process or --adapter
    the model does, in this process and without a server.
    """
    asked = msgspec.convert(options, Asked)
    if not asked.at_home and asked.key is None:
        raise click.UsageError("give --key, an admin key of the server (or --in-process, which needs no server)")
    if not asked.at_home and asked.scenarios % asked.sites:
        raise click.BadParameter(f"{asked.scenarios} scenarios cannot be spread evenly over {asked.sites} sites")
    plugins.find("sage.retrieval", asked.retrieval)
    if asked.out is not None:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
    sittings = asyncio.run(_sit_all(asked))
    click.echo(table({name: sitting.metrics for name, sitting in sittings.items()}))
    for name, sitting in sittings.items():
        rate = sitting.metrics.tasks / sitting.seconds
        click.echo(f"{name}: {rate:.1f} tasks/s, {asked.at_once} at once")
    if asked.out is not None:
        found = {name: _plain(sitting) for name, sitting in sittings.items()}
        asked.out.write_text(json.dumps(found, indent=1) + "\n")


async def _sit_all(asked: Asked) -> dict[str, Sitting]:
    sittings = {}
    async with _at_home(asked) if asked.at_home else _over_rest(asked) as sit_once:
        for each in ("on", "off") if asked.library == "both" else (asked.library,):
            name = f"library {each}"
            sittings[name] = await _sit(asked, sit_once, name, library=each == "on")
    return sittings


async def _sit(asked: Asked, sit_once: SitOnce, name: str, *, library: bool) -> Sitting:
    """What is examined has no seed of its own, so the draws of all seeds are measured as one."""
    times: list[float] = []
    results: list[TaskResult] = []
    with tqdm(total=asked.tasks, desc=name, unit="task") as bar:

        def report(ended: int) -> None:
            times.append(time.monotonic())
            bar.update(ended)

        for seed in asked.draws:
            results += await sit_once(seed, library, report)
    metrics = msgspec.structs.replace(measure(results), seeds=asked.seeds)
    return Sitting(metrics, results, times[-1] - times[0])


@asynccontextmanager
async def _over_rest(asked: Asked) -> AsyncIterator[SitOnce]:
    exam = Exam(
        server=asked.url.rstrip("/"),
        key=asked.key or "",
        services=asked.services.rstrip("/"),
        admin_token=read_token(Settings.from_env().data_dir),
        split=asked.split,
        scenarios=asked.scenarios,
        sites=asked.sites,
        at_once=asked.at_once,
    )
    yield lambda seed, library, report: sit(msgspec.structs.replace(exam, seed=seed, library=library), report)


@asynccontextmanager
async def _at_home(asked: Asked) -> AsyncIterator[SitOnce]:
    # Imported here because torch takes seconds, which an exam over REST need not wait.
    from trainer.evaluation.session import HomeExam, take_seat  # noqa: PLC0415

    exam = HomeExam(
        adapter=asked.adapter,
        environment=asked.environment,
        split=asked.split,
        scenarios=asked.scenarios,
        retrieval=asked.retrieval,
        chain=asked.chain,
        at_once=asked.at_once,
    )
    async with take_seat(exam, Settings.from_env()) as seat:
        yield lambda seed, library, report: seat.sit(seed, library=library, report=report)


def _plain(sitting: Sitting) -> dict[str, object]:
    return {
        "metrics": plain(sitting.metrics),
        "seconds": sitting.seconds,
        "results": msgspec.to_builtins(sitting.results),
    }
