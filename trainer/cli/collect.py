"""`sage collect`."""

import asyncio
import os
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from app.errors import SettingError
from app.plugins import registry
from app.settings import Settings
from trainer.worlds.demo import ENVIRONMENT

_TIMEOUTS = 3  # an expert that does not answer is asked again for this many times its timeout


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
    from trainer.cli.hosted_expert import find_hosted  # noqa: PLC0415
    from trainer.sft_data import collection  # noqa: PLC0415

    settings, key, patience, open_model = Settings.from_env(), _key(api_key_env), _TIMEOUTS * timeout, None
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
    from trainer.rollouts.expert import GROUP  # noqa: PLC0415

    name = expert.partition("?")[0]
    return "?" not in expert and ":" not in name and name not in registry.names(GROUP)


def _key(variable: str | None) -> str:
    """Raises SettingError for a variable that is named and not set: without a key the endpoint would refuse."""
    if variable is None:
        return ""
    if not os.environ.get(variable):
        raise SettingError(f"the environment variable {variable} is not set: put the expert's API key there")
    return os.environ[variable]
