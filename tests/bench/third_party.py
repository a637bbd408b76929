"""Tasks on the API of a server that nobody here wrote, changedetection.io, by a server that runs:

    python3 -m venv VENV && VENV/bin/pip install changedetection.io
    SAGE_MODEL=smollm2-135m make serve
    KEY=... python -m tests.bench.third_party --program VENV/bin/changedetection.io

Its API key is a header that the gateway fills in; pages are not fetched. Each task finds the same watches, and is
judged by what the server has afterwards, read from its API.
"""

import json
import secrets
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import httpx

from app.client.options import server_options
from app.client.sage_client import SageClient
from app.errors import AppError
from app.ports import check_port
from tests.bench.watch_tasks import TASKS, WatchTask, read_state, seed
from trainer.demo.simulate_live.ended import ended_task

_NAME = "changes"
_KEY = "x-api-key"
_PAUSE_SECONDS = 0.2
_SETTINGS = "changedetection.json"


@click.command()
@server_options
@click.option("--program", required=True, type=click.Path(path_type=Path, exists=True), help="changedetection.io")
@click.option("--port", default=8195, show_default=True, help="where it listens meanwhile")
@click.option("--json", "out", type=click.Path(path_type=Path, dir_okay=False), help="file for the figures")
def main(url: str, key: str, program: Path, port: int, out: Path | None) -> None:
    """Count the tasks that the served model solves."""
    try:
        with SageClient(url, key) as server, watching(program, port) as watches:
            results = [solve(server, watches, project_of(server, watches), task) for task in TASKS]
    except AppError as error:
        raise click.ClickException(str(error)) from error
    solved = sum(each["solved"] for each in results)
    click.echo(f"solved {solved} of {len(results)}")
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(results, indent=1) + "\n")


@contextmanager
def watching(program: Path, port: int) -> Iterator[httpx.Client]:
    """A client of the server, which fetches no pages."""
    check_port("127.0.0.1", port, "another --port")
    url = f"http://127.0.0.1:{port}"
    with TemporaryDirectory() as data, httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
        with _running(program, port, data, client):
            pass  # the first start writes the settings
        file = Path(data) / _SETTINGS
        settings = json.loads(file.read_text())
        settings["settings"]["application"]["all_paused"] = True
        file.write_text(json.dumps(settings))
        client.headers[_KEY] = settings["settings"]["application"]["api_access_token"]
        with _running(program, port, data, client):
            yield client


@contextmanager
def _running(program: Path, port: int, data: str, client: httpx.Client) -> Iterator[None]:
    argv = [str(program), "-d", data, "-h", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while not (_answers(client) and (Path(data) / _SETTINGS).exists()):
                if process.poll() is not None:
                    raise click.ClickException(f"{program} ended with code {process.returncode}")
                time.sleep(_PAUSE_SECONDS)
            yield
        finally:
            process.terminate()


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/api/v1/systeminfo").status_code < httpx.codes.INTERNAL_SERVER_ERROR
    except httpx.HTTPError:
        return False


def project_of(server: SageClient, watches: httpx.Client) -> str:
    """A project of its own, so that no task finds another one's skills."""
    project = f"watches-{secrets.token_hex(3)}"
    server.request("POST", "/v1/projects", {"name": project})
    api = {
        "project": project,
        "name": _NAME,
        "server": f"{str(watches.base_url).rstrip('/')}/api/v1",
        "document": watches.get("/api/v1/full-spec").raise_for_status().text,
        "credentials": {"ApiKeyAuth": {"value": watches.headers[_KEY]}},
    }
    server.request("POST", "/v1/apis", api)
    tried = server.request("POST", f"/v1/apis/{_NAME}/test", {"operation": "get_system_info"}, project=project)
    if not tried["ok"]:
        raise click.ClickException(f"tasks cannot be solved: {tried['error'] or tried['answer']}")
    return project


def solve(server: SageClient, watches: httpx.Client, project: str, asked: WatchTask) -> dict[str, Any]:
    """What came of the task."""
    seed(watches)
    before = read_state(watches)
    body = {"project": project, "instruction": asked.instruction}
    task = ended_task(server, server.request("POST", "/v1/tasks", body)["id"])
    solved = bool(asked.check(before, read_state(watches), str(task["answer"])))
    click.echo(f"{'solved' if solved else '      '}  {task['turns']} turns  {asked.instruction}")
    return {
        "instruction": asked.instruction,
        "solved": solved,
        "answer": task["answer"],
        "turns": task["turns"],
        "tokens": task["generated_tokens"],
        "stop": task["stop_reason"],
    }


if __name__ == "__main__":
    main()
