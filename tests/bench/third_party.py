"""Tasks on the API of a server that nobody here wrote, by a server that runs:

    SAGE_MODEL=smollm2-135m make serve
    KEY=... python -m tests.bench.third_party changedetection    # or kinto

It is installed from its pinned requirements. Its credentials are added by the gateway. Each task finds the state
that it was written for, in a project of its own, and is judged by what the server has afterwards, read from its
API, and by its answer. The API's trial comes first. With --first 20 only the simple tasks are asked, with --hosted
URL an endpoint of chat completions is the model instead. With --practise HOURS the model first practises on it,
in a project in which all tasks are asked then; their skills wait for a person, so that none is offered to another.
If that broke off, --practised PROJECT asks them, on the same --port, once the project's run has ended.
"""

import json
import secrets
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import httpx

from app.base.errors import AppError
from app.base.processes import check_port
from app.client.options import server_options
from app.client.server import SageClient
from tests.bench.other_server import OtherServer, OtherTask, S
from tests.bench.record_tasks import KINTO
from tests.bench.watch_tasks import CHANGEDETECTION
from trainer.worlds.simulate_live.simulation import ended_task

SERVERS: dict[str, OtherServer[Any]] = {each.package: each for each in (CHANGEDETECTION, KINTO)}
_OPEN = ("waiting", "running")  # trials
_UNDER_WAY = ("accepted", "running")  # tasks
_WRITES = 50  # of a task, before it waits for a person: some change all records
_PAUSE_SECONDS = 1
_POLL_SECONDS = 0.2


@click.command()
@server_options
@click.argument("name", type=click.Choice(list(SERVERS)))
@click.option("--port", default=8195, show_default=True, help="where it listens meanwhile")
@click.option("--first", metavar="N", type=click.IntRange(min=1), help="ask only the first N tasks")
@click.option("--hosted", metavar="URL", help="an OpenAI-compatible endpoint that hosts the model")
@click.option("--model", default="smollm2", show_default=True, help="name of the hosted model there")
@click.option("--practise", "hours", metavar="HOURS", type=float, help="let the model practise on the API first")
@click.option("--practised", metavar="PROJECT", help="ask the tasks in a project whose model has practised")
@click.option("--json", "out", type=click.Path(path_type=Path, dir_okay=False), help="file for the figures")
def main(  # noqa: PLR0913 - options of one command
    url: str,
    key: str,
    name: str,
    port: int,
    first: int | None,
    hosted: str | None,
    model: str,
    hours: float | None,
    practised: str | None,
    out: Path | None,
) -> None:
    """Count the tasks that the served model solves."""
    other = SERVERS[name]
    weights = None if hosted is None else {"name": "hosted", "url": hosted, "model": model}
    try:
        check_port("127.0.0.1", port, "another --port")
        with SageClient(url, key) as server, TemporaryDirectory() as place, other.run(Path(place), port) as client:
            other.set_up(client, other.tasks[0])
            trial = _trial(server, other, _project(server, other, client, weights))
            click.echo(f"trial: {trial}")
            practice = None
            if hours is not None:
                practice = _practise(server, other, client, hours)
            elif practised is not None:
                practice = _after_practice(server, other, client, practised)
            start = time.monotonic()
            results = [
                solve(
                    server,
                    other,
                    client,
                    practice["project"] if practice else _project(server, other, client, weights),
                    each,
                )
                for each in other.tasks[:first]
            ]
    except AppError as error:
        raise click.ClickException(str(error)) from error
    stops = Counter(each["stop"] for each in results)
    click.echo(f"solved {_solved(results)}; of the first, {_solved([each for each in results if each['first']])}")
    click.echo(f"{(time.monotonic() - start) / 60:.0f} minutes; ended by {dict(stops.most_common())}")
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps({"trial": trial, "practice": practice, "tasks": results}, indent=1) + "\n")


def _solved(results: list[dict[str, Any]]) -> str:
    return f"{sum(each['solved'] for each in results)} of {len(results)}"


def _project(
    server: SageClient, other: OtherServer[Any], client: httpx.Client, weights: dict[str, str] | None
) -> str:
    """A project of its own, so that no task finds another one's skills."""
    project = f"{other.name}-{secrets.token_hex(3)}"
    server.request("POST", "/v1/projects", {"name": project})
    limits = {"approvals": {"max_writes": _WRITES}}
    server.request("PATCH", f"/v1/projects/{project}", {"settings": limits})
    if weights is not None:
        server.request("POST", "/v1/hosted-models", {"project": project, **weights})
        release = server.request("POST", "/v1/releases", {"project": project, "hosted": weights["name"]})
        server.request("POST", f"/v1/releases/{release['id']}/activate")
    body = {"project": project, "name": other.name, "trial": False, **other.api(client)}
    operations = server.request("POST", "/v1/apis", body)["operations"]
    [proof] = [each["name"] for each in operations if (each["method"], each["path"]) == other.proof]
    tried = server.request("POST", f"/v1/apis/{other.name}/test", {"operation": proof}, project=project)
    if not tried["ok"]:
        raise click.ClickException(f"tasks cannot be solved: {tried['error'] or tried['answer']}")
    return project


def _practise(server: SageClient, other: OtherServer[Any], client: httpx.Client, hours: float) -> dict[str, Any]:
    """A project whose model has practised, and what came of it."""
    project = _project(server, other, client, None)
    server.request("PATCH", f"/v1/projects/{project}", {"settings": {"skills": "review"}})
    other.seed(client, True)  # what samples are read of
    server.request("PATCH", f"/v1/apis/{other.name}", {"practice": "read"}, project=project)
    settings = {
        "kind": "practice",
        "environment": f"practice?api={other.name}",
        "hours": hours,
        "canary_percent": 0,
    }
    run = server.request("POST", "/v1/training-runs", {"project": project, "settings": settings})
    click.echo(f"practice in {project}, run {run['id']}: {run['estimate']}")
    while run["state"] in ("queued", "running"):
        time.sleep(_PAUSE_SECONDS)
        run = server.request("GET", f"/v1/training-runs/{run['id']}")
    result = run["result"] or {"failure": run["failure"]}
    click.echo(f"practice {run['state']}: {result.get('decision')}: {result.get('reason')}")
    return {"project": project, "run": run["id"], "state": run["state"], "result": result}


def _after_practice(
    server: SageClient, other: OtherServer[Any], client: httpx.Client, project: str
) -> dict[str, Any]:
    """A project whose model has practised: the server of its API is another one now."""
    for scheme, credential in other.api(client)["credentials"].items():
        path = f"/v1/apis/{other.name}/credentials/{scheme}"
        server.request("PUT", path, credential, project=project)
    return {"project": project}


def _trial(server: SageClient, other: OtherServer[Any], project: str) -> str:
    """Its result in words."""
    path = f"/v1/apis/{other.name}/trial"
    trial = server.request("POST", path, project=project)
    while trial["state"] in _OPEN:
        time.sleep(_PAUSE_SECONDS)
        trial = server.request("GET", path, project=project)
    score = f"{trial['right']} of {trial['asked']} right"
    return score if trial["state"] == "done" else f"{trial['state'].replace('_', ' ')}: {trial['reason']}"


def _ended(server: SageClient, task: str) -> dict[str, Any]:
    """The task once it has ended; one that waits for a person is cancelled: nobody is there to approve."""
    path = f"/v1/tasks/{task}"
    while (state := server.request("GET", path)["state"]) in _UNDER_WAY:
        time.sleep(_POLL_SECONDS)
    if state == "waiting":
        server.request("POST", f"{path}/cancel")
    return ended_task(server, task)


def solve(
    server: SageClient, other: OtherServer[S], client: httpx.Client, project: str, asked: OtherTask[S]
) -> dict[str, Any]:
    """What came of the task."""
    before = other.set_up(client, asked)
    body = {"project": project, "instruction": asked.instruction}
    task = _ended(server, server.request("POST", "/v1/tasks", body)["id"])
    solved = asked.check(before, other.read_state(client), str(task["answer"]))
    ended = f"{task['turns']} turns  {task['stop_reason']}"
    click.echo(f"{'solved' if solved else '      '}  {ended}  {asked.kind}: {asked.instruction}")
    return {
        "kind": asked.kind,
        "first": asked in other.first,
        "instruction": asked.instruction,
        "solved": solved,
        "answer": task["answer"],
        "turns": task["turns"],
        "tokens": task["generated_tokens"],
        "stop": task["stop_reason"],
    }


if __name__ == "__main__":
    main()
