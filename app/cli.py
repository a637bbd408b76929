"""The `sage` command. Commands of the trainer join through the entry-point group `sage.commands`."""

import asyncio
import sys
from importlib.metadata import entry_points

import click
import uvicorn
from celery.bin.celery import celery as celery_command

from app.db import keys, projects
from app.db.embedded import start
from app.db.migrate import migrate
from app.db.session import open_database
from app.errors import AppError
from app.settings import Settings
from app.up import up

_STREAM_GRACE = 3  # seconds that open event streams get at shutdown


class _Commands(click.Group):
    """Finds commands by entry point, and shows a foreseen failure as one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *entry_points(group="sage.commands").names])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for found in entry_points(group="sage.commands", name=cmd_name):
            command: click.Command = found.load()
            return command
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except AppError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Commands)
@click.version_option(package_name="sage-server")
def main() -> None:
    """An agent server whose agent gets better at the work it is given."""


@main.command("up")
def up_command() -> None:
    """Run everything on this machine until Ctrl-C."""
    asyncio.run(up(Settings.from_env()))


@main.command()
def serve() -> None:
    """Run the API alone, on DATABASE_URL and ENGINE_URLS."""
    settings = Settings.from_env()
    uvicorn.run(
        "app.asgi:app",
        factory=True,
        host=settings.host,
        port=settings.port,
        log_level=settings.log_level,
        access_log=False,
        timeout_graceful_shutdown=_STREAM_GRACE,
    )


@main.command()
def worker() -> None:
    """Run the training worker."""
    arguments = ["-A", "trainer.jobs:celery", "worker", "--pool", "solo", "--queues", "training"]
    celery_command.main([*arguments, "--loglevel", "warning", "--without-mingle", "--without-gossip"])


@main.command("migrate")
def migrate_command() -> None:
    """Bring the database to the schema of this version."""
    migrate(_database_url())
    click.echo("the database is up to date")


@main.group("keys")
def keys_group() -> None:
    """API keys."""


@keys_group.command()
@click.argument("name")
@click.option(
    "--scope", "scopes", multiple=True, type=click.Choice(["tasks", "skills", "admin"]), default=["admin"]
)
@click.option("--project", help="the only project the key is good for")
def create(name: str, scopes: tuple[str, ...], project: str | None) -> None:
    """Make a key and show it, once."""

    async def make() -> str:
        async with open_database(_database_url()) as database, database.sessions.begin() as session:
            owner = (await projects.by_name(session, project)).id if project else None
            _, secret = await keys.create(session, name, list(scopes), owner)
            return secret

    click.echo(asyncio.run(make()))


def _database_url() -> str:
    settings = Settings.from_env()
    return settings.database_url or start(settings.data_dir.absolute() / "postgres")


if __name__ == "__main__":
    sys.exit(main())
