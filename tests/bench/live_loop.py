"""The loop on live traffic, from end to end over REST, against a server that runs:

    SAGE_MODEL=seed SAGE_TEMPERATURE=1 SAGE_MAX_TURNS=3 SAGE_MAX_TASK_TOKENS=130 make serve
    KEY=... python -m tests.bench.live_loop

A lesson gives the policy something to choose from (`lesson`). Users send tasks with checks; the schedule starts a
run on what was served; the gate decides; the release is swapped; the next users are served by it. Then the former
release gets the same tasks as they did: the library that has grown by then is there for both, so the difference is
the training's. The server samples at a temperature above 0, as it must where it is to find something better than
what it does already.
"""

import json
import os
import secrets
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

import click
import httpx
import msgspec
from tqdm import tqdm

from app.base.errors import AppError
from app.base.processes import check_port
from app.base.run_settings import read_settings
from app.client.options import server_options
from app.client.server import SageClient
from app.runs.commands import watch_run
from tests.bench.traffic import draw_traffic, kinds_of, submission
from trainer.evaluation.metrics import TaskResult, measure, metrics_table
from trainer.worlds.office.apps import APP_NAMES
from trainer.worlds.office.scenarios import Place
from trainer.worlds.simulate_live.simulation import ended_task, teach

_SHOWN = {
    "tgc": "tasks solved, %",
    "turns": "turns per task",
    "tokens": "generated tokens per task",
    "skill_usage": "tasks that used a skill, of those offered any, %",
    "success_skill_usage": "successes, of tasks that used a skill, %",
}
_LEARNING = {  # once over what was served, in several updates of each part, which the clip and the penalty bound
    "kind": "logged",
    "steps": "4",
    "pairs": "5",
    "epochs": "4",
    "lr": "0.001",
    "kl": "0.05",
    "micro_batch_tokens": "4096",
    "gate_scenarios": "150",
    "canary_percent": "0",  # what is measured afterwards is the new release alone
}
_PAUSE_SECONDS = 2.0
_PATIENCE_SECONDS = 120.0  # for the schedule to fire


@click.command()
@server_options
@click.option("--port", default=8190, show_default=True, help="where the users' office suite is served meanwhile")
@click.option("--busy", default=0.35, show_default=True, help="share of log-ins that the suite turns away")
@click.option("--site", default=0, show_default=True, help="whose APIs the project gets")
@click.option("--kinds", default=20, show_default=True, help="of tasks, from the held-out templates")
@click.option("--tasks", default=300, show_default=True, help="before training")
@click.option(
    "--scored", default=1.0, show_default=True, help="share of those that the server learns the score of"
)
@click.option("--after", default=100, show_default=True, help="afterwards")
@click.option(
    "--labels/--no-labels", default=True, show_default=True, help="name the kind as the task's scenario?"
)
@click.option("--seed", default=3, show_default=True, help="of the tasks before; those afterwards take the next")
@click.option("--taught/--untaught", default=True, show_default=True, help="give the policy a lesson before?")
@click.option("--set", "given", metavar="NAME=VALUE", multiple=True, help="a setting of the run")
@click.option("--json", "out", type=click.Path(path_type=Path, dir_okay=False), help="file for figures and run")
def main(url: str, key: str, port: int, out: Path | None, **options: Any) -> None:
    """Show that a served agent learns from what it was asked to do."""
    try:
        with SageClient(url, key) as server, office_suite(port, options["busy"]) as services:
            figures = Town(server, services, **options).live()
    except AppError as error:
        raise click.ClickException(str(error)) from error
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(figures, indent=1) + "\n")


@contextmanager
def office_suite(port: int, busy: float) -> Iterator[str]:
    """Its URL, until the users are done with it. As `sage demo-apis`, only less reliable."""
    check_port("127.0.0.1", port, "another --port")
    url = f"http://127.0.0.1:{port}"
    with TemporaryDirectory() as data:
        argv = [sys.executable, "-m", "app.cli", "demo-apis", "--port", str(port), "--busy", str(busy)]
        with subprocess.Popen(argv, env={**os.environ, "SAGE_DATA_DIR": data}) as process:
            try:
                while process.poll() is None and not _answers(url):
                    time.sleep(_PAUSE_SECONDS / 10)
                yield url
            finally:
                process.terminate()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/demo", trust_env=False).is_success
    except httpx.HTTPError:
        return False


class Town:
    """A project, and the users who send it tasks."""

    def __init__(self, server: SageClient, services: str, **options: Any) -> None:
        self._server = server
        self._services = services
        self._site: int = options["site"]
        self._busy: float = options["busy"]
        self._labels: bool = options["labels"]
        self._taught: bool = options["taught"]
        self._seed: int = options["seed"]
        self._counts: tuple[int, int] = (options["tasks"], options["after"])
        self._scored: float = options["scored"]
        self._kinds = kinds_of("test", options["kinds"])
        self._given: tuple[str, ...] = options["given"]
        self._project = f"live-{secrets.token_hex(3)}"

    def live(self) -> dict[str, Any]:
        """Everything in its order; the figures of each stage."""
        self._settle()
        if self._taught:
            teach(self._server, self._project, self._busy)
        self._schedule_runs()
        old = self._active()
        before = self._serve(self._draw(self._counts[0], seed=self._seed), "before", self._scored)
        run = self._trained()
        print(f"run {run['id']}: {run['result']}")
        new = self._active()
        afterwards = self._draw(self._counts[1], seed=self._seed + 1)
        columns = {"before": before, f"of them the last {len(afterwards)}": before[-len(afterwards) :]}
        columns[f"after, release {new['number']}"] = self._serve(afterwards, "after")
        if new["id"] != old["id"]:
            columns[f"the same tasks, release {old['number']}"] = self._control(old, new, afterwards)
        return self._tell(columns, run)

    def _settle(self) -> None:
        self._server.request("POST", "/v1/projects", {"name": self._project})
        for app in APP_NAMES:
            document = f"{self._services}/sites/{self._site}/{app}/openapi.json"
            self._server.request("POST", "/v1/apis", {"project": self._project, "name": app, "url": document})
        print(f"project {self._project}: {len(self._kinds)} kinds of tasks at site {self._site}")

    def _schedule_runs(self) -> None:
        named = dict(each.split("=", 1) for each in self._given)
        whole = {**_LEARNING, "environment": f"office?site={self._site}&busy={self._busy}", **named}
        settings = msgspec.to_builtins(read_settings(whole))
        self._schedule = {
            "every_scored_tasks": max(
                1, int(self._counts[0] * self._scored * 5 / 6)
            ),  # a few may end without a score
            "settings": {name: settings[name] for name in whole},
        }
        self._server.request("PUT", "/v1/schedule", self._schedule, project=self._project)

    def _draw(self, count: int, seed: int) -> list[Place]:
        return draw_traffic(self._kinds, self._site, count, seed)

    def _serve(self, places: list[Place], name: str, scored: float = 1) -> list[TaskResult]:
        """All at once into the queue, as the server takes them. The results of those with a score."""
        rng = Random(f"scores {self._seed}")
        bodies = [
            submission(place, self._project, labels=self._labels, scored=rng.random() < scored) for place in places
        ]
        accepted = self._server.request("POST", "/v1/tasks", {"tasks": bodies})["tasks"]
        ended = [ended_task(self._server, task["id"]) for task in tqdm(accepted, desc=name, unit="task")]
        served = Counter(task["release"]["number"] if task["release"] else None for task in ended)
        print(f"{name}: tasks by release {dict(served)}, without a score {sum(t['score'] is None for t in ended)}")
        pairs = zip(places, bodies, ended, strict=True)
        return [_result(place, task) for place, body, task in pairs if body["check"]]

    def _trained(self) -> dict[str, Any]:
        """The run that the schedule asked for, once it is done; it is to be the only one."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline:
            found = self._server.request("GET", "/v1/training-runs", project=self._project)["runs"]
            if runs := [run for run in found if run["kind"] == "logged"]:
                self._server.request(
                    "PUT", "/v1/schedule", self._schedule | {"enabled": False}, project=self._project
                )
                return watch_run(self._server, UUID(runs[0]["id"]))
            time.sleep(_PAUSE_SECONDS)
        raise click.ClickException("the schedule started no run: does the worker run?")

    def _active(self) -> dict[str, Any]:
        """The release that serves, after a word on all; what passed the gate gets the time to be swapped in."""
        releases = self._releases()
        while any(release["state"] == "passed" for release in releases):
            time.sleep(_PAUSE_SECONDS / 10)
            releases = self._releases()
        for release in releases:
            print(
                f"release {release['number']}: {release['state']}. {(release['evidence'] or {}).get('reason', '')}"
            )
        active: dict[str, Any] = next(each for each in releases if each["state"] == "active")
        return active

    def _releases(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._server.request("GET", "/v1/releases", project=self._project)
        return found

    def _control(self, old: dict[str, Any], new: dict[str, Any], places: list[Place]) -> list[TaskResult]:
        self._activate(old)
        try:
            return self._serve(places, "control")
        finally:
            self._activate(new)

    def _activate(self, release: dict[str, Any]) -> None:
        """With the library as it is."""
        self._server.request("POST", f"/v1/releases/{release['id']}/activate", skills="keep")

    def _tell(self, columns: dict[str, list[TaskResult]], run: dict[str, Any]) -> dict[str, Any]:
        metrics = {name: measure(results) for name, results in columns.items()}
        print(metrics_table(metrics, _SHOWN, f"{len(self._kinds)} kinds of tasks"))
        return {"run": run, "metrics": {name: msgspec.to_builtins(each) for name, each in metrics.items()}}


def _result(place: Place, task: dict[str, Any]) -> TaskResult:
    """Tasks of one kind stand or fall together, so a kind is what intervals are drawn over."""
    used = tuple(skill["name"] for skill in task["skills"]["used"])
    return TaskResult(
        scenario=place.kind.name,
        template=place.kind.name,
        success=task["score"] == 1,
        turns=task["turns"],
        tokens=task["generated_tokens"],
        stop=task["stop_reason"] or task["state"],
        offered=len(task["skills"]["offered"]),
        used=len(used),
        wrote=len(task["skills"]["written"]),
        names=used,
    )


if __name__ == "__main__":
    main()
