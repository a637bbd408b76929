"""The events of a task as they are shown: a live stream (server-sent events), and a timeline of blocks in the
order in which things were done.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from litestar import Controller, Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath
from sqlalchemy.ext.asyncio import AsyncSession

from app.agent.action import extract_code, words_before_code
from app.base.errors import NotFoundError
from app.base.values import Call, Json, Trajectory
from app.db import results
from app.db.database import Sessions
from app.db.notify import NotificationListener
from app.db.tables import TASK_END_STATES, TaskEvent
from app.tasks import store as tasks
from app.web.access import Caller
from app.web.fields import LastEventId
from app.web.problem import READ
from app.web.sse import BATCH_SIZE, EventBatch, event_stream, message, stream_specs

_STREAM = stream_specs(
    "`event` is turn, call, observation, skill, approval, prompt, check, remark or done; `id` counts up; `data` "
    "is JSON, "
    "with the time at which it was stored (`at`). "
    "A call names the offered skill that made it (`skill`; null: the agent's own code did), and has the "
    "`http_status` of its answer (null: none came, or the protocol has none); of a `result` with "
    "more than 2,000 characters as JSON it has the beginning as text, and `cut` is true. "
    "The `status` of a check is called (it made an API call), scored or failed, with its `output`. "
    "The `status` of a skill is offered, skipped (it cannot be loaded), used, written or refused (it holds a "
    "secret, or attempted a call beyond its manifest). "
    "The `status` of an approval is wanted (with `because`, and in `changes` the `seq` of the calls before it "
    "that may have changed something), approved, refused or expired. "
    "A remark is about the deployment, such as a model that was not made for the project's APIs. "
    "A prompt means that the task goes on under another prompt than it began under, because no runner has that. "
    "To resume, send the last id as `Last-Event-ID`."
)


class TaskEventsController(Controller):
    path = "/tasks/{task_id:uuid}/events"
    tags = ("Tasks",)
    opt = {"scope": "tasks"}  # noqa: RUF012

    @get(summary="Stream the events of a task", media_type="text/event-stream", responses={**_STREAM, **READ})
    async def events(
        self,
        task_id: FromPath[UUID],
        access: Caller,
        sessions: NamedDependency[Sessions],
        listener: NamedDependency[NotificationListener],
        last_event_id: LastEventId = 0,
    ) -> Response[Any]:
        """All events so far, then new ones as they happen, up to `done`."""
        async with sessions() as session:
            task = await tasks.get(session, task_id, access.project_id)
        reader = TaskReader(sessions, task.id, last_event_id)

        async def read() -> EventBatch:
            rows, ended = await reader.read()
            messages = [message(row.kind, {**row.data, "at": row.created_at}, row.seq) for row in rows]
            return EventBatch(messages, ended=ended)

        return await event_stream(listener, task.id, access, read)


class TaskReader:
    """Reads the events of a task after number `position`, as they come."""

    def __init__(self, sessions: Sessions, task_id: UUID, position: int) -> None:
        self._sessions = sessions
        self._task_id = task_id
        self._position = position  # of the last event read

    async def read(self) -> tuple[list[TaskEvent], bool]:
        """The events since the last read, oldest first, and whether there will be no more."""
        async with self._sessions() as session:
            rows = await self._rows(session)
            if not rows and await self._has_ended(session):
                rows = await self._rows(session)  # it may have ended in between
                if not rows:
                    return [], True
        if not rows:
            return [], False
        self._position = rows[-1].seq
        return rows, rows[-1].kind == "done"

    async def _rows(self, session: AsyncSession) -> list[TaskEvent]:
        return list(await results.after(session, self._task_id, self._position, BATCH_SIZE))

    async def _has_ended(self, session: AsyncSession) -> bool:
        """True also for a deleted task. The last event of a task is stored together with its end state."""
        try:
            return (await tasks.get(session, self._task_id)).state in TASK_END_STATES
        except NotFoundError:
            return True


_MOST = 20_000  # characters of a result that a trajectory has in full


class ShownCall(msgspec.Struct, kw_only=True):
    """An API call with its answer. `cut`: the result is only its beginning."""

    seq: int
    api: str
    arguments: dict[str, Json]
    result: Json = None
    cut: bool = False
    error: str | None = None
    seconds: float = 0.0
    skill: str | None = None
    status: int | None = None
    attempts: int = 1


class Block(msgspec.Struct, kw_only=True):
    """A part of the timeline. Its `id` is that of its element."""

    id: str
    kind: str
    at: datetime | None


class TurnBlock(Block, kw_only=True):
    """`words` and `code` are what the policy wrote, `output` what it read of the run."""

    index: int
    words: str
    code: str | None
    tokens: int
    calls: list[ShownCall] = []
    output: str | None = None
    outcome: str = ""
    ended_at: datetime | None = None
    engine_seconds: float | None = None
    sandbox_seconds: float | None = None
    prompt: str | None = None
    used: list[dict[str, Json]] = []


class NoteBlock(Block, kw_only=True):
    """Events of one kind after each other, such as the skills that were offered."""

    items: list[dict[str, Json]]


class CheckBlock(Block, kw_only=True):
    """The check of the task: `outcome` is None until it has ended."""

    calls: list[ShownCall] = []
    outcome: dict[str, Json] | None = None


class EndBlock(Block, kw_only=True):
    data: dict[str, Json]


class Timeline:
    """Blocks by their id, in order."""

    def __init__(self) -> None:
        self.blocks: dict[str, Block] = {}
        self.last = 0  # the number of the last event

    @property
    def turns(self) -> list[TurnBlock]:
        return [block for block in self.blocks.values() if isinstance(block, TurnBlock)]

    @property
    def tokens(self) -> int:
        return sum(turn.tokens for turn in self.turns)

    @property
    def calls(self) -> int:
        return sum(len(turn.calls) for turn in self.turns)

    def add(self, seq: int, kind: str, data: Mapping[str, Any], at: datetime | None) -> Block:
        """The block that the event changed or began."""
        self.last = seq
        turn = self.blocks.get(f"turn-{data.get('turn')}")
        block: Block
        if kind == "turn":
            block = self._begin_turn(data, at)
        elif isinstance(turn, TurnBlock) and self._extend(turn, kind, data, at):
            return turn
        elif kind == "check":
            block = self._check(data, at)
        elif kind == "done":
            block = EndBlock(id="end", kind=kind, at=at, data=dict(data))
        else:
            block = self._note(seq, kind, data, at)
        self.blocks[block.id] = block
        return block

    def _begin_turn(self, data: Mapping[str, Any], at: datetime | None) -> TurnBlock:
        text, code = data["text"], extract_code(data["text"])
        before = [turn.ended_at for turn in self.turns[-1:]]
        waited = (at - before[0]).total_seconds() if at and before and before[0] else None
        index = data["turn"]
        return TurnBlock(
            id=f"turn-{index}",
            kind="turn",
            at=at,
            index=index,
            words=words_before_code(text).strip(),
            code=code,
            tokens=data["tokens"],
            engine_seconds=waited,
        )

    def _extend(self, turn: TurnBlock, kind: str, data: Mapping[str, Any], at: datetime | None) -> bool:
        """Whether the event belongs to the turn."""
        if kind == "call":
            turn.calls = [call for call in turn.calls if call.seq != data["seq"]] + [_call(data)]
        elif kind == "observation":
            turn.output, turn.outcome, turn.ended_at = data["text"], data["outcome"], at
            turn.sandbox_seconds = (at - turn.at).total_seconds() if at and turn.at else None
        elif kind == "skill" and data["status"] == "used":
            turn.used.append(dict(data))
        else:
            if kind == "settled":
                _settle(turn, data)
            return False
        return True

    def _check(self, data: Mapping[str, Any], at: datetime | None) -> CheckBlock:
        block = self.blocks.get("check")
        if not isinstance(block, CheckBlock):
            block = CheckBlock(id="check", kind="check", at=at)
        if data["status"] == "called":
            block.calls.append(_call(data))
        else:
            block.outcome = dict(data)
        return block

    def _note(self, seq: int, kind: str, data: Mapping[str, Any], at: datetime | None) -> NoteBlock:
        last = next(reversed(self.blocks.values()), None)
        if isinstance(last, NoteBlock) and last.kind == kind:
            last.items.append(dict(data))
            return last
        return NoteBlock(id=f"note-{seq}", kind=kind, at=at, items=[dict(data)])

    def enrich(self, trajectory: Trajectory) -> None:
        """Add what only the trajectory has; all turns, if the events of the task were deleted."""
        if not self.turns:
            end, self.blocks = self.blocks, {}
            for kind, data in _events_of(trajectory):
                self.add(self.last, kind, data, None)
            self.blocks |= end
        for shown in self.turns:
            if shown.index < len(trajectory.turns):
                turn = trajectory.turns[shown.index]
                shown.engine_seconds, shown.sandbox_seconds = turn.engine_seconds, turn.sandbox_seconds
                known = {call.seq: call for call in turn.calls}
                for call in shown.calls:
                    _complete(call, known.get(call.seq))


def _call(data: Mapping[str, Any]) -> ShownCall:
    """`status` of an event is that of the check which made the call."""
    known = {name: data[name] for name in ShownCall.__struct_fields__ if name in data and name != "status"}
    return ShownCall(**known, status=data.get("http_status"))


def _settle(turn: TurnBlock, data: Mapping[str, Any]) -> None:
    """Show the call as it is known now; only the trajectory has its result."""
    for call in [call for call in turn.calls if call.seq == data["seq"]]:
        if data["arrived"]:
            call.error, call.cut = None, True
        else:
            turn.calls.remove(call)


def _complete(shown: ShownCall, call: Call | None) -> None:
    if call is None:
        return
    if call.response is not None:
        shown.status, shown.attempts = call.response.status, call.response.attempts
    if shown.cut and len(msgspec.json.encode(call.result)) <= _MOST:
        shown.result, shown.cut = call.result, False


def _events_of(trajectory: Trajectory) -> Iterator[tuple[str, dict[str, Json]]]:
    for index, turn in enumerate(trajectory.turns):
        yield "turn", {"turn": index, "text": turn.full_text, "tokens": turn.generated_tokens}
        for call in turn.calls:
            yield "call", {name: getattr(call, name) for name in call.__struct_fields__ if name != "response"}
        if turn.outcome:
            yield "observation", {"turn": index, "text": turn.observation, "outcome": turn.outcome}


def fold(rows: Iterable[Any]) -> Timeline:
    """The timeline of rows of `task_events`."""
    timeline = Timeline()
    for row in rows:
        timeline.add(row.seq, row.kind, row.data, row.created_at)
    return timeline
