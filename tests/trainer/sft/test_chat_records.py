"""Conversations on disk: complete, in order, and a line that does not fit is named."""

import json
from pathlib import Path
from uuid import uuid4

import pytest

from app.base.errors import InvalidError
from app.base.values import Offer, Policy, Stop, Task, Trajectory, Turn, Use
from app.engine.tokenizer import Message
from app.runs.chat_lines import ChatRecord, from_line
from tests.support.every_row import every_row
from trainer.sft.chats import prompt_lines, read_records, record_of, to_line, write_records

OPENING = [Message("system", "be good"), Message("user", "do it")]


def turn(text: str, observation: str = "", *, finish: str = "stop", used: str = "", outcome: str = "") -> Turn:
    uses = (Use(used, inherited=True, calls=1, returned=1),) if used else ()
    return Turn(
        context_ids=(1,),
        sampled_ids=(2,),
        logprobs=(-0.5,),
        text=text,
        observation=observation,
        finish=finish,
        outcome=outcome,
        uses=uses,
    )


def offer(name: str) -> Offer:
    return Offer(
        skill_id=uuid4(), name=name, version=1, signature=f"{name}() -> int", source="", instruction="older"
    )


def trajectory(*turns: Turn) -> Trajectory:
    return Trajectory(
        task=Task(uuid4(), "do it", scenario="errands"),
        policy=Policy("abc"),
        profile="compact",
        turns=turns,
        stop=Stop.COMPLETED,
        offered=(offer("fetch"), offer("carry")),
    )


def chat(*texts: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[index % 2], "content": text} for index, text in enumerate(texts)]


def line(messages: object, **about: object) -> bytes:
    return json.dumps({"messages": messages, **about}).encode()


def test_a_rollout_becomes_a_conversation() -> None:
    done = trajectory(turn("look", "two", used="carry"), turn("end", "never shown", outcome="error"))
    record = record_of(done, OPENING, {"score": 0.5})
    assert [(message.role, message.content) for message in record.messages] == [
        ("system", "be good"),
        ("user", "do it"),
        ("assistant", "look"),
        ("user", "two"),
        ("assistant", "end"),
    ]
    assert record.opening == tuple(OPENING)
    assert record.about == {
        "task": str(done.task.id),
        "instruction": "do it",
        "scenario": "errands",
        "model": "abc",
        "profile": "compact",
        "stop": "completed",
        "finish": ["stop", "stop"],
        "outcome": ["", "error"],
        "offered": ["fetch", "carry"],
        "used": ["carry"],
        "score": 0.5,
    }


def test_an_instruction_before_or_after_a_long_list_is_among_the_lines_of_the_prompt() -> None:
    listed = "\n".join(f"operation {number}" for number in range(1000))
    for prompt in (f"do it\n{listed}", f"{listed}\n\nTask: do it"):
        record = ChatRecord(
            (Message("system", "be good"), Message("user", prompt), Message("assistant", "done")), {}
        )
        lines = prompt_lines(record)
        assert "do it" in lines
        assert len(lines) == 400


def test_a_rollout_without_turns_is_no_conversation() -> None:
    with pytest.raises(InvalidError, match="ended before its first turn"):
        record_of(trajectory(), OPENING)


def test_a_line_is_messages_and_flat_columns() -> None:
    record = ChatRecord((Message("user", "hi"), Message("assistant", "ho")), {"score": 1.0, "tags": ["a"]})
    assert json.loads(to_line(record)) == {
        "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}],
        "score": 1.0,
        "tags": ["a"],
    }


def test_written_records_are_read_back_unchanged(tmp_path: Path) -> None:
    records = [
        record_of(trajectory(turn("look\u2028 \u00e9", "a\nb"), turn("end")), OPENING, {"score": 1.0}),
        ChatRecord((Message("user", ""), Message("assistant", "\U0001f600")), {"nested": {"deep": [1, None]}}),
    ]
    write_records(records, tmp_path / "out.jsonl")
    assert read_records(tmp_path / "out.jsonl") == records
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


def test_unknown_columns_are_kept() -> None:
    given = line(chat("q", "a"), source="elsewhere", weight=2)
    assert from_line(given).about == {"source": "elsewhere", "weight": 2}
    assert json.loads(to_line(from_line(given))) == json.loads(given)


def test_empty_lines_and_a_byte_order_mark_are_no_conversations(tmp_path: Path) -> None:
    path = tmp_path / "given.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + line(chat("q", "a")) + b"\r\n\n  \n" + line(chat("r", "b")))
    assert [record.messages[0].content for record in read_records(path)] == ["q", "r"]


def message(role: object, content: object) -> dict[str, object]:
    return {"role": role, "content": content}


UNFIT: list[tuple[bytes, str]] = [
    (b"{", "not JSON"),
    (b"\xff", "not JSON"),
    (b'{"messages": [{"role": "user", "content": "\xff"}]}', "not JSON"),
    (b"[]", "not an object with a list `messages`"),
    (b'{"conversations": []}', "not an object with a list `messages`"),
    (b'{"messages": "q"}', "not an object with a list `messages`"),
    (line(["q", "a"]), "a message must be"),
    (line([message("user", None), message("assistant", "a")]), "a message must be"),
    (line([message("user", ["q"]), message("assistant", "a")]), "a message must be"),
    (line([message("tool", "q"), message("assistant", "a")]), "the role 'tool' is none of system, user"),
    (line([message(None, "q"), message("assistant", "a")]), "the role None is none of"),
    (line([]), "must end with an answer"),
    (line(chat("q")), "must end with an answer"),
    (line(chat("q", "a", "r")), "must end with an answer"),
    (line([message("assistant", "a")]), "must not begin with the assistant"),
    (line([*chat("q", "a"), message("assistant", "b")]), "but assistant comes"),
    (line([*chat("q", "a", "r"), *chat("s", "b")]), "but user comes"),
    (line([*chat("q", "a"), message("system", "s"), message("assistant", "b")]), "but system comes"),
]


def test_a_line_that_does_not_fit_is_named(tmp_path: Path) -> None:
    with every_row() as row:
        for bad, reason in UNFIT:
            with row(bad, reason):
                path = tmp_path / "given.jsonl"
                path.write_bytes(line(chat("q", "a")) + b"\n\n" + bad + b"\n")
                with pytest.raises(InvalidError, match=rf"given\.jsonl, line 3: .*{reason}"):
                    read_records(path)


def test_a_file_without_conversations_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_bytes(b"\n")
    with pytest.raises(InvalidError, match="holds no conversation"):
        read_records(tmp_path / "empty.jsonl")
    with pytest.raises(InvalidError, match=r"cannot be read \(No such file or directory\)"):
        read_records(tmp_path / "missing.jsonl")
    with pytest.raises(InvalidError, match=r"cannot be read \(Is a directory\)"):
        read_records(tmp_path)
