"""Evaluate a running server on held-out scenarios over REST, as its users would submit them.

Every site of the demo APIs becomes a project of its own, with that site's API documents. The tasks of a scenario
are submitted one by one, each in a world of its own, which is verified when the task has ended.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar, TypeVar

import httpx
import msgspec

from app.base.errors import AppError, first_line
from trainer.environment import Split
from trainer.evaluation.metrics import TaskResult

_FIRST_SITE = 7_000_000  # above all sites that training uses
_ATTEMPTS = 100  # to wait for the end of a task whose event stream breaks off
_PAUSE_SECONDS = 1.0  # between them
_T = TypeVar("_T")
_NOBODY_APPROVES = {"approvals": {"max_writes": 0}}
_ENDED = {"done", "failed", "cancelled"}


class EvaluationError(AppError):
    """The evaluation cannot go on."""


class RefusedEvaluationError(EvaluationError):
    """The server or the demo APIs refused a part of it."""

    exit_code: ClassVar[int] = 6


class UnreachableEvaluationError(EvaluationError):
    """The server or the demo APIs do not answer, or not as they would."""

    exit_code: ClassVar[int] = 5


class RestEvaluation(msgspec.Struct, frozen=True, kw_only=True):
    """The server to evaluate, and on what."""

    server: str
    key: str  # an admin key: projects are created and deleted
    services: str  # where `sage demo-apis` listens
    admin_token: str
    split: Split = "test"
    scenarios: int = 200
    sites: int = 20
    seed: int = 0
    library: bool = True
    at_once: int = 16  # scenarios, which is also the number of tasks


async def evaluate_server(evaluation: RestEvaluation, report: Callable[[int], object]) -> list[TaskResult]:
    """All results. `report` is called with 0 before the first task is submitted, then with 1 for each that ended.

    Raises EvaluationError.
    """
    slots = asyncio.Semaphore(evaluation.at_once)
    async with _Session.open(evaluation) as session, session.projects(evaluation.sites) as projects:

        async def run_scenario(project: str, scenario: dict[str, Any]) -> list[TaskResult]:
            async with slots:
                results: list[TaskResult] = []
                skills: set[str] = set()
                for task in scenario["tasks"]:
                    result, written = await session.run_task(project, scenario, task)
                    results.append(result)
                    skills.update(written)
                    report(1)
                library = len(skills) if evaluation.library else None
                return [msgspec.structs.replace(each, library=library) for each in results]

        jobs = [
            (project, scenario)
            for number, project in enumerate(projects)
            for scenario in await session.scenarios(number, evaluation.scenarios // evaluation.sites)
        ]
        report(0)
        return [each for results in await _gather(run_scenario(*job) for job in jobs) for each in results]


async def _gather(coroutines: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Their results in order. After the first failure the others are stopped: their projects are about to be
    deleted.
    """
    running = [asyncio.create_task(each) for each in coroutines]
    try:
        return await asyncio.gather(*running)
    finally:
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)


class _Session:
    """Talks to the server and to the demo APIs."""

    def __init__(self, evaluation: RestEvaluation, server: httpx.AsyncClient, services: httpx.AsyncClient) -> None:
        self._evaluation = evaluation
        self._server = server
        self._services = services

    @classmethod
    @asynccontextmanager
    async def open(cls, evaluation: RestEvaluation) -> AsyncIterator["_Session"]:
        def client(url: str, token: str) -> httpx.AsyncClient:
            headers = {"Authorization": f"Bearer {token}"}
            limits = httpx.Limits(max_connections=2 * evaluation.at_once)
            return httpx.AsyncClient(base_url=url, headers=headers, timeout=60, limits=limits, trust_env=False)

        async with (
            client(evaluation.server, evaluation.key) as server,
            client(evaluation.services, evaluation.admin_token) as services,
        ):
            yield cls(evaluation, server, services)

    @asynccontextmanager
    async def projects(self, count: int) -> AsyncIterator[Sequence[str]]:
        """One project per site with its API documents; deleted in the end with everything in them."""
        names = [f"eval-{secrets.token_hex(3)}-{number}" for number in range(count)]
        created: list[str] = []
        try:
            for number, name in enumerate(names):
                await self._ask(self._server, "POST", "/v1/projects", {"name": name})
                created.append(name)
                await self._ask(self._server, "PATCH", f"/v1/projects/{name}", {"settings": _NOBODY_APPROVES})
                apps = await self._ask(self._services, "GET", "/admin/apps")
                site = f"{self._evaluation.services}/sites/{_FIRST_SITE + number}"
                added = [{"project": name, "name": app, "url": f"{site}/{app}/openapi.json"} for app in apps]
                await _gather(self._ask(self._server, "POST", "/v1/apis", each) for each in added)
            yield names
        except BaseException:
            await self._delete(created)  # a second failure must not hide the first
            raise
        if left := await self._delete(created):
            raise EvaluationError(f"could not delete the projects {', '.join(left)}: delete them in the console")

    async def scenarios(self, number: int, count: int) -> list[dict[str, Any]]:
        evaluation = self._evaluation
        query = (
            f"split={evaluation.split}&count={count}&seed={evaluation.seed + number}&site={_FIRST_SITE + number}"
        )
        scenarios: list[dict[str, Any]] = await self._ask(self._services, "GET", f"/admin/scenarios?{query}")
        return scenarios

    async def run_task(
        self, project: str, scenario: dict[str, Any], task: dict[str, Any]
    ) -> tuple[TaskResult, list[str]]:
        """Submit one task, wait for its end, verify its world, and send the score to the server as feedback.

        Returns its result, and the names of the skills that were saved from it.
        """
        submission = {
            "project": project,
            "instruction": task["instruction"],
            "scenario": scenario["id"],
            "variables": {"world": task["world"]},
            "use_skills": self._evaluation.library,
        }
        task_id = (await self._ask(self._server, "POST", "/v1/tasks", submission))["id"]
        ended = await self._until_ended(task_id)
        answer = {"answer": ended["answer"], "completed": ended["stop_reason"] == "completed"}
        verdict = await self._ask(self._services, "POST", f"/admin/worlds/{task['world']}/verdict", answer)
        feedback = {"task_id": ended["id"], "score": verdict["fraction"]}
        await self._ask(self._server, "POST", "/v1/feedback", feedback)
        used = [skill["name"] for skill in ended["skills"]["used"]]
        result = TaskResult(
            scenario=scenario["id"],
            template=scenario["template"],
            success=verdict["success"],
            turns=ended["turns"],
            tokens=ended["generated_tokens"],
            stop=ended["stop_reason"] or ended["state"],
            offered=len(ended["skills"]["offered"]),
            used=len(used),
            wrote=await self._wrote(ended),
            names=tuple(used),
        )
        return result, [skill["name"] for skill in ended["skills"]["written"]]

    async def _delete(self, names: Sequence[str]) -> list[str]:
        """Delete the projects. Returns the names of those that could not be deleted."""
        left = []
        for name in names:
            try:
                await self._ask(self._server, "DELETE", f"/v1/projects/{name}")
            except EvaluationError:
                left.append(name)
        return left

    async def _until_ended(self, task_id: str) -> dict[str, Any]:
        for _ in range(_ATTEMPTS):
            await self._listen(task_id)
            task: dict[str, Any] = await self._ask(self._server, "GET", f"/v1/tasks/{task_id}")
            if task["state"] in _ENDED:
                return task
            await asyncio.sleep(_PAUSE_SECONDS)
        raise EvaluationError(
            f"task {task_id} does not end: `sage doctor` says which parts of the server are not ready"
        )

    async def _listen(self, task_id: str) -> None:
        """Wait until the task's event stream ends, which it does with the task, or breaks off."""
        try:
            async with self._server.stream("GET", f"/v1/tasks/{task_id}/events") as events:
                async for _ in events.aiter_raw():
                    pass
        except httpx.HTTPError:
            return  # the next request asks for the task's state, and reports its error

    async def _wrote(self, task: dict[str, Any]) -> int:
        """The number of functions of the task's own that ran and returned."""
        if task["stop_reason"] is None:
            return 0  # it failed before its first turn, so there is no trajectory
        record = await self._ask(self._server, "GET", f"{task['links']['trajectory']}?tokens=false")
        uses = (use for turn in record["turns"] for use in turn["uses"])
        return len({use["function"] for use in uses if use["returned"] and not use["inherited"]})

    async def _ask(self, client: httpx.AsyncClient, method: str, path: str, body: object = None) -> Any:
        try:
            answer = await client.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise UnreachableEvaluationError(f"{client.base_url} does not answer: {first_line(error)}") from error
        if not answer.is_success:
            raise RefusedEvaluationError(f"{client.base_url} refuses: {_why(answer)}")
        try:
            return answer.json() if answer.content else None
        except ValueError as error:
            raise UnreachableEvaluationError(f"{client.base_url} does not answer in JSON: check --url") from error


def _why(answer: httpx.Response) -> str:
    """The error's message where the body has one, otherwise the start of the body."""
    try:
        body = answer.json()
    except ValueError:
        body = None
    reason = body.get("detail") or body.get("message") if isinstance(body, dict) else None
    return " ".join(str(reason or answer.text).split())[:300]
