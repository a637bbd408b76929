"""`sage releases`, with releases by their number and what activating one changes in words."""

import asyncio
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from app.base.settings import Settings
from app.base.text import visible
from app.base.values import shown_model
from app.client.options import project_option, server_command
from app.client.words import Listing, moment, readable_error

if TYPE_CHECKING:
    from app.client.server import SageClient
    from app.client.terminal import ServerSession

_MOST = 20  # names in a line
_SKILLS = {
    "restored": "skills offered again",
    "superseded": "skills replaced by the version that returns",
    "withdrawn": "skills withdrawn",
    "deleted": "skills that cannot return, since they were deleted",
}
_PROMPTS = {"hosted": "that of hosted models", "local": "that of the model of this server"}
_STAYS = ("the same", "stays, though the release served with another one")
_DOCUMENTS = {
    "added": "APIs there again",
    "removed": "APIs no longer called",
    "changed": "APIs called by the document of that time",
    "missing": "APIs that cannot return, since they were removed",
}


def release_id(server: "SageClient", number: int | None, project: str | None) -> str:
    """The id of a release of the project. Raises ServerError, as for all that the server does not know."""
    from app.client.server import ServerError  # noqa: PLC0415  httpx takes a moment, which `--help` need not wait for

    found: list[dict[str, Any]] = server.request("GET", "/v1/releases", project=project)
    for release in found:
        if release["number"] == number:
            return str(release["id"])
    raise ServerError(f"no release {number}: `sage releases` lists them")


def activation_lines(number: int, changes: Mapping[str, Any]) -> Iterator[str]:
    """A line for each part, of the server's statement.

    >>> changes = {"rolls_back": True, "replaces": 3, "model": {"from": "f00d", "to": "base"}}
    >>> changes |= {"prompt": "stays", "former_prompt": None, "watch": "ends", "canary": 4}
    >>> changes |= {"skills": {"withdrawn": [{"name": "greet", "version": 2}]}, "documents": {"changed": ["mail"]}}
    >>> print(*activation_lines(1, changes), sep="\\n")
    rolls back from release 3 to release 1
      weights: f00d -> base
      skills withdrawn: greet v2
      APIs called by the document of that time: mail
      prompt: the same
      the watch of release 3 ends
      release 4 stays a canary, and is compared with release 1
    >>> list(activation_lines(1, {"replaces": None}))
    ['release 1 is active already: nothing changes']
    """
    before = changes["replaces"]
    if before is None:
        yield f"release {number} is active already: nothing changes"
        return
    if changes["rolls_back"]:
        yield f"rolls back from release {before} to release {number}"
    else:
        yield f"release {number} replaces release {before}"
    model = changes["model"]
    yield (
        f"  weights: {shown_model(model['from'])} -> {shown_model(model['to'])}"
        if model
        else "  weights: the same"
    )
    skills = changes["skills"].items()
    moved = {how: [f"{each['name']} v{each['version']}" for each in found] for how, found in skills}
    yield from _named(_SKILLS, moved, "skills")
    yield from _named(_DOCUMENTS, changes["documents"], "APIs")
    yield f"  prompt: {_PROMPTS.get(changes['prompt']) or _STAYS[changes['former_prompt'] is not None]}"
    if changes["watch"]:
        yield f"  the watch of release {before} {'goes on' if changes['watch'] == 'goes_on' else 'ends'}"
    if changes["canary"]:
        yield f"  release {changes['canary']} stays a canary, and is compared with release {number}"


def _named(labels: Mapping[str, str], found: Mapping[str, Sequence[str]], what: str) -> Iterator[str]:
    if not any(found.values()):
        yield f"  {what}: the same"
    for how, label in labels.items():
        if names := found.get(how):
            others = f" and {len(names) - _MOST} others" if len(names) > _MOST else ""
            yield visible(f"  {label}: {', '.join(names[:_MOST])}{others}")


def _release_row(release: Mapping[str, Any]) -> tuple[object, ...]:
    verdict = readable_error((release["evidence"] or {}).get("reason", ""))
    made, since = moment(release["created_at"]), "-"
    if release["state"] == "active":
        since = moment(release["activated_at"])
    state = f"{release['state']}, watched" if release["watched"] else release["state"]
    return release["number"], state, release["model"], made, since, verdict


_RELEASES = Listing(("release", "state", "model", "created", "active since", "reason of the gate"), _release_row)


@click.command()
@server_command
@project_option
@click.argument("number", type=click.IntRange(1), required=False)
@click.option("--activate", is_flag=True, help="serve it; activating an older release rolls back")
@click.option("--keep-skills", is_flag=True, help="with --activate: leave the skills as they are")
@click.option("--yes", is_flag=True, help="with --activate: do not ask, on a terminal, whether to go on")
@click.option("--allow-rejected", is_flag=True, help="serve it even if its weights were rejected")
@click.option(
    "--canary", type=click.FloatRange(0, 100), help="serve this percentage of new tasks with it; 0 ends the canary"
)
@click.option(
    "--shadow", type=click.IntRange(1, 1_000), help="replay this many finished tasks with it, without side effects"
)
@click.option(
    "--add",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="DIR",
    help="create a release of the adapter in DIR; SAGE_DATA_DIR and SAGE_ADAPTER_STORE must be the server's",
)
@click.option("--hosted", metavar="NAME", help="create a release of the project's hosted model NAME")
@click.option("--reason", help="why it is added; shown as the reason of the gate")
def releases(  # noqa: PLR0913 - an argument for each option
    session: "ServerSession",
    project: str | None,
    number: int | None,
    activate: bool,
    keep_skills: bool,
    yes: bool,
    allow_rejected: bool,
    canary: float | None,
    shadow: int | None,
    add: Path | None,
    hosted: str | None,
    reason: str | None,
) -> None:
    """List releases, newest first, or show release NUMBER."""
    _check(add, hosted, number, reason)
    if (keep_skills or yes) and not activate:
        raise click.UsageError("--keep-skills and --yes need --activate")
    if not (number or add or hosted):
        if activate or shadow or canary is not None:
            raise click.UsageError("name the release: `sage releases` lists them")
        session.show_list("/v1/releases", _RELEASES, project=project)
        return
    server = session.server
    policy = {"hosted": hosted} if hosted else _adapter(add) if add else None
    id_ = _propose(server, policy, project, reason) if policy else release_id(server, number, project)
    path = f"/v1/releases/{id_}"
    if activate:
        _activate(server, path, "keep" if keep_skills else "restore", ask=not yes, allow_rejected=allow_rejected)
    if canary:
        server.request("POST", f"{path}/canary", {"percent": canary}, allow_rejected=allow_rejected)
    elif canary is not None:
        server.request("DELETE", f"{path}/canary")
    if shadow:
        server.request("POST", f"{path}/shadow", {"tasks": shadow})
    release = server.request("GET", path)
    session.show(release, lambda release: _all_of(server, path, release))


def _check(add: Path | None, hosted: str | None, number: int | None, reason: str | None) -> None:
    """Raises UsageError unless one release is meant, of one policy."""
    if (add or hosted) and number:
        raise click.UsageError(f"--{'add' if add else 'hosted'} creates a release: do not name another")
    if add and hosted:
        raise click.UsageError("a release has one policy: give --add or --hosted")
    if reason and not (add or hosted):
        raise click.UsageError("--reason needs --add DIR or --hosted NAME")


def _propose(server: "SageClient", policy: dict[str, str], project: str | None, reason: str | None) -> str:
    """The id of the new release."""
    body = policy | {"project": project} | ({"reason": reason} if reason else {})
    return str(server.request("POST", "/v1/releases", body)["id"])


def _adapter(directory: Path) -> dict[str, str]:
    """The adapter of a directory, imported."""
    from app.releases.adapter_store import AdapterStore  # noqa: PLC0415  fsspec takes a moment, which `--help` need not wait for

    settings = Settings.from_env()
    store = AdapterStore(settings.adapters_dir, settings.adapter_store)
    return {"adapter": asyncio.run(store.import_adapter(directory))}


def _activate(server: "SageClient", path: str, skills: str, *, ask: bool, allow_rejected: bool) -> None:
    """Activate it, and say on standard error what that changes: before it asks, or once it is done."""
    number = server.request("GET", path)["number"]
    planned: Any = None
    if ask and sys.stdin.isatty():
        planned = server.request("GET", f"{path}/activate", skills=skills)
        _say(activation_lines(number, planned))
        if planned["replaces"] is not None:
            click.confirm("go on?", abort=True, err=True)
    done = server.request("POST", f"{path}/activate", allow_rejected=allow_rejected, skills=skills)
    if done["changes"] != planned:
        _say(activation_lines(number, done["changes"]))


def _say(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line, err=True)


def _all_of(server: "SageClient", path: str, release: Mapping[str, Any]) -> dict[str, Any]:
    """The release with the figures of its canary or watch, and the results of its shadow tasks."""
    shown = {**release, "evidence": _evidence(release)}
    if release["state"] == "canary":
        shown["canary"] = server.request("GET", f"{path}/canary")
    if release["watched"]:
        shown["watch"] = server.request("GET", f"{path}/watch")
    shadows = server.request("GET", f"{path}/shadow")
    return shown | ({"shadow": shadows} if shadows["tasks"] else {})


def _evidence(release: Mapping[str, Any]) -> dict[str, Any]:
    """With what it says to do in the words of the command line."""
    found = release["evidence"] or {}
    return {name: readable_error(value) if isinstance(value, str) else value for name, value in found.items()}
