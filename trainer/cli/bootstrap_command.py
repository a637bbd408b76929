"""`sage bootstrap`."""

import shlex
import sys
from pathlib import Path

import click

from trainer.demo.seed_policy.recipe import Recipe
from trainer.evaluation.metrics_table import metrics_table


@click.command("bootstrap")
@click.argument("out", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--work",
    type=click.Path(path_type=Path, file_okay=False),
    default=".bootstrap",
    show_default=True,
    help="directory to resume from",
)
@click.option("--seed", default=Recipe().seed, show_default=True)
@click.option("--scenarios", default=8000, show_default=True, help="to demonstrate: a multiple of 100")
@click.option(
    "--drill-steps",
    type=click.IntRange(1),
    default=Recipe().drill_steps,
    show_default=True,
    help="of each of the two drills",
)
@click.option("--steps", type=click.IntRange(1), default=Recipe().steps, show_default=True, help="of training")
@click.option("--tokens", type=click.IntRange(1024), default=Recipe().tokens, show_default=True, help="per step")
@click.option("--test-scenarios", type=click.IntRange(1), default=200, show_default=True, help="held out")
@click.option(
    "--processes",
    type=click.IntRange(1),
    default=2,
    show_default=True,
    help="processes that generate demonstrations",
)
@click.option("--device", default="auto", show_default=True)
def bootstrap_command(  # noqa: PLR0913 - the command's options
    out: Path,
    work: Path,
    seed: int,
    scenarios: int,
    drill_steps: int,
    steps: int,
    tokens: int,
    test_scenarios: int,
    processes: int,
    device: str,
) -> None:
    """Build the seed policy from scratch and write its model directory to OUT.

    An interrupted build resumes when it is called again with the same --work.
    """
    # Imported here because torch takes seconds to import, which `sage --help` need not wait for.
    from trainer.demo.seed_policy.bootstrap import SeedPlan, bootstrap  # noqa: PLC0415
    from trainer.learning.model import pick_device  # noqa: PLC0415

    plan = SeedPlan(
        work=work,
        out=out,
        recipe=Recipe(seed=seed, drill_steps=drill_steps, steps=steps, tokens=tokens),
        scenarios=scenarios,
        test_scenarios=test_scenarios,
        processes=processes,
        device=pick_device(device),
        command=shlex.join(["sage", "bootstrap", *sys.argv[2:]]),
    )
    with_library, without = bootstrap(plan)
    click.echo(metrics_table({"with its library": with_library, "without": without}))
    click.echo(f"written to {out}; serve it with SAGE_MODEL={out}")
