"""`sage reproduce`."""

import asyncio
import json
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec
from tqdm import tqdm

from app.errors import InvalidError
from app.settings import Settings
from trainer.demo.reproduce.plan import ExperimentPlan, conflicting_values, repeated_trials
from trainer.demo.reproduce.versions import UNKNOWN, provenance, record_commit

_CURVES = ("sage", "sage_outcome", "sage_chain", "sft_grpo")


@click.command()
@click.option(
    "--work",
    type=click.Path(path_type=Path, file_okay=False),
    default=".reproduce",
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
@click.option(
    "--at-once", type=click.IntRange(1), default=2, show_default=True, help="concurrent trials, a core each"
)
@click.option(
    "--seeds", type=click.IntRange(1), default=ExperimentPlan().seeds, show_default=True, help="of the main rows"
)
@click.option(
    "--steps", type=click.IntRange(1), default=ExperimentPlan().steps, show_default=True, help="of each trial"
)
@click.option(
    "--exam", type=click.IntRange(1), default=ExperimentPlan().exam, show_default=True, help="scenarios per seed"
)
@click.option("--only", multiple=True, metavar="CONDITION", help="repeatable; default: all")
@click.option("--table-only", is_flag=True, help="write the results so far without running anything")
def reproduce(  # noqa: PLR0913 - the command's options
    work: Path,
    out: Path,
    at_once: int,
    seeds: int,
    steps: int,
    exam: int,
    only: tuple[str, ...],
    table_only: bool,
) -> None:
    """Train SAGE and its baselines from the same start, and write the table of results.

    Takes hours on two cores. An interrupted experiment resumes when it is called again.
    """
    from trainer.demo.reproduce.run import Experiment  # noqa: PLC0415  torch takes seconds, which `--help` need not wait for

    plan = ExperimentPlan(
        seeds=seeds, steps=steps, exam=exam, ablation_seeds=min(seeds, ExperimentPlan().ablation_seeds)
    )
    unknown = sorted(set(only) - set(plan.conditions))
    if unknown:
        raise click.BadParameter(
            f"{', '.join(unknown)}: there is {', '.join(plan.conditions)}", param_hint="--only"
        )
    plan = msgspec.structs.replace(plan, only=only)
    work = work.absolute()
    other = conflicting_values(work, plan)
    if other is not None:
        raise InvalidError(f"{work} was begun with {other}: use the same values, or another --work")
    if table_only:
        experiment = Experiment(plan, work, lambda _: None)
    else:
        record_commit(work, _commit())
        _make_start(plan, work)
        with tqdm(desc="trials", unit="process") as bar:

            def report(name: str) -> None:
                bar.set_postfix_str(name, refresh=False)
                bar.update()

            experiment = Experiment(plan, work, report)
            bar.reset(experiment.size())
            asyncio.run(experiment.execute(at_once))
    _write_findings(plan, work, out, experiment.chosen())


def _make_start(plan: ExperimentPlan, work: Path) -> None:
    from trainer.demo.reproduce.supervised_start import make_start  # noqa: PLC0415  torch, as above

    with tqdm(total=plan.sft.steps, desc="supervised start", unit="step") as bar:
        asyncio.run(make_start(plan, work, Settings(data_dir=work), lambda _: bar.update()))


def _write_findings(plan: ExperimentPlan, work: Path, out: Path, lrs: dict[str, float]) -> None:
    from trainer.demo.reproduce.chart import draw  # noqa: PLC0415
    from trainer.demo.reproduce.findings import (  # noqa: PLC0415  numpy, as above
        LABELS,
        as_json,
        as_markdown,
        curves,
        differences,
        read_rows,
    )
    from trainer.demo.reproduce.plan import Trial  # noqa: PLC0415

    out.mkdir(parents=True, exist_ok=True)
    rows, compared = read_rows(work, plan, lrs), differences(work, plan)
    table = as_markdown(rows, compared)
    about = {"commit": provenance(work, _commit()), **_about(), "plan": msgspec.to_builtins(plan)}
    (out / "reproduce.json").write_text(json.dumps(as_json(rows, compared, about), indent=1) + "\n")
    (out / "reproduce.md").write_text(table)
    trials = [*(Trial(name, 0, lr) for name, lr in lrs.items()), *repeated_trials(plan, lrs)]
    by_condition = curves(work, trials)
    drawn = {LABELS[name].strip("*"): by_condition[name] for name in _CURVES if name in by_condition}
    if drawn:
        (out / "reproduce.svg").write_text(draw(drawn, ylabel="SGC on the validation templates, %"))
    click.echo(table)


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
