"""Tasks sent to a deployment, and whether each ended with every write made once."""

import asyncio
import itertools
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any
from uuid import UUID, uuid4

import httpx
import msgspec
from sqlalchemy import select

from app.base.loop import Loop
from app.base.values import Turn
from app.db import results, tables
from app.db.database import TRANSIENT
from app.db.tables import TASK_END_STATES
from tests.support.chaos_deployment import Deployment
from tests.support.chaos_engine import WRITES

_PAUSE = 0.25  # seconds between two tries to send a task


class TaskEnd(msgspec.Struct, frozen=True):
    """How a task ended, and how often each of its writes arrived."""

    word: str
    shown: dict[str, Any]
    arrived: Counter[int]
    confirmed: frozenset[int]
    """Writes whose result the server has."""
    turns: Sequence[Turn]

    @property
    def stop(self) -> str:
        return str(self.shown["stop_reason"] or self.shown["state"])

    @property
    def has_true_doubt(self) -> bool:
        """Of a task in doubt: a write arrived whose result the server has not."""
        return bool(set(self.arrived) - self.confirmed)

    def fault(self) -> str:
        """What was lost, made twice, given up or doubted without need; "" if nothing."""
        if any(count > 1 for count in self.arrived.values()):
            return f"made twice: {dict(self.arrived)}"
        if self.stop == "completed":
            answer = self.shown["answer"]
            sure = set(range(1, WRITES + 1)) - set(answer["unknown"])
            cut_short = any(turn.outcome != "ok" for turn in self.turns)  # as the agent was told
            kept = self.confirmed <= set(self.arrived) and (cut_short or sure <= self.confirmed)
            return "" if kept else f"a write is lost: {answer}, results of {self.confirmed}, {self.arrived}"
        if self.stop == "in_doubt":
            doubted = set(self.arrived) - self.confirmed
            asked = sorted(self.confirmed) == list(range(1, len(self.confirmed) + 1))
            return "" if len(doubted) <= 1 or not asked else "more than one write has no result"
        if self.stop == "crashed":  # whether runners were interrupted is seen from the events
            return ""
        return f"ended as {self.stop}: {self.shown['failure']}"


class Life(msgspec.Struct):
    """When a task was sent and was seen to have ended, on the monotonic clock."""

    sent: float
    ended: float = math.inf


class Load:
    """Sends a task every `seconds` while fewer than `at_once` are under way. `accepted` are ids by word."""

    def __init__(self, deployment: Deployment, *, at_once: int, seconds: float, **task: Any) -> None:
        self.deployment = deployment
        self.accepted = dict[str, UUID]()
        self.pending = set[str]()
        self.lives = dict[str, Life]()
        self._at_once, self._seconds, self._task = at_once, seconds, task
        self._numbers = itertools.count()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Tasks are sent until the end of the block."""
        async with AsyncExitStack() as stack:
            for name, tick, pace in (("send", self._send, self._seconds), ("look", self._look, _PAUSE)):
                await stack.enter_async_context(Loop(f"{name} tasks", tick, pace, expected=(httpx.HTTPError,)))
            yield

    async def settle(self) -> None:
        """Wait until all accepted tasks have ended."""
        while self.pending:
            await self._look()
            await asyncio.sleep(_PAUSE)

    async def ends(self) -> list[TaskEnd]:
        """Of all accepted tasks, once they have ended."""
        arrived = dict[str, Counter[int]]()
        for entry in self.deployment.ledger.entries:
            word, number = entry.text.split()
            arrived.setdefault(word, Counter())[int(number)] += 1
        return [await self._end(word, task, arrived.get(word, Counter())) for word, task in self.accepted.items()]

    async def _end(self, word: str, task_id: UUID, arrived: Counter[int]) -> TaskEnd:
        shown = (await self.deployment.client.get(f"/v1/tasks/{task_id}")).raise_for_status().json()
        async with self.deployment.sessions() as session:
            trajectory = await results.of_task(session, task_id)
        written = [call for call in trajectory.calls if call.api == "ledger.add_entry" and call.error is None]
        confirmed = frozenset(int(str(call.arguments["text"]).split()[1]) for call in written)
        return TaskEnd(word, shown, arrived, confirmed, trajectory.turns)

    async def _send(self) -> None:
        if len(self.pending) >= self._at_once:
            return
        word, sent = f"w{next(self._numbers)}", time.monotonic()
        body, key = {"instruction": f"write {word} now", **self._task}, uuid4().hex
        while True:
            try:
                answer = await self.deployment.client.post(
                    "/v1/tasks", json=body, headers={"Idempotency-Key": key}
                )
                if answer.is_success:
                    break
            except httpx.HTTPError:
                pass
            await asyncio.sleep(_PAUSE)  # the same key again: it is accepted once
        self.accepted[word] = UUID(answer.json()["id"])
        self.pending.add(word)
        self.lives[word] = Life(sent)

    async def _look(self) -> None:
        """In the database itself: the API may be down."""
        words = {self.accepted[word]: word for word in self.pending}
        ended = select(tables.Task.id).where(tables.Task.id.in_(words), tables.Task.state.in_(TASK_END_STATES))
        with suppress(*TRANSIENT):
            async with self.deployment.sessions() as session:
                for task_id in await session.scalars(ended):
                    self.pending.discard(words[task_id])
                    self.lives[words[task_id]].ended = time.monotonic()


def faults(ends: Sequence[TaskEnd]) -> list[str]:
    """What is wrong with tasks, by word."""
    return [f"{end.word}: {fault}" for end in ends if (fault := end.fault())]
