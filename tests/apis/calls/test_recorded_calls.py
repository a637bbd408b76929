"""Calls are answered from those of a finished task, or not at all."""

from random import Random
from typing import Any

from app.apis.calls.recorded_calls import RecordedCalls, concerns
from app.base.values import Call
from tests.support.every_row import every_row


def call(api: str, result: object = None, error: str | None = None, **arguments: Any) -> Call:
    return Call(seq=0, turn=0, api=api, arguments=arguments, result=result, error=error)


def is_read(api: str) -> bool:
    return api.partition(".")[2].startswith(("get", "list"))


def recording(*calls: Call, **others: Call) -> RecordedCalls:
    known = {("mail." + name, b"{}"): found for name, found in others.items()}
    return RecordedCalls(calls, is_read, known)


def answers(recorded: RecordedCalls, *asked: Call) -> list[Any]:
    """The result or error of each call; "unknown" where there is none."""
    found = [recorded.answer(each) for each in asked]
    return ["unknown" if each is None else each.error or each.result for each in found]


BEFORE, AFTER = call("mail.list_mails", ["a", "b"]), call("mail.list_mails", ["b"])
ARCHIVE_A, ARCHIVE_B = call("mail.archive", "done a", id="a"), call("mail.archive", "done b", id="b")
GET_A, GET_B = call("mail.get_mail", "mail a", id="a"), call("mail.get_mail", "mail b", id="b")
OWN = {"seq": 7, "turn": 3}


def test_a_read_gives_what_it_gave_when_the_same_changes_had_been_made() -> None:
    recorded = recording(BEFORE, ARCHIVE_A, AFTER)
    assert answers(recorded, BEFORE, ARCHIVE_A, BEFORE) == [["a", "b"], "done a", ["b"]]


def test_the_answer_keeps_the_place_of_the_call_that_was_made_now() -> None:
    asked = Call(seq=7, turn=3, api="mail.list_mails", arguments={})
    answered = recording(BEFORE).answer(asked)
    assert answered is not None
    assert (answered.seq, answered.turn, answered.result) == (7, 3, ["a", "b"])


def test_a_change_that_was_refused_until_another_was_made_is_so_again() -> None:
    refused = call("desk.close", error="ApiError: 409", id=1)
    assign, close = call("desk.assign", "assigned", id=1), call("desk.close", "closed", id=1)
    recorded = recording(refused, assign, close)
    assert answers(recorded, close, close, assign, close) == ["ApiError: 409"] * 2 + ["assigned", "closed"]
    assert recorded.complete
    assert answers(recording(refused, assign, close), assign, close) == ["assigned", "closed"]
    assert answers(recording(close, refused), close, close) == ["closed", "ApiError: 409"]


def test_the_same_call_gets_its_results_in_their_order() -> None:
    first, second = call("notes.create", {"id": 1}, text="x"), call("notes.create", {"id": 2}, text="x")
    assert answers(recording(first, second), first, first, first) == [{"id": 1}, {"id": 2}, "unknown"]
    runs, done = call("jobs.get_state", "running"), call("jobs.get_state", "done")
    assert answers(recording(runs, runs, done), *[runs] * 4) == ["running", "running", "done", "done"]
    down, sent = call("mail.send", error="ApiError: 503"), call("mail.send", "sent")
    assert answers(recording(down, sent), sent, sent) == ["ApiError: 503", "sent"]


def test_a_read_gives_what_it_gave_in_this_very_state_before_what_it_gave_in_one_like_it() -> None:
    """The change of another app altered it all the same."""
    other = call("notes.add", "added", text="x")
    recorded = recording(BEFORE, other, AFTER)
    assert answers(recorded, BEFORE, BEFORE, other, BEFORE) == [["a", "b"], ["a", "b"], "added", ["b"]]


def test_a_change_before_another_one_that_may_concern_it_is_unknown() -> None:
    assign, close = call("desk.assign", "assigned", id=1), call("desk.close", "closed", id=1)
    assert answers(recording(assign, close), close) == ["unknown"]


def test_calls_that_repeat_the_task_get_what_the_task_got() -> None:
    with every_row() as row:
        for seed in range(50):
            with row(seed):
                random = Random(seed)
                apis = ("mail.archive", "mail.list_mails", "notes.add", "notes.get_note")
                task = [
                    call(
                        random.choice(apis),
                        number,
                        random.choice([None, None, "ApiError: 409"]),
                        id=random.randrange(2),
                    )
                    for number in range(40)
                ]
                recorded = recording(*task)
                assert answers(recorded, *task) == [each.error or each.result for each in task]
                assert recorded.complete


def test_a_change_is_answered_once_for_each_time_it_was_made() -> None:
    recorded = recording(ARCHIVE_A, ARCHIVE_A, ARCHIVE_B)
    assert answers(recorded, ARCHIVE_B, ARCHIVE_A, ARCHIVE_A, ARCHIVE_A) == [
        "done b",
        "done a",
        "done a",
        "unknown",
    ]


def test_what_was_never_asked_for_is_unknown() -> None:
    recorded = recording(BEFORE, ARCHIVE_A)
    assert answers(recorded, call("mail.list_mails", page=2), call("mail.archive", id="c")) == ["unknown"] * 2


def test_a_read_after_a_change_that_may_concern_it_is_unknown() -> None:
    assert answers(recording(BEFORE, ARCHIVE_A), ARCHIVE_A, BEFORE) == ["done a", "unknown"]
    assert answers(recording(GET_A, ARCHIVE_A), ARCHIVE_A, GET_A) == ["done a", "unknown"]


def test_a_read_before_a_change_that_may_concern_it_is_unknown() -> None:
    assert answers(recording(ARCHIVE_A, AFTER), AFTER) == ["unknown"]


def test_changes_of_other_objects_and_apps_leave_a_read_alone() -> None:
    recorded = recording(GET_A, ARCHIVE_A, GET_B, ARCHIVE_B)
    assert answers(recorded, GET_A, GET_B, ARCHIVE_A, ARCHIVE_B) == ["mail a", "mail b", "done a", "done b"]
    elsewhere = call("notes.add", "added", text="x")
    assert answers(recording(BEFORE, elsewhere), elsewhere, BEFORE) == ["added", ["a", "b"]]


def test_a_refused_change_is_refused_again_and_changes_nothing() -> None:
    refused = call("mail.archive", error="ApiError: 404", id="c")
    recorded = recording(BEFORE, refused, ARCHIVE_A)
    assert answers(recorded, refused, refused, BEFORE, ARCHIVE_A) == ["ApiError: 404"] * 2 + [["a", "b"], "done a"]
    assert recorded.complete


def test_it_is_complete_once_the_same_changes_were_made_in_whatever_order() -> None:
    recorded = recording(ARCHIVE_A, ARCHIVE_B)
    seen = [recorded.complete]
    for each in (ARCHIVE_B, ARCHIVE_A):
        recorded.answer(each)
        seen.append(recorded.complete)
    assert seen == [False, False, True]


def test_reads_of_other_tasks_answer_until_a_change_may_concern_them() -> None:
    recorded = recording(ARCHIVE_A, list_folders=call("mail.list_folders", ["inbox"]))
    folders = call("mail.list_folders")
    assert answers(recorded, folders, ARCHIVE_A, folders) == [["inbox"], "done a", "unknown"]


def test_an_argument_of_the_same_name_with_another_value_names_another_object() -> None:
    assert not concerns(call("mail.archive", id=1), call("mail.get_mail", id=2))
    assert concerns(call("mail.archive", id=1), call("mail.get_mail", id="1"))
    assert concerns(call("mail.archive", id=1), call("mail.list_mails", page=0))
