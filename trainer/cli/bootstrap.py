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
    help="resumes here",
)
@click.option("--seed", default=Recipe().seed, show_default=True)
@click.option("--scenarios", default=8000, show_default=True, help="to demonstrate, in hundreds")
@click.option(
    "--drill-steps", type=click.IntRange(1), default=Recipe().drill_steps, show_default=True, help="twice"
)
@click.option("--steps", type=click.IntRange(1), default=Recipe().steps, show_default=True, help="of training")
@click.option("--tokens", type=click.IntRange(1024), default=Recipe().tokens, show_default=True, help="per step")
@click.option("--exam", type=click.IntRange(1), default=200, show_default=True, help="held-out scenarios")
@click.option("--processes", type=click.IntRange(1), default=2, show_default=True, help="that demonstrate")
@click.option("--device", default="auto", show_default=True)
def bootstrap_command(  # noqa: PLR0913 - the command's options
    out: Path,
    work: Path,
    seed: int,
    scenarios: int,
    drill_steps: int,
    steps: int,
    tokens: int,
    exam: int,
    processes: int,
    device: str,
) -> None:
    """Make the seed policy from nothing and write its model directory to OUT.

    An interrupted run goes on where it was when it is called again with the same --work.
    """
    # Imported here because torch takes seconds, which `sage --help` need not wait.
    from trainer.demo.seed_policy.bootstrap import Plan, bootstrap  # noqa: PLC0415
    from trainer.learning.model import pick_device  # noqa: PLC0415

    plan = Plan(
        work=work,
        out=out,
        recipe=Recipe(seed=seed, drill_steps=drill_steps, steps=steps, tokens=tokens),
        scenarios=scenarios,
        exam=exam,
        processes=processes,
        device=pick_device(device),
        command=shlex.join(["sage", "bootstrap", *sys.argv[2:]]),
    )
    with_library, without = bootstrap(plan)
    click.echo(metrics_table({"with its library": with_library, "without": without}))
    click.echo(f"written to {out}; serve it with SAGE_MODEL={out}")
