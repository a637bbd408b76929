"""`sage bootstrap`."""

import shlex
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from app.model_catalog import SEED
from app.settings import Settings
from trainer.evaluation.metrics_table import metrics_table
from trainer.worlds.commits import source_commit
from trainer.worlds.recipes import AdapterRecipe, Recipe, with_settings

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
    from app.model_store.pull import pull  # noqa: PLC0415
    from trainer.learning.model import pick_device  # noqa: PLC0415
    from trainer.worlds.base_adapter.bootstrap import AdapterPlan, bootstrap_adapter, new_recipe, serving_advice

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
