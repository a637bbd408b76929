"""Trials of tasks on APIs that answer: those of staging, or the live ones, which are only read."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime

import httpx

from app.agent.score import score
from app.apis.catalog import Catalog
from app.apis.credentials import Credentials, SecretStore
from app.errors import InvalidError, StagingError
from app.gateway.approval_gate import ApprovalGate
from app.gateway.callers import Caller
from app.gateway.gateway import Gateway
from app.records import Stop, Task, Trajectory
from app.sandbox.protocol import Sandbox, SessionLimits
from trainer.environment import Verdict
from trainer.exam.exam_environment import ExamItem, verdict_of
from trainer.exam.staging_reset import Reset, ResetError

_CHECK_CALLS = 200
_RESET_PAUSES = (1.0, 4.0)  # seconds before a reset that failed is tried again


@dataclass(frozen=True, kw_only=True)
class ApiTrials:
    """Implements `Trials`. A task's check decides, so a task without one cannot be judged."""

    catalog: Catalog
    client: httpx.AsyncClient
    credentials: Credentials
    store: SecretStore
    sandbox: Sandbox
    limits: SessionLimits
    timeout: float  # seconds of a call
    callers: Mapping[str, Caller] = field(default_factory=dict)  # of protocols that are more than HTTP
    read_only: bool
    approvals: ApprovalGate | None = None  # calls that wait for a person are not made
    resets: Mapping[str, Reset] = field(default_factory=dict)  # by app, before each trial
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))  # for trials at once
    alone: Callable[[], AbstractAsyncContextManager[None]] = nullcontext  # entered for each trial

    def can_judge(self, item: ExamItem) -> bool:
        """Where trials only read, also not a task that changed something when it was served."""
        if item.check is None:
            return False
        if not self.read_only:
            return True
        reads = self.catalog.is_read
        return item.record is not None and all(reads(call.api) for call in item.record.calls)

    @asynccontextmanager
    async def open(self, item: ExamItem) -> AsyncIterator["ApiWorld"]:
        """Raises StagingError if the APIs cannot be reset."""
        async with self.slots, self.alone():
            world = ApiWorld(item, self)
            await world.reset()
            yield world


class ApiWorld:
    """One trial. Implements `World`, with a gateway of its own."""

    def __init__(self, item: ExamItem, trials: ApiTrials) -> None:
        self.item = item
        self._trials = trials
        self._gateway: Gateway | None = None

    @property
    def task(self) -> Task:
        return self.item.task

    @property
    def catalog(self) -> Catalog:
        return self._trials.catalog

    @property
    def client(self) -> httpx.AsyncClient:
        return self._trials.client

    @property
    def now(self) -> datetime:
        return self.item.now

    async def reset(self) -> None:
        """Raises StagingError."""
        for app, reset in self._trials.resets.items():
            await self._reset(app, reset)

    async def _reset(self, app: str, reset: Reset) -> None:
        for pause in (*_RESET_PAUSES, None):
            try:
                return await reset(self._open(1, read_only=False))
            except ResetError as error:
                if pause is None or not error.again:
                    raise StagingError(f"the staging server of {app} cannot be reset: {error}") from error
                await asyncio.sleep(pause)

    def open_gateway(self, max_calls: int) -> Gateway:
        self._gateway = self._open(max_calls, read_only=self._trials.read_only)
        return self._gateway

    async def verify(self, trajectory: Trajectory) -> Verdict:
        assert self.item.check is not None  # `can_judge`
        if self._gateway is not None and self._gateway.would_write:
            return Verdict(0, 1, (f"it tried to write: {self._gateway.would_write}",), known=False)
        if self._gateway is not None and self._gateway.unreachable:
            return _unreachable(self._gateway)
        if trajectory.stop is not Stop.COMPLETED:
            return Verdict(0, 1, (f"it ended with {trajectory.stop}",))
        gateway = self._open(_CHECK_CALLS, read_only=True)
        try:
            value = await score(
                self.item.check,
                trajectory.answer,
                sandbox=self._trials.sandbox,
                gateway=gateway,
                limits=self._trials.limits,
                now=self.now,
            )
        except InvalidError as error:
            return _unreachable(gateway) if gateway.unreachable else Verdict(0, 1, (str(error),))
        return _unreachable(gateway) if gateway.unreachable else verdict_of(value)

    def _open(self, max_calls: int, *, read_only: bool) -> Gateway:
        return Gateway(
            self.catalog,
            self.client,
            instruction=self.task.instruction,
            variables=self.task.variables,
            credentials=self._trials.credentials,
            store=self._trials.store,
            read_only=read_only,
            approvals=self._trials.approvals,
            max_calls=max_calls,
            timeout=self._trials.timeout,
            callers=self._trials.callers,
        )


def _unreachable(gateway: Gateway) -> Verdict:
    """A server that is down says nothing about the policy."""
    return Verdict(0, 1, (f"a server cannot be reached: {gateway.unreachable}",), known=False)
