"""Reports a task's check as events: its calls, what it printed, and the score or why there is none."""

from contextlib import nullcontext
from types import TracebackType
from typing import Self
from uuid import UUID

import msgspec

from app.agent.rollout_loop import Agent
from app.agent.score import score
from app.apis.calls.gateway import Gateway
from app.base.errors import AppError
from app.base.secrets import SecretValues
from app.base.values import Json
from app.db import results, tables
from app.db.database import Sessions
from app.runner.event_values import beginning, call_fields

_MOST_CALLS = 50  # that are reported


async def run_check(
    row: tables.Task,
    answer: Json,
    project: str,
    agent: Agent,
    gateway: Gateway,
    report: "CheckReport | None" = None,
) -> float:
    """The score that the task's check gives an answer. Raises as `score`."""
    async with report or nullcontext():
        value = await score(
            row.check_code or "",
            answer,
            sandbox=agent.sandbox,
            gateway=gateway,
            limits=msgspec.structs.replace(agent.limits.session, project=project),
            now=row.started_at,
            output=report.output if report else None,
        )
        if report:
            report.score = value
        return value


class CheckReport:
    """Collects what a check does while it is entered, and appends the events when it is left."""

    def __init__(self, sessions: Sessions, task_id: UUID, gateway: Gateway, secrets: SecretValues) -> None:
        self._sessions = sessions
        self._task_id = task_id
        self._gateway = gateway
        self._secrets = secrets
        self.output: list[str] = []
        self.score: float | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, AppError):
            async with self._sessions.begin() as session:
                await results.append_all(session, self._task_id, self._events(error))

    def _events(self, error: AppError | None) -> list[results.NewEvent]:
        calls = self._gateway.take_calls()
        made = [{**call_fields(call, self._secrets), "turn": None} for call in calls[:_MOST_CALLS]]
        ended: dict[str, Json] = {
            "output": beginning(self._secrets.mask("".join(self.output))),
            "calls": len(calls),
            "score": self.score,
            "error": error and self._secrets.mask(str(error)),
        }
        return [
            *(results.NewEvent("check", {"status": "called", **each}) for each in made),
            results.NewEvent("check", {"status": "failed" if error else "scored", **ended}),
        ]
