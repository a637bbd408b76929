"""`sage export`."""

from datetime import UTC, datetime
from pathlib import Path

import click
from tqdm import tqdm

from app.client.options import project_option, server_options


@click.command()
@server_options
@project_option
@click.option("--min-score", type=click.FloatRange(0, 1), default=0.0, show_default=True)
@click.option("--since", type=click.DateTime(), help="tasks submitted after this time, UTC")
@click.option("--until", type=click.DateTime(), help="tasks submitted before this time, UTC")
@click.option(
    "--limit", type=click.IntRange(1), default=10_000, show_default=True, help="number of tasks, newest first"
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="a JSONL file")
def export(  # noqa: PLR0913 - the command's options
    key: str,
    url: str,
    project: str | None,
    min_score: float,
    since: datetime | None,
    until: datetime | None,
    limit: int,
    out: Path,
) -> None:
    """Write the scored tasks of a running server as chats that TRL and LLaMA-Factory read."""
    # Imported here because all that a rollout needs takes a second, which `sage --help` need not wait for.
    from app.client.sage_client import SageClient  # noqa: PLC0415
    from trainer.sft_data.chat_records import write_records  # noqa: PLC0415
    from trainer.sft_data.export_chats import ExportFilter, export_chats  # noqa: PLC0415

    wanted = ExportFilter(
        project=project,
        min_score=min_score,
        since=since and since.replace(tzinfo=UTC),
        until=until and until.replace(tzinfo=UTC),
        limit=limit,
    )
    with SageClient(url, key) as server, tqdm(desc="export", unit="task", disable=None) as bar:
        found = export_chats(server, wanted, bar.update)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_records(found.records, out)
    except OSError as error:
        raise click.ClickException(f"{out} cannot be written: {error.strerror}") from error
    click.echo(f"{out}: {len(found.records)} tasks")
    for reason, count in found.left_out.items():
        click.echo(f"left out {count}: {reason}")
