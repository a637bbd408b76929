"""`sage eval`, `sage collect` and `sage export`.

What they need is imported when they are called: it takes a second, which `sage --help` need not wait for.
"""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec
from tqdm import tqdm

from app.base import plugins
from app.base.errors import SettingError
from app.base.processes import base_url
from app.base.settings import Settings
from app.client.options import find_key, project_option, server_options, url_option
from app.releases.bundled_adapter import BundledAdapter
from trainer.environment import Split
from trainer.evaluation.metrics import Evaluate, PolicyMetrics, TaskResult, measure, metrics_table
from trainer.evaluation.over_rest import RestEvaluation, evaluate_server
from trainer.worlds.demo import ENVIRONMENT, read_token

_TIMEOUTS = 3  # an expert that does not answer is asked again for this many times its timeout


class EvaluationPass(msgspec.Struct, frozen=True):
    """The evaluations of all seeds, with the library on or off."""

    metrics: PolicyMetrics
    results: list[TaskResult]
    seconds: float  # from the first submission to the last end


class EvaluationOptions(msgspec.Struct, frozen=True, kw_only=True):
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
    memory: str
    extraction: str
    chain: int | None
    out: Path | None

    @property
    def in_this_process(self) -> bool:
        return self.in_process or bool(self.adapter)

    @property
    def tasks(self) -> int:
        return self.seeds * self.scenarios * min(3, self.chain or 3)

    @property
    def all_seeds(self) -> range:
        """The seeds, far enough apart that no two sample the same: over REST each site uses the next one."""
        stride = 1 if self.in_this_process else self.sites
        return range(self.seed, self.seed + self.seeds * stride, stride)


@click.command()
@click.option(
    "--key",
    envvar=["SAGE_KEY", "KEY"],
    help="an admin key of the server  [env SAGE_KEY; default: the one of `sage up` on this machine]",
)
@url_option
@click.option(
    "--services",
    default=lambda: base_url("127.0.0.1", Settings.from_env().demo_port or Settings().demo_port),
    show_default="those at SAGE_DEMO_PORT",
    help="the demo APIs",
)
@click.option("--split", type=click.Choice(["train", "validation", "test"]), default="test", show_default=True)
@click.option("--scenarios", type=click.IntRange(1), default=200, show_default=True, help="of three tasks each")
@click.option(
    "--sites", type=click.IntRange(1), default=20, show_default=True, help="projects they are spread over"
)
@click.option("--at-once", type=click.IntRange(1), default=16, show_default=True, help="chains in flight")
@click.option("--seed", default=0, show_default=True, help="first seed")
@click.option(
    "--seeds",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="number of seeds; each evaluates --scenarios",
)
@click.option("--library", type=click.Choice(["on", "off", "both"]), default="both", show_default=True)
@click.option(
    "--in-process", is_flag=True, help="without a server: SAGE_MODEL and a sandbox of its own, in this process"
)
@click.option(
    "--adapter",
    default="",
    help="a directory or a hash, in this process; `none`: the model alone  [default: the one that comes with it]",
)
@click.option("--environment", default=ENVIRONMENT, show_default=True, help="in this process")
@click.option(
    "--retrieval",
    default="scenario",
    show_default=True,
    help="how skills are found, in this process: a registered name or module:attribute",
)
@click.option(
    "--memory", default="", help="text that tasks are shown of earlier ones, in this process, as the run setting"
)
@click.option(
    "--extraction",
    type=click.Choice(["inline", "post_hoc"]),
    default="inline",
    show_default=True,
    help="when skills are written, in this process",
)
@click.option("--chain", type=click.IntRange(1), help="tasks of each scenario, in this process  [default: all]")
@click.option(
    "--json", "out", type=click.Path(path_type=Path, dir_okay=False, writable=True), help="file for all results"
)
def evaluate(**given: Any) -> None:
    """Evaluate a policy on held-out scenarios.

    By default a running server is evaluated over REST, with tasks submitted as its users would; with --in-process
    or --adapter a model is evaluated in this process, without a server.
    """
    options = msgspec.convert(given, EvaluationOptions)
    if not options.in_this_process:
        key = find_key(options.url, options.key)
        if key is None:
            raise click.UsageError("set SAGE_KEY to an admin key (or --in-process, which needs no server)")
        if options.scenarios % options.sites:
            raise click.BadParameter(
                f"{options.scenarios} scenarios cannot be spread evenly over {options.sites} sites"
            )
        options = msgspec.structs.replace(options, key=key)
    plugins.find("sage.retrieval", options.retrieval)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
    passes = asyncio.run(_run_passes(options))
    click.echo(metrics_table({name: each.metrics for name, each in passes.items()}))
    for name, each in passes.items():
        rate = each.metrics.tasks / each.seconds
        click.echo(f"{name}: {rate:.1f} tasks/s, {options.at_once} at once")
    if options.out is not None:
        options.out.write_text(json.dumps(msgspec.to_builtins(passes), indent=1) + "\n")


async def _run_passes(options: EvaluationOptions) -> dict[str, EvaluationPass]:
    passes = {}
    async with _in_process(options) if options.in_this_process else _over_rest(options) as evaluate_once:
        for each in ("on", "off") if options.library == "both" else (options.library,):
            name = f"library {each}"
            passes[name] = await _run_pass(options, evaluate_once, name, library=each == "on")
    return passes


async def _run_pass(
    options: EvaluationOptions, evaluate_once: Evaluate, name: str, *, library: bool
) -> EvaluationPass:
    """The policy has no seed of its own, so the scenarios of all seeds are measured as one sample."""
    times: list[float] = []
    results: list[TaskResult] = []
    with tqdm(total=options.tasks, desc=name, unit="task", disable=None) as bar:

        def report(ended: int) -> None:
            times.append(time.monotonic())
            bar.update(ended)

        for seed in options.all_seeds:
            results += await evaluate_once(seed, library, report)
    metrics = msgspec.structs.replace(measure(results), seeds=options.seeds)
    return EvaluationPass(metrics, results, times[-1] - times[0])


def served_adapter(given: str, model_dir: Path) -> str:
    """The adapter that a new project serves, unless another one is given; empty for `none`."""
    if given:
        return "" if given == "none" else given
    bundled = BundledAdapter.of(model_dir)
    return "" if bundled is None else str(bundled.path)


@asynccontextmanager
async def _over_rest(options: EvaluationOptions) -> AsyncIterator[Evaluate]:
    about = {"server": options.url.rstrip("/"), "services": options.services.rstrip("/"), "library": True}
    about["admin_token"] = read_token(Settings.from_env().data_dir)
    evaluation = msgspec.convert(msgspec.structs.asdict(options) | about, RestEvaluation)
    yield lambda seed, library, report: evaluate_server(
        msgspec.structs.replace(evaluation, seed=seed, library=library), report
    )


@asynccontextmanager
async def _in_process(options: EvaluationOptions) -> AsyncIterator[Evaluate]:
    # Imported here because torch takes seconds, which an evaluation over REST need not wait for.
    from trainer.evaluation.local import LocalEvaluation, open_local_evaluation  # noqa: PLC0415

    settings = Settings.from_env()
    adapter = served_adapter(options.adapter, settings.model_dir)
    evaluation = msgspec.convert(msgspec.structs.asdict(options) | {"adapter": adapter}, LocalEvaluation)
    async with open_local_evaluation(evaluation, settings) as evaluate_once:
        yield evaluate_once


@click.command()
@click.option(
    "--expert",
    metavar="NAME?OPTION=VALUE&...",
    required=True,
    help='who demonstrates: the NAME of a hosted model, "chat?url=URL&model=NAME" or "scripted?inline=0.1"',
)
@click.option("--project", help="of the hosted model that is the expert  [default: the only one]")
@click.option("--api-key-env", metavar="VAR", help="the environment variable that holds the expert's API key")
@click.option("--environment", default=ENVIRONMENT, show_default=True, help="as `sage environments` lists them")
@click.option("--split", type=click.Choice(["train", "validation", "test"]), default="train", show_default=True)
@click.option("--scenarios", type=click.IntRange(1), default=100, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--temperature",
    "temperatures",
    type=click.FloatRange(0, 2),
    multiple=True,
    default=[0.0, 0.7, 1.0],
    show_default=True,
    help="tried in order until a pass over a scenario leaves something to keep; repeatable",
)
@click.option(
    "--keep",
    type=click.Choice(["chain", "task"]),
    default="chain",
    show_default=True,
    help="successes of scenarios whose first two tasks succeeded, or all",
)
@click.option("--profile", default="", help="prompt profile of the policy to train  [default: SAGE_MODEL's]")
@click.option("--at-once", type=click.IntRange(1), default=8, show_default=True, help="scenarios in flight")
@click.option("--timeout", type=click.FloatRange(1), default=120.0, show_default=True, help="seconds per answer")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="a JSONL file")
def collect(
    out: Path,
    api_key_env: str | None,
    at_once: int,
    timeout: float,
    expert: str,
    project: str | None,
    **wanted: Any,
) -> None:
    """Let an expert work in an environment and keep its successes as chats to train on.

    The same command resumes a collection that was interrupted. `sage train --kind sft --set data=FILE` learns from
    the file; so do TRL and LLaMA-Factory.
    """
    # Imported here because all that a rollout needs takes a second, which `sage --help` need not wait for.
    from trainer.hosted import find_hosted  # noqa: PLC0415
    from trainer.sft import collection  # noqa: PLC0415

    settings, patience, key, open_model = Settings.from_env(), _TIMEOUTS * timeout, "", None
    if api_key_env is not None and not (key := os.environ.get(api_key_env, "")):
        raise SettingError(f"the environment variable {api_key_env} is not set: put the expert's API key there")
    if project or _is_hosted(expert):
        expert, open_model = find_hosted(expert, project, settings, timeout, patience)
    access = collection.ExpertAccess(
        key=key, at_once=at_once, timeout=timeout, patience=patience, open_model=open_model
    )
    chats = collection.CollectionSettings(expert=expert, **wanted)
    with tqdm(total=chats.scenarios, desc="collect", unit="scenario", disable=None) as bar:
        try:
            total = asyncio.run(collection.collect(chats, access, settings, out, bar.update))
        except OSError as error:
            raise click.ClickException(f"{out} cannot be written: {error.strerror}") from error
    click.echo(f"{out}: kept {len(total.kept)} of {total.tried} tasks")
    for reason, count in total.dropped.items():
        click.echo(f"left out {count}: {reason}")


def _is_hosted(expert: str) -> bool:
    """It is no plug-in."""
    from trainer.rollouts.episode import GROUP  # noqa: PLC0415

    name = expert.partition("?")[0]
    return "?" not in expert and ":" not in name and name not in plugins.names(GROUP)


@click.command()
@server_options
@project_option
@click.option("--min-score", type=click.FloatRange(0, 1), default=0.0, show_default=True)
@click.option("--since", type=click.DateTime(), help="tasks submitted after this time, UTC")
@click.option("--until", type=click.DateTime(), help="tasks submitted before this time, UTC")
@click.option(
    "--limit", type=click.IntRange(1), default=10_000, show_default=True, help="number of tasks, newest first"
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="a JSONL file")
def export(key: str, url: str, since: datetime | None, until: datetime | None, out: Path, **wanted: Any) -> None:
    """Write the scored tasks of a running server as chats that TRL and LLaMA-Factory read."""
    # Imported here because all that a rollout needs takes a second, which `sage --help` need not wait for.
    from app.client.server import SageClient  # noqa: PLC0415
    from trainer.sft import chats  # noqa: PLC0415

    chosen = chats.ExportFilter(
        since=since and since.replace(tzinfo=UTC), until=until and until.replace(tzinfo=UTC), **wanted
    )
    with SageClient(url, key) as server, tqdm(desc="export", unit="task", disable=None) as bar:
        found = chats.export_chats(server, chosen, bar.update)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        chats.write_records(found.records, out)
    except OSError as error:
        raise click.ClickException(f"{out} cannot be written: {error.strerror}") from error
    click.echo(f"{out}: {len(found.records)} tasks")
    for reason, count in found.left_out.items():
        click.echo(f"left out {count}: {reason}")
