"""The `sage` command. The trainer adds its commands through the entry-point group `sage.commands`.

Each command imports what it needs when it is called, since importing everything would delay `--help` by seconds.
Those of `app.client` use a running server over REST, the others this machine.
"""

import asyncio
import sys
import warnings
from importlib.metadata import entry_points
from pathlib import Path

import click

from app.apis.approvals.commands import approvals
from app.apis.commands import apis
from app.base.errors import AppError, SettingError
from app.base.guarded_output import guard_output
from app.base.processes import collect_seldom
from app.base.settings import Settings
from app.client.options import ListingGroup
from app.client.words import readable_error
from app.engine.hosted.commands import add_model, change_model, demonstrate, list_hosted, probe_model, remove_model
from app.projects.commands import create_key, list_keys, projects, revoke_key
from app.skills.commands import skills
from app.tasks.commands import run, score, tasks

_INTERRUPTED = 130  # exit code
_OVER_REST = {"models": (add_model, change_model, demonstrate, list_hosted, probe_model, remove_model)}
"""Commands of a group that an entry point has."""


class _Commands(click.Group):
    """Loads commands from entry points, and shows an AppError as one line, with its exit code. No error of any
    command is shown otherwise than through `readable_error`.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *entry_points(group="sage.commands").names])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for entry_point in entry_points(group="sage.commands", name=cmd_name):
            command: click.Command = entry_point.load()
            if isinstance(command, click.Group):
                for each in _OVER_REST.get(cmd_name, ()):
                    command.add_command(each)
            return command
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except AppError as error:
            click.ClickException(readable_error(str(error))).show()
            ctx.exit(error.exit_code)
        except click.ClickException as error:
            vars(error)["message"] = readable_error(error.message)
            raise
        except KeyboardInterrupt:
            click.echo("\ninterrupted", err=True)
            ctx.exit(_INTERRUPTED)


@click.group(cls=_Commands)
@click.version_option(package_name="sage-server")
def main() -> None:
    """An agent server that learns from the tasks it is given."""
    collect_seldom()


for _command in (run, tasks, score, apis, skills, projects, approvals):
    main.add_command(_command)


@main.command("up")
def up_command() -> None:
    """Run everything on this machine until Ctrl-C."""
    from app.machine.up import up  # noqa: PLC0415

    guard_output()
    up(Settings.from_env())


@main.command()
def serve() -> None:
    """Run only the API, with DATABASE_URL and ENGINE_URLS. Runners execute its tasks."""
    from app.base.processes import check_port  # noqa: PLC0415
    from app.processes.api import app  # noqa: PLC0415
    from app.web.server import serve as serve_app  # noqa: PLC0415

    guard_output()
    settings = Settings.from_env()
    check_port(settings.host, settings.port, "SAGE_PORT")
    serve_app(app, settings)


@main.command("runner")
def runner_command() -> None:
    """Run one runner, which executes tasks, with DATABASE_URL and ENGINE_URLS."""
    from app.processes.runner import main as run_tasks  # noqa: PLC0415

    guard_output()
    run_tasks()


@main.command()
def worker() -> None:
    """Run the training worker."""
    from celery.bin.celery import celery as celery_command  # noqa: PLC0415
    from celery.platforms import SecurityWarning  # noqa: PLC0415

    if not Settings.from_env().database_url:  # an invalid setting fails here, in one line
        raise SettingError("DATABASE_URL is not set: set it, or run `sage up`, which also starts a worker")
    guard_output()
    warnings.simplefilter("ignore", SecurityWarning)  # in a container everyone is root
    arguments = ["--quiet", "-A", "trainer.jobs:celery", "worker", "--pool", "solo", "--queues", "training"]
    celery_command.main([*arguments, "--loglevel", "warning", "--without-mingle", "--without-gossip"])


@main.command("console")
def console_command() -> None:
    """Print a link that signs you in to the console, once, as this machine's first admin key."""
    from app.machine.local_database import use_existing  # noqa: PLC0415
    from app.machine.up import console_link  # noqa: PLC0415

    settings = Settings.from_env()
    with use_existing(settings) as url:
        click.echo(asyncio.run(console_link(url, settings)))


@main.command("doctor")
def doctor_command() -> None:
    """Check this deployment and say what to mend. The exit code is 1 if tasks cannot be served."""
    from app.machine.doctor import examine_deployment  # noqa: PLC0415

    if not examine_deployment(Settings.from_env()):
        sys.exit(1)


@main.command("manifests")
@click.option("--for", "kind", required=True, type=click.Choice(["llm-d", "aibrix", "production-stack"]))
@click.option("--project", help="only its releases")
@click.option("--namespace", default="", help="of the objects; otherwise that of `kubectl apply`")
@click.option("--pool", default="vllm", show_default=True, help="llm-d: the InferencePool of the model servers")
@click.option("--base", default="base", show_default=True, help="the label that names the model of their pods")
@click.option("--adapters", help="the adapter directory, as model servers see it [default: as here]")
def manifests_command(kind: str, project: str | None, adapters: str | None, **names: str) -> None:
    """Print Kubernetes objects that tell a router which adapters serve."""
    from app.releases.cluster_manifests import served_manifests  # noqa: PLC0415

    settings = Settings.from_env()
    text = asyncio.run(served_manifests(settings, kind=kind, project=project, adapters=adapters, **names))
    click.echo(text or "# no release serves an adapter", nl=not text)


@main.command("migrate")
def migrate_command() -> None:
    """Migrate the database to the schema of this version."""
    from app.base.encryption import KEY_FILE  # noqa: PLC0415
    from app.db.encrypted_rows import prepare_secrets  # noqa: PLC0415
    from app.machine.local_database import use_database  # noqa: PLC0415

    settings = Settings.from_env()
    with use_database(settings) as url:
        if prepare_secrets(url, settings):
            key = settings.data_dir / KEY_FILE
            click.echo(f"created {key}: keep a copy, and set SAGE_SECRET_KEY to its content on other hosts")
        click.echo("the database is up to date")


@main.command("backup")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def backup_command(file: Path) -> None:
    """Write database, adapters, datasets and keys to FILE, while the server runs, and verify it."""
    from app.machine.backup import back_up  # noqa: PLC0415
    from app.machine.local_database import refuse_absent, use_unmigrated  # noqa: PLC0415

    settings = Settings.from_env()
    refuse_absent(settings)
    with use_unmigrated(settings) as url:
        manifest = back_up(url, settings, file)
    click.echo(f"{file}: {sum(manifest.rows.values())} rows, {len(manifest.members)} files, verified")
    for name in manifest.missing:
        click.echo(f"missing here, and so in the backup: {name}", err=True)
    if manifest.key == "file":
        click.echo("it contains secret.key: keep it as you keep that")
    elif manifest.key == "environment":
        click.echo("the key comes from SAGE_SECRET_KEY and is not in it: keep a copy of that elsewhere")


@main.command("restore")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--replace", is_flag=True, help="replace what the database and the data directory have")
def restore_command(file: Path, *, replace: bool) -> None:
    """Restore FILE to an empty database and data directory. Everything else must be stopped."""
    from app.machine.backup import read_backup, restore  # noqa: PLC0415
    from app.machine.local_database import use_stopped  # noqa: PLC0415

    settings = Settings.from_env()
    manifest = read_backup(file, settings, replace=replace)
    with use_stopped(settings) as url:
        restore(url, file, manifest, settings, replace=replace)
    made = f"{manifest.created_at:%Y-%m-%d %H:%M} UTC by version {manifest.version}"
    click.echo(f"restored {sum(manifest.rows.values())} rows and {len(manifest.members)} files, of {made}")
    if manifest.key == "environment" and not settings.secret_key:
        click.echo("set SAGE_SECRET_KEY to what it was: it is not in the backup", err=True)


@main.group("keys", cls=ListingGroup)
def keys_group() -> None:
    """Manage API keys, and the key that encrypts secrets."""


for _command in (create_key, list_keys, revoke_key):
    keys_group.add_command(_command)


@keys_group.command("create-admin")
@click.argument("name", default="admin")
def create_admin(name: str) -> None:
    """Create an admin key in the database itself, and print it: the first one, or after all were lost.

    The database is the one at DATABASE_URL, or the embedded one of SAGE_DATA_DIR.
    """
    from app.db.database import open_database  # noqa: PLC0415
    from app.machine.local_database import use_existing  # noqa: PLC0415
    from app.projects import keys  # noqa: PLC0415

    async def make(url: str) -> str:
        async with open_database(url) as database, database.sessions.begin() as session:
            return await keys.create_admin(session, name)

    with use_existing(Settings.from_env()) as url:
        click.echo(asyncio.run(make(url)))


@keys_group.command()
def rotate() -> None:
    """Encrypt all stored secrets with a new key."""
    from app.db.encrypted_rows import rotate_keys  # noqa: PLC0415
    from app.machine.local_database import use_existing  # noqa: PLC0415

    settings = Settings.from_env()
    with use_existing(settings) as url:
        report = rotate_keys(url, settings)
    click.echo(f"the key {report.key} encrypts the stored secrets; {report.encrypted} were encrypted anew")
    if report.unreadable:
        raise SettingError(
            f"{report.unreadable} secrets need a key that is not here: add it to SAGE_SECRET_KEY after the first "
            "one and rotate again, or store them again"
        )


if __name__ == "__main__":
    sys.exit(main())
