"""Trials of served tasks on their recorded calls: nothing is sent anywhere."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime

import httpx

from app.agent.score import score
from app.apis.catalog import Catalog
from app.errors import InvalidError
from app.gateway.gateway import Gateway
from app.gateway.recorded_calls import CallKey, RecordedCalls
from app.records import Call, Stop, Task, Trajectory
from app.sandbox.protocol import Sandbox, SessionLimits
from app.score_source import GOOD
from trainer.environment import Verdict
from trainer.exam.exam_environment import ExamItem, verdict_of

_CHECK_CALLS = 200
_UNKNOWN = Verdict(0, 1, ("what the APIs would have answered is not recorded",), known=False)


class RecordedTrials:
    """Implements `Trials`. A trial is right if it made the changes of the solved task and gave its answer, or if
    the task's check says so.
    """

    def __init__(
        self, catalog: Catalog, sandbox: Sandbox, limits: SessionLimits, others: Mapping[CallKey, Call]
    ) -> None:
        """`others` are reads that gave every task the same result."""
        self._catalog = catalog
        self._sandbox = sandbox
        self._limits = limits
        self._others = others

    def can_judge(self, item: ExamItem) -> bool:
        record = item.record
        return record is not None and record.stop is Stop.COMPLETED and (item.score or 0.0) >= GOOD

    @asynccontextmanager
    async def open(self, item: ExamItem) -> AsyncIterator["RecordedWorld"]:
        assert item.record is not None  # `can_judge`
        recording = RecordedCalls(item.record.calls, self._catalog.is_read, self._others)
        async with httpx.AsyncClient(transport=_Unreachable()) as client:
            yield RecordedWorld(item, self, recording, client)

    async def judge(self, world: "RecordedWorld", trajectory: Trajectory) -> Verdict:
        item = world.item
        assert item.record is not None
        if trajectory.stop is Stop.IN_DOUBT:
            return _UNKNOWN
        if trajectory.stop is not Stop.COMPLETED:
            return Verdict(0, 1, (f"it ended with {trajectory.stop}",))
        same = world.recording.complete and trajectory.answer == item.record.answer
        if same or item.check is None:
            return Verdict(int(same), 1, () if same else ("other changes or another answer than recorded",))
        gateway = world.open_gateway(_CHECK_CALLS, read_only=True)
        try:
            value = await score(
                item.check,
                trajectory.answer,
                sandbox=self._sandbox,
                gateway=gateway,
                limits=self._limits,
                now=world.now,
            )
        except InvalidError as error:
            return Verdict(0, 1, (str(error),), known=gateway.in_doubt is None)
        return verdict_of(value) if gateway.in_doubt is None else _UNKNOWN

    @property
    def catalog(self) -> Catalog:
        return self._catalog


class RecordedWorld:
    """One trial. Implements `World`, with a gateway of its own."""

    def __init__(
        self, item: ExamItem, trials: RecordedTrials, recording: RecordedCalls, client: httpx.AsyncClient
    ) -> None:
        self.item = item
        self.recording = recording
        self.client = client
        self._trials = trials

    @property
    def task(self) -> Task:
        return self.item.task

    @property
    def catalog(self) -> Catalog:
        return self._trials.catalog

    @property
    def now(self) -> datetime:
        return self.item.now

    def open_gateway(self, max_calls: int, *, read_only: bool = False) -> Gateway:
        return Gateway(
            self.catalog,
            self.client,
            instruction=self.task.instruction,
            variables=self.task.variables,
            store=_NoSecrets(),
            read_only=read_only,
            max_calls=max_calls,
            recording=self.recording,
        )

    async def verify(self, trajectory: Trajectory) -> Verdict:
        return await self._trials.judge(self, trajectory)


class _NoSecrets:
    """Implements `SecretStore`: nothing is sent, so nothing needs the real values."""

    async def value(self, name: str) -> str:  # noqa: ARG002
        return "***"


class _Unreachable(httpx.AsyncBaseTransport):
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("trials on recorded calls reach no network", request=request)
