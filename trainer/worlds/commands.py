"""The commands of the demo and of the experiments: `sage demo-apis`, `bootstrap`, `reproduce` and `simulate-live`.

What they need is imported when they are called: torch takes seconds, which `sage --help` need not wait for.
"""

import asyncio
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import httpx
import msgspec
from tqdm import tqdm

from app.base.errors import InvalidError
from app.base.guarded_output import guard_output
from app.base.model_catalog import SEED
from app.base.processes import check_port, end_with_parent, python_module
from app.base.settings import Settings
from app.client.options import server_options
from app.client.server import SageClient
from app.engine.adapter_files import content_hash
from trainer.evaluation.metrics import metrics_table
from trainer.worlds.commits import UNKNOWN, provenance, record_commit, source_commit
from trainer.worlds.demo import make_token, read_token
from trainer.worlds.recipes import AdapterRecipe, Recipe, with_settings
from trainer.worlds.reproduce.plan import PRETRAINED, ExperimentPlan, conflicting_values, repeated_trials
from trainer.worlds.simulate_live.simulation import (
    Day,
    Services,
    Simulation,
    SimulationPlan,
    SimulationState,
    teach,
)

_out = click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default="tests/bench/results",
    show_default=True,
    help="directory of the table and the figure",
)


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=8100, show_default=True)
@click.option(
    "--busy",
    type=click.FloatRange(0, 0.9),
    default=0.0,
    show_default=True,
    help="share of log-ins refused with 503",
)
def demo_apis(host: str, port: int, busy: float) -> None:
    """Serve the APIs of the demo project over HTTP."""
    from trainer.worlds.office.services import serve  # noqa: PLC0415  Litestar takes a moment, which `--help` need not wait for

    guard_output()
    check_port(host, port, "another --port, or SAGE_DEMO_PORT where `sage up` starts it")
    serve(host, port, make_token(Settings.from_env().data_dir), busy=busy)


_SCENARIOS = 8000  # of the seed policy


class BootstrapOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The command's options. None is the default of the model's recipe."""

    out: Path
    model: str
    work: Path
    seed: int
    scenarios: int | None
    drill_steps: int | None
    start: Path | None
    steps: int | None
    tokens: int | None
    test_scenarios: int
    processes: int
    device: str
    given: tuple[str, ...]
    commit: str | None

    @property
    def common(self) -> dict[str, int]:
        """The options that both recipes know, as far as they were given."""
        numbers = {"steps": self.steps, "tokens": self.tokens}
        return {"seed": self.seed} | {name: each for name, each in numbers.items() if each is not None}


def _recipes(name: str) -> str:
    """The defaults of both recipes, as the help shows them."""
    seed = _SCENARIOS if name == "scenarios" else getattr(Recipe(), name)
    return f"{seed}; {getattr(AdapterRecipe(model='', base=''), name)} for an adapter"


@click.command("bootstrap")
@click.argument("out", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--model",
    default=SEED,
    show_default=True,
    help="the seed policy, or the model to make an adapter for: a name of `sage models list`, or a directory",
)
@click.option(
    "--work",
    type=click.Path(path_type=Path, file_okay=False),
    default=".bootstrap",
    show_default=True,
    help="directory to resume from",
)
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--scenarios",
    type=int,
    show_default=_recipes("scenarios"),
    help="to demonstrate; for the seed policy a multiple of 100",
)
@click.option(
    "--drill-steps",
    type=click.IntRange(1),
    show_default=str(Recipe().drill_steps),
    help="of each of the seed policy's two drills",
)
@click.option(
    "--start",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="directory of an adapter to go on from, instead of a new one",
)
@click.option("--steps", type=click.IntRange(1), show_default=_recipes("steps"), help="of training")
@click.option("--tokens", type=click.IntRange(1024), show_default=_recipes("tokens"), help="per step")
@click.option("--test-scenarios", type=click.IntRange(1), default=200, show_default=True, help="held out")
@click.option(
    "--processes",
    type=click.IntRange(1),
    default=2,
    show_default=True,
    help="processes that generate demonstrations, and train an adapter (at most one per GPU)",
)
@click.option("--device", default="auto", show_default=True)
@click.option(
    "--set",
    "given",
    metavar="NAME=VALUE",
    multiple=True,
    help="another value of an adapter's recipe, such as lr=5e-4; repeatable",
)
@click.option("--commit", help="of the source, for an adapter's card  [default: git's]")
def bootstrap_command(**given: Any) -> None:
    """Build the seed policy, or the adapter of a pretrained model, and write it to OUT.

    An interrupted build resumes when it is called again with the same --work.
    """
    options = BootstrapOptions(**given)
    if options.model == SEED:
        _build_seed(options)
    else:
        _build_adapter(options)


def _build_seed(options: BootstrapOptions) -> None:
    if options.given or options.start:
        raise click.UsageError("--set and --start are for an adapter: name its model with --model")
    # Imported here because torch takes seconds to import, which `sage --help` need not wait for.
    from trainer.learning.model import pick_device  # noqa: PLC0415
    from trainer.worlds.seed_policy.bootstrap import SeedPlan, bootstrap  # noqa: PLC0415

    drills = {} if options.drill_steps is None else {"drill_steps": options.drill_steps}
    plan = SeedPlan(
        work=options.work,
        out=options.out,
        recipe=msgspec.structs.replace(Recipe(), **options.common, **drills),
        scenarios=_SCENARIOS if options.scenarios is None else options.scenarios,
        test_scenarios=options.test_scenarios,
        processes=options.processes,
        device=pick_device(options.device),
        command=_command(),
    )
    with_library, without = bootstrap(plan)
    click.echo(metrics_table({"with its library": with_library, "without": without}))
    click.echo(f"written to {options.out}; serve it with SAGE_MODEL={options.out}")


def _build_adapter(options: BootstrapOptions) -> None:
    if options.drill_steps is not None:
        raise click.UsageError("--drill-steps is for the seed policy: an adapter has no drills")
    # As above.
    from app.machine.models import pull  # noqa: PLC0415
    from trainer.learning.model import pick_device  # noqa: PLC0415
    from trainer.worlds.base_adapter.bootstrap import (  # noqa: PLC0415
        AdapterPlan,
        bootstrap_adapter,
        new_recipe,
        serving_advice,
    )

    settings = Settings.from_env()
    model_dir = pull(options.model, settings.data_dir)
    scenarios = {} if options.scenarios is None else {"scenarios": options.scenarios}
    start = options.start and options.start.absolute()
    numbers = [f"{name}={value}" for name, value in (options.common | scenarios).items()]
    plan = AdapterPlan(
        work=options.work.absolute(),
        out=options.out,
        model_dir=model_dir.absolute(),
        start=start,
        recipe=with_settings(new_recipe(options.model, model_dir, start), [*numbers, *options.given]),
        test_scenarios=options.test_scenarios,
        processes=options.processes,
        device=pick_device(options.device).type,
        command=_command(),
        commit=options.commit or source_commit(),
        settings=settings,
    )
    for title, columns in bootstrap_adapter(plan).items():
        click.echo(f"{title}\n{metrics_table(columns)}\n")
    click.echo(f"written to {options.out}{serving_advice(plan)}")


def _command() -> str:
    return shlex.join(["sage", "bootstrap", *sys.argv[2:]])


_CURVES = ("sage", "sage_outcome", "sage_chain", "sft_grpo")


def _defaults(name: str) -> str:
    return f"{getattr(ExperimentPlan(), name)}; {getattr(PRETRAINED, name)} for another model"


@click.command()
@click.option(
    "--model",
    default=SEED,
    show_default=True,
    help="the seed policy, or another model: a name of `sage models list`, or a directory",
)
@click.option(
    "--adapter",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="supervised start of another model  [default: the adapter that comes with it]",
)
@click.option(
    "--work",
    type=click.Path(path_type=Path, file_okay=False),
    default=".reproduce",
    show_default=True,
    help="directory to resume from",
)
@_out
@click.option(
    "--at-once", type=click.IntRange(1), default=2, show_default=True, help="concurrent trials, a core each"
)
@click.option("--seeds", type=click.IntRange(1), show_default=_defaults("seeds"), help="of the main rows")
@click.option("--steps", type=click.IntRange(1), show_default=_defaults("steps"), help="of each trial")
@click.option("--pairs", type=click.IntRange(1), show_default=_defaults("pairs"), help="chains of a step")
@click.option("--group", type=click.IntRange(2), show_default=_defaults("group"), help="rollouts of a chain")
@click.option(
    "--lr",
    "lrs",
    type=click.FloatRange(0, min_open=True),
    multiple=True,
    show_default=_defaults("lrs"),
    help="repeatable: learning rates from which each condition gets the best validated",
)
@click.option("--exam", type=click.IntRange(1), show_default=_defaults("exam"), help="scenarios per seed")
@click.option("--validation", type=click.IntRange(1), show_default=_defaults("validation"), help="scenarios")
@click.option(
    "--crowded",
    type=click.FloatRange(0, 1),
    show_default="0",
    help="share of the demonstrations in which unfitting skills are offered, too",
)
@click.option("--only", multiple=True, metavar="CONDITION", help="repeatable; default: all of the model's")
@click.option("--table-only", is_flag=True, help="write the results so far without running anything")
def reproduce(
    model: str,
    adapter: Path | None,
    work: Path,
    out: Path,
    at_once: int,
    only: tuple[str, ...],
    table_only: bool,
    **sizes: float | tuple[float, ...] | None,
) -> None:
    """Train SAGE and its baselines from the same start, and write the table of results.

    With the seed policy in a world of its own; with another model in the gym, crud and the office by turns, from
    an adapter, and with a table for each thing that its training never saw. Takes hours on two cores, or days with
    a pretrained model. An interrupted experiment resumes when it is called again.
    """
    from trainer.worlds.reproduce.run import Experiment, check_memory  # noqa: PLC0415  torch takes seconds, which `--help` need not wait for

    start = _find_start(model, adapter)
    if start is not None and sizes["crowded"] is not None:
        raise click.UsageError("--crowded is for the seed policy: the start of another model is an adapter")
    plan = _plan(model, start, {name: value for name, value in sizes.items() if value not in (None, ())}, only)
    work = work.absolute()
    other = conflicting_values(work, plan)
    if other is not None:
        raise InvalidError(f"{work} was begun with {other}: use the same values, or another --work")
    if not table_only:
        check_memory(plan, work, at_once)
        record_commit(work, _commit())
        _make_start(plan, start, work)
        with tqdm(desc="trials", unit="process", disable=None) as bar:

            def report(name: str) -> None:
                bar.set_postfix_str(name, refresh=False)
                bar.update()

            experiment = Experiment(plan, work, report, bar.set_postfix_str)
            bar.reset(experiment.size())
            asyncio.run(experiment.execute(at_once))
    _write_findings(plan, work, out)


def _find_start(model: str, adapter: Path | None) -> Path | None:
    """None for the seed policy, whose start is trained."""
    if model == SEED:
        if adapter is not None:
            raise click.UsageError("--adapter is for another model than the seed policy: name it with --model")
        return None
    from trainer.worlds.reproduce.start import find_start  # noqa: PLC0415  torch, as above

    return find_start(model, adapter)


def _plan(model: str, start: Path | None, sizes: dict[str, Any], only: tuple[str, ...]) -> ExperimentPlan:
    base = ExperimentPlan() if start is None else PRETRAINED
    plan = msgspec.structs.replace(base, **_start_values(model, start), **sizes, only=())
    plan = msgspec.structs.replace(
        plan,
        ablation_seeds=min(plan.seeds, base.ablation_seeds),
        validate_every=min(plan.steps, base.validate_every),
    )
    unknown = sorted(set(only) - set(plan.conditions))
    if unknown:
        raise click.BadParameter(
            f"{', '.join(unknown)}: there is {', '.join(plan.conditions)}", param_hint="--only"
        )
    return msgspec.structs.replace(plan, only=only or base.only)


def _start_values(model: str, start: Path | None) -> dict[str, str]:
    if start is None:
        return {}
    from trainer.worlds.reproduce.start import start_profile  # noqa: PLC0415  torch, as above

    return {"model": model, "adapter": content_hash(start), "profile": start_profile(model, start)}


def _make_start(plan: ExperimentPlan, start: Path | None, work: Path) -> None:
    if start is not None:
        from trainer.worlds.reproduce.start import import_start  # noqa: PLC0415  torch, as above

        import_start(start, work)
        return
    from trainer.worlds.reproduce.start import make_start  # noqa: PLC0415  torch, as above

    settings = Settings(data_dir=work, model=SEED)
    with tqdm(total=plan.sft.steps, desc="supervised start", unit="step", disable=None) as bar:
        asyncio.run(make_start(plan, work, settings, lambda _: bar.update()))


def _write_findings(plan: ExperimentPlan, work: Path, out: Path) -> None:
    """Of all conditions that were run, also by earlier calls with another --only."""
    from trainer.worlds.chart import draw  # noqa: PLC0415
    from trainer.worlds.reproduce.findings import (  # noqa: PLC0415
        LABELS,
        as_json,
        as_markdown,
        curves,
        differences,
        read_rows,
    )
    from trainer.worlds.reproduce.plan import Trial  # noqa: PLC0415
    from trainer.worlds.reproduce.run import Experiment  # noqa: PLC0415
    from trainer.worlds.reproduce.trial import exam_titles  # noqa: PLC0415

    whole = msgspec.structs.replace(plan, only=())
    lrs = Experiment(whole, work, lambda _: None).chosen()
    out.mkdir(parents=True, exist_ok=True)
    found = {
        title: (read_rows(work, plan, lrs, title), differences(work, plan, title)) for title in exam_titles(plan)
    }
    tables = [f"## {title}\n\n" * bool(title) + as_markdown(*each) for title, each in found.items()]
    about = {"commit": provenance(work, _commit()), **_about(), "plan": msgspec.to_builtins(plan)}
    by_title = {title: as_json(*each, {}) for title, each in found.items()}
    content = about | ({"exams": by_title} if plan.exams else by_title[""])
    name = "reproduce" if plan.model == SEED else f"reproduce_{Path(plan.model).name}"
    (out / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    (out / f"{name}.md").write_text("\n".join(tables))
    trials = [*(Trial(name, 0, lr) for name, lr in lrs.items()), *repeated_trials(whole, lrs)]
    by_condition = curves(work, trials)
    drawn = {LABELS[name].strip("*"): by_condition[name] for name in _CURVES if name in by_condition}
    if drawn:
        (out / f"{name}.svg").write_text(draw(drawn, ylabel="SGC on the validation templates, %"))
    click.echo("\n".join(tables))


def _commit() -> str:
    """The commit of this code, wherever the command is called."""
    order = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    return subprocess.run(order, capture_output=True, text=True, check=False).stdout.strip() or UNKNOWN


def _about() -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{_processor()}, {platform.system()} {platform.machine()}, Python {platform.python_version()}",
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.processor()


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
@_out
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
    _simulate_live_write_findings([simulation.state for simulation in simulations], out)


def _run(simulation: Simulation, server: SageClient, services: Services, arms: int) -> None:
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


def _simulate_live_write_findings(runs: list[SimulationState], out: Path) -> None:
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
