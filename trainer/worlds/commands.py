"""The commands of the demo, of worlds and of experiments: `sage demo-apis`, `worlds`, `bootstrap`, `reproduce` and
`simulate-live`.

What they need is imported when they are called: torch takes seconds, which `sage --help` need not wait for.
"""

import asyncio
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar, get_args

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
from trainer.environment import Split
from trainer.evaluation.metrics import metrics_table
from trainer.worlds.demo import make_token, read_token
from trainer.worlds.external.packages import PACKAGES
from trainer.worlds.recipes import AdapterRecipe, Recipe, with_settings
from trainer.worlds.report import draw_curves, machine, provenance, record_commit, source_commit
from trainer.worlds.reproduce.plan import PRETRAINED, ExperimentPlan, Trial, conflicting_values, repeated_trials
from trainer.worlds.simulate_live.simulation import (
    Day,
    Services,
    Simulation,
    SimulationPlan,
    SimulationState,
    teach,
)

Command = TypeVar("Command", bound=Callable[..., None])
_directory = click.Path(path_type=Path, file_okay=False)
_existing = click.Path(path_type=Path, file_okay=False, exists=True)
_positive = click.IntRange(1)
_out = click.option(
    "--out",
    type=_directory,
    default="tests/bench/results",
    show_default=True,
    help="directory of the table and the figure",
)
_SCENARIOS = 8000  # of the seed policy
_CURVES = ("sage", "sage_outcome", "sage_chain", "sft_grpo")
_CONNECTION_RETRIES = 6  # while the services start: 16 seconds


def _work(default: str) -> Callable[[Command], Command]:
    return click.option(
        "--work", type=_directory, default=default, show_default=True, help="directory to resume from"
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

    def numbers(self, *names: str) -> dict[str, int]:
        """Those of these options that were given."""
        return {name: each for name in names if (each := getattr(self, name)) is not None}


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
@_work(".bootstrap")
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--scenarios",
    type=int,
    show_default=_recipes("scenarios"),
    help="to demonstrate; for the seed policy a multiple of 100",
)
@click.option(
    "--drill-steps",
    type=_positive,
    show_default=str(Recipe().drill_steps),
    help="of each of the seed policy's two drills",
)
@click.option("--start", type=_existing, help="directory of an adapter to go on from, instead of a new one")
@click.option("--steps", type=_positive, show_default=_recipes("steps"), help="of training")
@click.option("--tokens", type=click.IntRange(1024), show_default=_recipes("tokens"), help="per step")
@click.option("--test-scenarios", type=_positive, default=200, show_default=True, help="held out")
@click.option(
    "--processes",
    type=_positive,
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

    recipe = msgspec.structs.replace(Recipe(), **options.numbers("seed", "steps", "tokens", "drill_steps"))
    plan = SeedPlan(
        work=options.work,
        out=options.out,
        recipe=recipe,
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
    start = options.start and options.start.absolute()
    numbers = options.numbers("seed", "steps", "tokens", "scenarios").items()
    given = [*(f"{name}={value}" for name, value in numbers), *options.given]
    plan = AdapterPlan(
        work=options.work.absolute(),
        out=options.out,
        model_dir=model_dir.absolute(),
        start=start,
        recipe=with_settings(new_recipe(options.model, model_dir, start), given),
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
    type=_existing,
    help="supervised start of another model  [default: the adapter that comes with it]",
)
@_work(".reproduce")
@_out
@click.option("--at-once", type=_positive, default=2, show_default=True, help="concurrent trials, a core each")
@click.option("--seeds", type=_positive, show_default=_defaults("seeds"), help="of the main rows")
@click.option("--steps", type=_positive, show_default=_defaults("steps"), help="of each trial")
@click.option("--pairs", type=_positive, show_default=_defaults("pairs"), help="chains of a step")
@click.option("--group", type=click.IntRange(2), show_default=_defaults("group"), help="rollouts of a chain")
@click.option(
    "--lr",
    "lrs",
    type=click.FloatRange(0, min_open=True),
    multiple=True,
    show_default=_defaults("lrs"),
    help="repeatable: learning rates from which each condition gets the best validated",
)
@click.option("--exam", type=_positive, show_default=_defaults("exam"), help="scenarios per seed")
@click.option("--validation", type=_positive, show_default=_defaults("validation"), help="scenarios")
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
    **sizes: Any,
) -> None:
    """Train SAGE and its baselines from the same start, and write the table of results.

    With the seed policy in a world of its own; with another model in the gym, crud and the office by turns, from
    an adapter, and with a table for each thing that its training never saw. Takes hours on two cores, or days with
    a pretrained model. An interrupted experiment resumes when it is called again.
    """
    if model == SEED and adapter is not None:
        raise click.UsageError("--adapter is for another model than the seed policy: name it with --model")
    # Imported here because torch takes seconds to import, which `sage --help` need not wait for.
    from trainer.worlds.reproduce.run import Experiment, check_memory  # noqa: PLC0415
    from trainer.worlds.reproduce.start import find_start, import_start, make_start, start_profile  # noqa: PLC0415

    start = None if model == SEED else find_start(model, adapter)
    if start is not None and sizes["crowded"] is not None:
        raise click.UsageError("--crowded is for the seed policy: the start of another model is an adapter")
    base, given = ExperimentPlan(), {name: value for name, value in sizes.items() if value not in (None, ())}
    if start is not None:
        base = PRETRAINED
        given |= {"model": model, "adapter": content_hash(start), "profile": start_profile(model, start)}
    plan, work = _plan(base, given, only), work.absolute()
    other = conflicting_values(work, plan)
    if other is not None:
        raise InvalidError(f"{work} was begun with {other}: use the same values, or another --work")
    if not table_only:
        check_memory(plan, work, at_once)
        record_commit(work, source_commit())
        if start is not None:
            import_start(start, work)
        else:
            asyncio.run(make_start(plan, work))
        with tqdm(desc="trials", unit="process", disable=None) as bar:

            def report(name: str) -> None:
                bar.set_postfix_str(name, refresh=False)
                bar.update()

            experiment = Experiment(plan, work, report, bar.set_postfix_str)
            bar.reset(experiment.size())
            asyncio.run(experiment.execute(at_once))
    _write_findings(plan, work, out)


def _plan(base: ExperimentPlan, given: dict[str, Any], only: tuple[str, ...]) -> ExperimentPlan:
    plan = msgspec.structs.replace(base, **given, only=())
    _check_only(only, plan.conditions)
    return msgspec.structs.replace(
        plan,
        ablation_seeds=min(plan.seeds, base.ablation_seeds),
        validate_every=min(plan.steps, base.validate_every),
        only=only or base.only,
    )


def _check_only(only: tuple[str, ...], known: Iterable[str]) -> None:
    unknown = sorted({*only} - {*known})
    if unknown:
        raise click.BadParameter(f"{', '.join(unknown)}: there is {', '.join(known)}", param_hint="--only")


def _write_findings(plan: ExperimentPlan, work: Path, out: Path) -> None:
    """Of all conditions that were run, also by earlier calls with another --only."""
    from trainer.worlds.reproduce import findings  # noqa: PLC0415
    from trainer.worlds.reproduce.run import Experiment  # noqa: PLC0415

    whole = msgspec.structs.replace(plan, only=())
    lrs = Experiment(whole, work, lambda _: None).chosen()
    found = {
        title: (findings.read_rows(work, plan, lrs, title), findings.differences(work, plan, title))
        for title in plan.exam_titles
    }
    tables = [f"## {title}\n\n" * bool(title) + findings.as_markdown(*each) for title, each in found.items()]
    by_title = {title: findings.as_json(*each) for title, each in found.items()}
    content = {
        "commit": provenance(work, source_commit()),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "plan": msgspec.to_builtins(plan),
        **({"exams": by_title} if plan.exams else by_title[""]),
    }
    trials = [*(Trial(name, 0, lr) for name, lr in lrs.items()), *repeated_trials(whole, lrs)]
    curves = findings.curves(work, trials)
    drawn = {findings.LABELS[name].strip("*"): curves[name] for name in _CURVES if name in curves}
    chart = draw_curves(drawn, ylabel="SGC on the validation templates, %") if drawn else None
    _write(
        out,
        "reproduce" if plan.model == SEED else f"reproduce_{Path(plan.model).name}",
        content,
        "\n".join(tables),
        chart,
    )


def _write(out: Path, name: str, content: object, tables: str, chart: str | None) -> None:
    """The findings as JSON, as Markdown, which is shown as well, and as a figure."""
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    (out / f"{name}.md").write_text(tables)
    if chart is not None:
        (out / f"{name}.svg").write_text(chart)
    click.echo(tables)


def _default(name: str) -> Any:
    return getattr(SimulationPlan(), name)


@click.command()
@server_options
@_work(".simulate-live")
@_out
@click.option("--port", default=8190, show_default=True, help="where the users' office suite is served meanwhile")
@click.option("--seeds", type=_positive, default=3, show_default=True, help="one after the other")
@click.option("--days", type=_positive, default=_default("days"), show_default=True)
@click.option("--tasks", type=_positive, default=_default("tasks"), show_default=True, help="a day")
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
    _check_only(only, plans[0].arms)
    arms = only or tuple(plans[0].arms)
    simulations = [Simulation(plan, arms, work / f"seed-{plan.seed}") for plan in plans]
    if not table_only:
        with SageClient(url, key) as server, _office_suite(port, plans[0].busy, work) as services:
            for simulation in simulations:
                _run(simulation, server, services, len(arms))
    _write_simulated([simulation.state for simulation in simulations], out)


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


def _write_simulated(runs: list[SimulationState], out: Path) -> None:
    from trainer.worlds.simulate_live.findings import as_markdown, curves, findings, success_by_day  # noqa: PLC0415  numpy, as above

    runs = [run for run in runs if run.days]
    if not runs:
        raise click.ClickException("there are no results yet: run it without --table-only")
    found = findings(runs)
    content = {
        "seeds": len(runs),
        "plan": msgspec.to_builtins(msgspec.structs.replace(runs[0].plan, seed=0)),
        "arms": msgspec.to_builtins(found),
        "success_by_day": success_by_day(runs),
    }
    chart = draw_curves(curves(runs), ylabel="tasks solved, %, 5 days", xlabel="day")
    _write(out, "simulate_live", content, as_markdown(found), chart)


@click.group()
def worlds() -> None:
    """Worlds that others made, to train and examine in."""


@worlds.command("list")
def list_worlds() -> None:
    """Show which there are, and which of them are installed."""
    for package in PACKAGES.values():
        click.echo(f"{package.name:10} {'installed' if package.installed else '-':10} {package.summary}")


@worlds.command("install")
@click.argument("name", type=click.Choice(list(PACKAGES)))
def install_world(name: str) -> None:
    """Make the Python environment of a world, or make it anew. It takes minutes."""
    PACKAGES[name].install(click.echo)


@worlds.command("check")
@click.argument("environment")
@click.option("--split", type=click.Choice(get_args(Split)), help="of the tasks; default: all")
@click.option("--scenarios", type=_positive, help="of each split, at most; default: all")
def check_world(environment: str, split: Split | None, scenarios: int | None) -> None:
    """Solve the tasks of ENVIRONMENT by their reference solutions, by doing nothing, and by calls at random.

    All must be solved by the first, and few by the others.
    """
    from trainer.worlds.external.check import ALL, check  # noqa: PLC0415  as above

    found = asyncio.run(check(environment, [split] if split else get_args(Split), scenarios or ALL))
    click.echo(f"{'':10}{'tasks':>8}{'reference':>12}{'nothing':>10}{'random':>9}")
    for title, row in found.items():
        click.echo(f"{title:10}{row.tasks:8}{row.reference:12}{row.nothing:10}{row.random:9}")


@worlds.command("serve")
@click.argument("environment")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=8000, show_default=True)
@click.option("--sessions", type=_positive, default=16, show_default=True, help="clients at a time")
@click.option("--scenarios", type=_positive, default=100, show_default=True, help="listed of each split")
@click.option("--turns", type=_positive, default=30, show_default=True, help="calls of a task, at most")
def serve_world(environment: str, host: str, port: int, sessions: int, scenarios: int, turns: int) -> None:
    """Serve the tasks of ENVIRONMENT by the protocol of OpenEnv, so that other trainers practise on them.

    Their policies run Python that calls the apps of a task, in the sandbox, and complete it. Whoever reaches the
    port may do so: there is no key.
    """
    # As above.
    from app.agent.rollout import RolloutLimits  # noqa: PLC0415
    from app.base.plugins import PluginSpec  # noqa: PLC0415
    from trainer.environment import open_environment  # noqa: PLC0415
    from trainer.worlds.openenv.server import ServerOptions, serve  # noqa: PLC0415

    guard_output()
    check_port(host, port, "another --port")
    limits = msgspec.structs.replace(RolloutLimits.of(Settings.from_env()), turns=turns)
    options = ServerOptions(sessions=sessions, scenarios=scenarios, limits=limits)
    serve(PluginSpec.parse(environment).name, open_environment(environment), host, port, options)
