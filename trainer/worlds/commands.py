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

from app.adapters.files import content_hash
from app.errors import InvalidError
from app.model_catalog import SEED
from app.settings import Settings
from trainer.worlds.commits import UNKNOWN, provenance, record_commit
from trainer.worlds.reproduce.plan import PRETRAINED, ExperimentPlan, conflicting_values, repeated_trials

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
    from trainer.worlds.reproduce.findings import LABELS, as_json, as_markdown, curves, differences, read_rows
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
