"""What a task has done, in order: its events, gathered into blocks. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec

from app.agent.action import extract_code, words_before_code
from app.base.values import Call, Json, Trajectory

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
