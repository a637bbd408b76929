"""One arm of the simulation on a running server: a project, its users and their scores."""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import httpx
import msgspec

from app.client.sage_client import SageClient
from app.records import Json
from trainer.worlds.office.documents import APP_NAMES
from trainer.worlds.office.places import Place
from trainer.worlds.simulate_live.ended import ended_task
from trainer.worlds.simulate_live.simulation_plan import HOSTILE, Arm, SimulationPlan

_PAUSE_SECONDS = 1.0
_PATIENCE_SECONDS = 60.0  # for the schedule to start a run that is due
_TRIAL_DAYS = 14  # simulated ones, of a canary and of a watch
_TRIALS_OPEN = {"canary_days": 365.0, "watch_days": 365.0}  # real ones: they are ended when their time has come
_SECONDS_PER_DAY = 86_400.0
_BATCH = 100  # tasks of one request


class Day(msgspec.Struct, frozen=True, kw_only=True):
    """What one arm did on one day."""

    day: int
    arm: str
    solved: list[bool]  # of each task, in their order
    kinds: list[str]
    scores: int
    tokens: float  # generated per task
    turns: float
    skills_used: float  # share of the tasks
    served_by: dict[str, int]  # tasks by release
    releases: dict[str, str]  # states in the evening
    ended: float  # POSIX time


class Services(msgspec.Struct, frozen=True):
    """The office suite, and its admin routes, which know whether a task was solved."""

    url: str
    token: str

    async def leave_text(self, worlds: list[str], text: str) -> None:
        """Let a record of each world say this."""
        async with self._client() as client:
            for world in worlds:
                answer = await client.put(f"/admin/worlds/{world}/text", json={"text": text})
                answer.raise_for_status()

    async def solved(self, worlds: list[tuple[str, dict[str, Json]]]) -> list[bool]:
        """For each world whether its task was solved, by its final state and the answer. It is then forgotten."""
        async with self._client() as client:

            async def verdict(world: str, end: dict[str, Json]) -> bool:
                answer = await client.post(f"/admin/worlds/{world}/verdict", json=end)
                await client.delete(f"/admin/worlds/{world}")
                return bool(answer.raise_for_status().json()["success"])

            return [await verdict(*each) for each in worlds]

    def _client(self) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {self.token}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, trust_env=False)


class Town:
    """The arm's users. `open` creates the project, `resume` takes it up again."""

    def __init__(
        self, server: SageClient, services: Services, plan: SimulationPlan, arm: str, project: str
    ) -> None:
        self._server, self._services, self._plan = server, services, plan
        self.name, self.project = arm, project
        self._arm: Arm = plan.arms[arm]

    @classmethod
    def open(
        cls,
        server: SageClient,
        services: Services,
        plan: SimulationPlan,
        arm: str,
        teach: Callable[[str], object],
    ) -> "Town":
        """A new project whose policy was taught."""
        town = cls(server, services, plan, arm, f"{arm.replace(' ', '-')}-{secrets.token_hex(3)}")
        server.request("POST", "/v1/projects", {"name": town.project})
        town._set(approvals={"max_writes": 0})  # nobody is there to approve more
        town._put_apis(1)
        teach(town.project)  # before anything is held out: all arms begin with the same policy
        town._set(holdout_percent=town._arm.holdout, **_TRIALS_OPEN)
        return town

    def begin(self, day: int) -> list[dict[str, Any]]:
        """Send the tasks of the day. Returns them as accepted."""
        if self._plan.site(day) != self._plan.site(day - 1):
            self._put_apis(day)
        if self._arm.learns:
            self._schedule(day)
            self._await_run()  # that waited for the end of a trial
        bodies = [self._submission(place) for place in self._plan.places(day)]
        if self._arm.hostile:
            worlds = [body["variables"]["world"] for body in bodies]
            asyncio.run(self._services.leave_text(worlds, HOSTILE))
        accepted: list[dict[str, Any]] = []
        for start in range(0, len(bodies), _BATCH):
            some = bodies[start : start + _BATCH]
            found = self._server.request("POST", "/v1/tasks", {"tasks": some})["tasks"]
            accepted += [
                task | {"world": body["variables"]["world"]} for task, body in zip(found, some, strict=True)
            ]
        return accepted

    def end(self, day: int, accepted: list[dict[str, Any]]) -> Day:
        """Wait for the tasks, score some, and let what they start come to its end."""
        ended = [ended_task(self._server, task["id"]) for task in accepted]
        ends = [
            (task["world"], {"answer": each["answer"], "completed": each["stop_reason"] == "completed"})
            for task, each in zip(accepted, ended, strict=True)
        ]
        solved = asyncio.run(self._services.solved(ends))
        scores = self._give_feedback(day, ended, solved)
        if self._arm.learns:
            self._await_run()
        places = self._plan.places(day)
        served = Counter(str(task["release"]["number"]) for task in ended if task["release"])
        return Day(
            day=day,
            arm=self.name,
            solved=solved,
            kinds=[place.kind.name for place in places],
            scores=scores,
            tokens=sum(task["generated_tokens"] for task in ended) / len(ended),
            turns=sum(task["turns"] for task in ended) / len(ended),
            skills_used=sum(bool(task["skills"]["used"]) for task in ended) / len(ended),
            served_by=dict(served),
            releases={str(each["number"]): each["state"] for each in self._releases()},
            ended=time.time(),
        )

    def end_trials(self, past: Sequence[Day]) -> None:
        """End the trials of releases that have lasted as many of the `past` days as they would last real ones.

        So they last equally long on any machine, and an interruption is no part of them.
        """
        for release in self._releases():
            name, number = _trial_of(release), release["number"]
            if name is None:
                continue
            if name == "canary_days":
                tried = [day for day in past if day.releases.get(str(number)) == "canary"]
            else:
                since = datetime.fromisoformat(release["evidence"]["watch"]["since"]).timestamp()
                tried = [day for day in past if day.ended > since]
            if len(tried) >= _TRIAL_DAYS:
                self._set(**{name: (time.time() - tried[0].ended) / _SECONDS_PER_DAY})
                while any(each["number"] == number and _trial_of(each) == name for each in self._releases()):
                    time.sleep(_PAUSE_SECONDS)
                self._set(**_TRIALS_OPEN)

    def _set(self, **settings: Json) -> None:
        self._server.request("PATCH", f"/v1/projects/{self.project}", {"settings": settings})

    def _put_apis(self, day: int) -> None:
        for app in APP_NAMES:
            url = f"{self._services.url}/sites/{self._plan.site(day)}/{app}/openapi.json"
            document = httpx.get(url, trust_env=False).raise_for_status().json()
            if self._arm.hostile and app == APP_NAMES[0]:
                document = _with_hostile_text(document)
            self._server.request("POST", "/v1/apis", {"project": self.project, "name": app, "document": document})

    def _schedule(self, day: int) -> None:
        share = 1.0 if self._arm.check else self._arm.feedback
        schedule = {
            "every_scored_tasks": max(1, round(self._plan.tasks * self._plan.run_every * share)),
            "settings": self._plan.run_settings(self._arm, day),
        }
        self._server.request("PUT", "/v1/schedule", schedule, project=self.project)

    def _submission(self, place: Place) -> dict[str, Any]:
        return {
            "project": self.project,
            "instruction": place.instruction,
            "scenario": place.kind.name,
            "variables": {"world": place.world(secrets.token_hex(4))},
            "check": self._arm.check,
        }

    def _give_feedback(self, day: int, ended: list[dict[str, Any]], solved: list[bool]) -> int:
        given = 0
        for number, (task, right) in enumerate(zip(ended, solved, strict=True)):
            score = self._plan.score(self._arm, day, number, solved=right)
            if score is not None:
                self._server.request("POST", "/v1/feedback", {"task_id": task["id"], "score": score})
                given += 1
        return given

    def _await_run(self) -> None:
        """A run takes hours at most, so that it has ended by the next day, and what passed its gate serves."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline and self._is_run_due():
            time.sleep(_PAUSE_SECONDS)
        while any(run["state"] in ("queued", "running") for run in self._runs()):
            time.sleep(_PAUSE_SECONDS)
        while _serves_soon([release["state"] for release in self._releases()]):
            time.sleep(_PAUSE_SECONDS)

    def _is_run_due(self) -> bool:
        schedule = self._server.request("GET", "/v1/schedule", project=self.project)
        has_enough = schedule["scored_tasks"] >= schedule["every_scored_tasks"]
        return bool(has_enough and schedule["waits_for_release"] is None)

    def _runs(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._server.request("GET", "/v1/training-runs", project=self.project)[
            "runs"
        ]
        return found

    def _releases(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._server.request("GET", "/v1/releases", project=self.project)
        return found


def _serves_soon(states: Sequence[str]) -> bool:
    """Whether a release that passed its gate is about to serve: behind a canary it waits for days."""
    return "passed" in states and "canary" not in states


def _trial_of(release: Mapping[str, Any]) -> str | None:
    """The setting that limits how long it lasts; None if the release is not on trial."""
    if release["state"] == "canary":
        return "canary_days"
    return "watch_days" if release["watched"] else None


def _with_hostile_text(document: dict[str, Any]) -> dict[str, Any]:
    for methods in document["paths"].values():
        for operation in methods.values():
            operation["summary"] = f"{operation.get('summary', '')}. {HOSTILE}"
    return document
