"""`sage collect`."""

import asyncio
import os
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from app.errors import SettingError
from app.settings import Settings
from trainer.demo.defaults import ENVIRONMENT

_TIMEOUTS = 3  # for so many times its time-out an endpoint that does not answer is asked again


@click.command()
@click.option("--expert", metavar="URL", default="", help="an OpenAI-compatible chat endpoint")
@click.option("--model", default="", help="its name at the endpoint")
@click.option("--api-key-env", metavar="VAR", help="the environment variable that holds the endpoint's key")
@click.option("--scripted", is_flag=True, help="the office's scripted expert instead, with these mistakes:")
@click.option("--inline", type=click.FloatRange(0, 1), default=0.0, help="solves without a function")
@click.option("--ignore", type=click.FloatRange(0, 1), default=0.0, help="writes again what a skill could do")
@click.option("--trust", type=click.FloatRange(0, 1), default=0.0, help="completes in the turn that uses a skill")
@click.option("--unprepared", type=click.FloatRange(0, 1), default=0.0, help="forgets a preparing call")
@click.option("--page", type=click.FloatRange(0, 1), default=0.0, help="starts at a wrong page")
@click.option("--synonym", type=click.FloatRange(0, 1), default=0.0, help="calls an operation by a wrong name")
@click.option("--environment", default=ENVIRONMENT, show_default=True)
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
    help="tried in order until a pass over a scenario leaves something to keep; may be given several times",
)
@click.option(
    "--keep",
    type=click.Choice(["chain", "task"]),
    default="chain",
    show_default=True,
    help="successes of scenarios whose first two tasks succeeded, or all",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(0),
    default=1500,
    show_default=True,
    help="per turn; 0 leaves it to the endpoint",
)
@click.option("--profile", default="", help="the prompt profile of the policy to teach  [SAGE_MODEL's]")
@click.option("--at-once", type=click.IntRange(1), default=8, show_default=True, help="scenarios in flight")
@click.option("--timeout", type=click.FloatRange(1), default=120.0, show_default=True, help="seconds per answer")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="a JSONL file")
def collect(out: Path, api_key_env: str | None, scripted: bool, **given: Any) -> None:
    """Let an expert work in a practice environment and keep its successes as chats to train on.

    The same command goes on where it was interrupted. `sage train --kind sft --set data=FILE` learns from the
    file; so do TRL and LLaMA-Factory.
    """
    # Imported here because all that a rollout needs takes a second, which `sage --help` need not wait.
    from trainer.environments.office.expert import Faults  # noqa: PLC0415
    from trainer.sft_data.collect import Effort, Order, deliver  # noqa: PLC0415

    faults = Faults(**{name: given.pop(name) for name in Faults.__struct_fields__})
    _check(scripted, given, flawless=faults == Faults())
    timeout = given.pop("timeout")
    effort = Effort(
        key=_key(api_key_env), at_once=given.pop("at_once"), timeout=timeout, patience=_TIMEOUTS * timeout
    )
    temperatures = (0.0,) if scripted else given.pop("temperatures")
    order = Order(**{**given, "temperatures": temperatures, "faults": faults})
    with tqdm(total=order.scenarios, desc="collect", unit="scenario") as bar:
        try:
            total = asyncio.run(deliver(order, effort, Settings.from_env(), out, bar.update))
        except OSError as error:
            raise click.ClickException(f"{out} cannot be written: {error.strerror}") from error
    click.echo(f"{out}: kept {len(total.kept)} of {total.tried} tasks")
    for reason, count in total.dropped.items():
        click.echo(f"left out {count}: {reason}")


def _check(scripted: bool, given: dict[str, Any], *, flawless: bool) -> None:
    if scripted == bool(given["expert"]):
        raise click.UsageError("name either --expert URL or --scripted")
    if not scripted and not given["model"]:
        raise click.UsageError("name the expert's --model")
    if not scripted and not flawless:
        raise click.UsageError("only the --scripted expert makes mistakes to order")


def _key(variable: str | None) -> str:
    """Raises SettingError where the variable is named and not set: without a key, the endpoint would refuse."""
    if variable is None:
        return ""
    if not os.environ.get(variable):
        raise SettingError(f"the environment variable {variable} is not set: put the endpoint's key there")
    return os.environ[variable]
