"""How the events of a task become its timeline."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import msgspec

from app.base.values import Call, CallResponse, Policy, Stop, Task, Trajectory, Turn
from app.tasks.events import CheckBlock, EndBlock, NoteBlock, Timeline, TurnBlock
from tests.support.scripted_engine import block

_START = datetime(2026, 1, 1, tzinfo=UTC)


def _told(*told: tuple[str, dict[str, Any]]) -> Timeline:
    """One event each second."""
    timeline = Timeline()
    for seq, (kind, data) in enumerate(told, start=1):
        timeline.add(seq, kind, data, _START + timedelta(seconds=seq))
    return timeline


def _turn(index: int, text: str = block("x = 1")) -> tuple[str, dict[str, Any]]:
    return "turn", {"turn": index, "text": text, "tokens": 5}


def _call(turn: int, seq: int, **more: Any) -> tuple[str, dict[str, Any]]:
    data = {"turn": turn, "seq": seq, "api": "ledger.list", "arguments": {}, "skill": None, "result": [1]}
    return "call", {**data, "error": None, "seconds": 0.5, **more}


def _observed(turn: int, text: str = "done") -> tuple[str, dict[str, Any]]:
    return "observation", {"turn": turn, "text": text, "outcome": "ok"}


def _skill(status: str, name: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "skill", {"status": status, "id": str(uuid4()), "name": name, "version": 1, **more}


def test_calls_and_output_belong_to_their_turn_and_skills_after_each_other_to_one_note() -> None:
    timeline = _told(
        _skill("offered", "a"),
        _skill("offered", "b"),
        _turn(0),
        _call(0, 0),
        _observed(0),
        _skill("used", "a", turn=0, calls=2, returned=1),
        _turn(1, "I am done."),
    )
    offered, first, second = timeline.blocks.values()
    assert isinstance(offered, NoteBlock)
    assert [item["name"] for item in offered.items] == ["a", "b"]
    assert isinstance(first, TurnBlock)
    assert (first.words, first.code, first.output) == ("So be it.", "x = 1\n", "done")
    assert [call.api for call in first.calls] == ["ledger.list"]
    assert [use["name"] for use in first.used] == ["a"]
    assert first.sandbox_seconds == 2.0
    assert isinstance(second, TurnBlock)
    assert (second.words, second.code, second.engine_seconds) == ("I am done.", None, 2.0)
    assert (timeline.tokens, timeline.calls, timeline.last) == (10, 1, 7)


def test_an_event_names_the_block_that_it_changed() -> None:
    timeline = _told(_turn(0))
    called = timeline.add(2, *_call(0, 0, http_status=404), None)
    assert isinstance(called, TurnBlock)
    assert (called.id, called.calls[0].status) == ("turn-0", 404)
    assert timeline.add(3, "approval", {"status": "wanted", "turn": 0, "api": "x"}, None).id == "note-3"
    checked = timeline.add(4, "check", {"status": "called", **_call(0, 0, http_status=200)[1], "turn": None}, None)
    assert checked.id == "check"
    scored = timeline.add(5, "check", {"status": "scored", "output": "", "score": 1.0, "error": None}, None)
    assert isinstance(scored, CheckBlock)
    assert ([call.status for call in scored.calls], (scored.outcome or {})["score"]) == ([200], 1.0)
    assert isinstance(timeline.add(6, "done", {"state": "done"}, None), EndBlock)
    assert list(timeline.blocks) == ["turn-0", "note-3", "check", "end"]


def test_code_that_the_model_only_considered_is_among_its_words() -> None:
    considered = f"<think>\n{block('x = 0')}\nNo.\n</think>\n"
    [turn] = _told(_turn(0, considered + block("x = 1"))).turns
    assert (turn.words, turn.code) == (f"{considered}So be it.", "x = 1\n")


def _trajectory(result: Any) -> Trajectory:
    call = Call(seq=0, turn=0, api="ledger.list", arguments={}, result=result, response=CallResponse(status=201))
    turn = Turn(
        context_ids=(1,),
        sampled_ids=(2, 3),
        logprobs=(-1.0, -1.0),
        text=block("x = 1"),
        observation="seen",
        outcome="ok",
        calls=(call,),
        engine_seconds=0.25,
    )
    return Trajectory(
        task=Task(id=uuid4(), instruction="x"),
        policy=Policy(),
        profile="compact",
        turns=(turn,),
        stop=Stop.COMPLETED,
    )


def test_the_trajectory_completes_what_events_cut() -> None:
    whole = ["word"] * 1_000
    timeline = _told(_turn(0), _call(0, 0, result='["word",', cut=True))
    timeline.enrich(_trajectory(whole))
    [turn] = timeline.turns
    [call] = turn.calls
    assert (call.status, call.cut, call.result) == (201, False, whole)
    assert turn.engine_seconds == 0.25
    huge = "x" * 30_000
    timeline = _told(_turn(0), _call(0, 0, result='"xx', cut=True))
    timeline.enrich(_trajectory(huge))
    assert timeline.turns[0].calls[0].cut, "a page does not carry it all"


def test_the_turns_of_a_task_whose_events_were_deleted_come_from_its_trajectory() -> None:
    timeline = _told(("done", {"state": "done"}))
    timeline.enrich(_trajectory([1]))
    assert list(timeline.blocks) == ["turn-0", "end"]
    [turn] = timeline.turns
    assert (turn.tokens, turn.output, [call.status for call in turn.calls]) == (2, "seen", [201])
    assert msgspec.json.encode(turn.calls[0].result) == b"[1]"
