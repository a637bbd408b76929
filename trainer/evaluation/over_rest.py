"""Lets a running server sit held-out scenarios over REST, as its users would send them.

Every site of the practice world becomes a project of its own, with the documents of that site; the tasks of a
scenario are submitted one after the other, each in a world of its own, and the world is judged when the task ends.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import httpx
import msgspec

from app.errors import AppError
from trainer.environment import Split
from trainer.evaluation.metrics import TaskResult

_SITES = 7_000_000  # beyond any that scenarios draw for training
_TRIES = 100  # to hear of a task's end, where its stream breaks off
_PAUSE_SECONDS = 1.0  # between them
_T = TypeVar("_T")
_ENDED = {"done", "failed", "cancelled"}


class ExamError(AppError):
    """The server or the demo APIs refused a part of the exam."""


class Exam(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked, of whom."""

    server: str
    key: str  # an admin key: projects are made and removed
    services: str  # where `sage demo-apis` listens
    admin_token: str
    split: Split = "test"
    scenarios: int = 200
    sites: int = 20
    seed: int = 0
    library: bool = True
    at_once: int = 16  # scenarios, so tasks in flight


async def sit(exam: Exam, report: Callable[[int], object]) -> list[TaskResult]:
    """All results; `report` hears 0 when the first task is about to be sent, and 1 of each that ends.

    Raises ExamError.
    """
    seats = asyncio.Semaphore(exam.at_once)
    async with _Proctor.open(exam) as proctor, proctor.projects(exam.sites) as projects:

        async def one(project: str, scenario: dict[str, Any]) -> list[TaskResult]:
            async with seats:
                results: list[TaskResult] = []
                kept: set[str] = set()
                for task in scenario["tasks"]:
                    result, written = await proctor.examine(project, scenario, task)
                    results.append(result)
                    kept.update(written)
                    report(1)
                library = len(kept) if exam.library else None
                return [msgspec.structs.replace(each, library=library) for each in results]

        papers = [
            (project, scenario)
            for number, project in enumerate(projects)
            for scenario in await proctor.scenarios(number, exam.scenarios // exam.sites)
        ]
        report(0)
        return [each for results in await _all(one(*paper) for paper in papers) for each in results]


async def _all(sittings: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Their results in order. The first failure ends the others: what they work on is about to be removed."""
    running = [asyncio.create_task(sitting) for sitting in sittings]
    try:
        return await asyncio.gather(*running)
    finally:
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)


class _Proctor:
    """Talks to both sides."""

    def __init__(self, exam: Exam, server: httpx.AsyncClient, services: httpx.AsyncClient) -> None:
        self._exam = exam
        self._server = server
        self._services = services

    @classmethod
    @asynccontextmanager
    async def open(cls, exam: Exam) -> AsyncIterator["_Proctor"]:
        def client(url: str, token: str) -> httpx.AsyncClient:
            headers = {"Authorization": f"Bearer {token}"}
            limits = httpx.Limits(max_connections=2 * exam.at_once)
            return httpx.AsyncClient(base_url=url, headers=headers, timeout=60, limits=limits, trust_env=False)

        async with client(exam.server, exam.key) as server, client(exam.services, exam.admin_token) as services:
            yield cls(exam, server, services)

    @asynccontextmanager
    async def projects(self, count: int) -> AsyncIterator[Sequence[str]]:
        """One project a site, with its documents; removed in the end with everything in them."""
        names = [f"exam-{secrets.token_hex(3)}-{number}" for number in range(count)]
        made: list[str] = []
        try:
            for number, name in enumerate(names):
                await self._ask(self._server, "POST", "/v1/projects", {"name": name})
                made.append(name)
                apps = await self._ask(self._services, "GET", "/admin/apps")
                await _all(self._add_api(name, app, _SITES + number) for app in apps)
            yield names
        except BaseException:
            await self._remove(made)  # what went wrong first is what there is to say
            raise
        if left := await self._remove(made):
            raise ExamError(f"could not remove the projects {', '.join(left)}: DELETE /v1/projects/NAME does")

    async def scenarios(self, number: int, count: int) -> list[dict[str, Any]]:
        exam = self._exam
        query = f"split={exam.split}&count={count}&seed={exam.seed + number}&site={_SITES + number}"
        found: list[dict[str, Any]] = await self._ask(self._services, "GET", f"/admin/scenarios?{query}")
        return found

    async def examine(
        self, project: str, scenario: dict[str, Any], asked: dict[str, Any]
    ) -> tuple[TaskResult, list[str]]:
        """Submit one task, wait for its end, judge its world, and tell the server how it did.

        Its result, and the names of the skills that were kept of it.
        """
        submission = {
            "project": project,
            "instruction": asked["instruction"],
            "scenario": scenario["id"],
            "variables": {"world": asked["world"]},
            "use_skills": self._exam.library,
        }
        task_id = (await self._ask(self._server, "POST", "/v1/tasks", submission))["id"]
        task = await self._until_ended(task_id)
        answer = {"answer": task["answer"], "completed": task["stop"] == "completed"}
        verdict = await self._ask(self._services, "POST", f"/admin/worlds/{asked['world']}/verdict", answer)
        feedback = {"task_id": task["id"], "score": verdict["fraction"]}
        await self._ask(self._server, "POST", "/v1/feedback", feedback)
        used = [skill["name"] for skill in task["skills"]["used"]]
        result = TaskResult(
            scenario=scenario["id"],
            template=scenario["template"],
            success=verdict["success"],
            turns=task["turns"],
            tokens=task["generated_tokens"],
            stop=task["stop"] or task["state"],
            offered=len(task["skills"]["offered"]),
            used=len(used),
            wrote=await self._wrote(task),
            names=tuple(used),
        )
        return result, [skill["name"] for skill in task["skills"]["written"]]

    async def _remove(self, names: Sequence[str]) -> list[str]:
        """Those that could not be removed."""
        left = []
        for name in names:
            try:
                await self._ask(self._server, "DELETE", f"/v1/projects/{name}")
            except ExamError:
                left.append(name)
        return left

    async def _until_ended(self, task_id: str) -> dict[str, Any]:
        for _ in range(_TRIES):
            await self._listen(task_id)
            task: dict[str, Any] = await self._ask(self._server, "GET", f"/v1/tasks/{task_id}")
            if task["state"] in _ENDED:
                return task
            await asyncio.sleep(_PAUSE_SECONDS)
        raise ExamError(f"task {task_id} does not end: GET /readyz tells which part of the server is not ready")

    async def _listen(self, task_id: str) -> None:
        """Until the task's event stream ends, which it does with the task, or breaks."""
        try:
            async with self._server.stream("GET", f"/v1/tasks/{task_id}/events") as events:
                async for _ in events.aiter_raw():
                    pass
        except httpx.HTTPError:
            return  # whether the task has ended is asked next, and that error is told

    async def _wrote(self, task: dict[str, Any]) -> int:
        """Functions of the task's own that ran and returned."""
        if task["stop"] is None:
            return 0  # it could not be carried out, so there is no trajectory
        record = await self._ask(self._server, "GET", f"{task['links']['trajectory']}?tokens=false")
        uses = (use for turn in record["turns"] for use in turn["uses"])
        return len({use["function"] for use in uses if use["returned"] and not use["inherited"]})

    async def _add_api(self, project: str, app: str, site: int) -> None:
        url = f"{self._exam.services}/sites/{site}/{app}/openapi.json"
        await self._ask(self._server, "POST", "/v1/apis", {"project": project, "name": app, "url": url})

    async def _ask(self, client: httpx.AsyncClient, method: str, path: str, body: object = None) -> Any:
        try:
            answer = await client.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise ExamError(f"{client.base_url} does not answer: {error or type(error).__name__}") from error
        place = f"{method} {answer.request.url.copy_with(query=None)}"
        if not answer.is_success:
            raise ExamError(f"{place} answers {answer.status_code}: {_why(answer)}")
        try:
            return answer.json() if answer.content else None
        except ValueError as error:
            raise ExamError(f"{place} does not answer in JSON: is that the right address?") from error


def _why(answer: httpx.Response) -> str:
    """The reason in words, where the answer is one of ours."""
    try:
        body = answer.json()
    except ValueError:
        body = None
    reason = body.get("detail") or body.get("message") if isinstance(body, dict) else None
    return " ".join(str(reason or answer.text).split())[:300]
