"""What a skill may call and pass on, decided by its manifest at run time."""

from collections.abc import Iterable
from typing import Any

import pytest

from app.apis.calls.skill_guard import (
    CONSTANT,
    PARAMETER,
    RESULT,
    AllowedOperation,
    GuardedSkill,
    SkillGuard,
    SkillManifest,
    SkillRefusal,
    ValueOrigins,
    constants_of,
    refusal,
    widenings,
)
from app.apis.catalog import API_DOCS, COMPLETE_TASK, Operation
from app.base.errors import HostError
from app.base.values import Call
from app.sandbox.protocol import EnteredSkill

PASSWORD = "hunter2-and-more"
LISTED = RESULT + "mail.list"


def operation(api: str, method: str = "GET", safe: bool | None = None) -> Operation:
    app, _, name = api.partition(".")
    return Operation(app=app, name=name, method=method, path="/", summary="", declared_safe=safe)


def manifest(*origins: str, argument: str = "text", method: str = "POST") -> SkillManifest:
    """Of a skill that lists mails and sends one with a text of these origins."""
    return SkillManifest(
        {
            "mail.list": AllowedOperation("GET", True, {}),
            "mail.send": AllowedOperation(method, False, {argument: sorted(origins)}),
        }
    )


def seen(given: Any = None, constants: Any = None, **results: Any) -> ValueOrigins:
    found = ValueOrigins()
    found.add(PARAMETER, given)
    found.add(CONSTANT, constants)
    for app, result in results.items():
        found.add(f"{RESULT}{app}.list", result)
    return found


def send(allowed: SkillManifest, found: ValueOrigins, text: Any) -> str | None:
    return refusal(allowed, operation("mail.send", "POST"), {"text": text}, found)


def test_an_operation_outside_of_the_manifest_is_refused() -> None:
    reason = refusal(manifest(), operation("supervisor.show_passwords"), {}, seen())
    assert reason == "supervisor.show_passwords is not among the operations that it was kept for"


@pytest.mark.parametrize(("method", "safe"), [("DELETE", None), ("POST", True)])
def test_an_operation_that_became_another_one_is_refused(method: str, safe: bool | None) -> None:
    assert refusal(manifest(PARAMETER), operation("mail.send", method, safe), {}, seen()) is not None
    assert refusal(manifest(PARAMETER), operation("mail.send", "POST"), {}, seen()) is None


def test_looking_up_documents_is_always_permitted_and_ending_the_task_only_if_the_skill_did() -> None:
    search = API_DOCS.operations["search"]
    assert refusal(manifest(), search, {"query": "anything"}, seen()) is None
    assert refusal(manifest(), COMPLETE_TASK, {"answer": "x"}, seen()) is not None
    ending = SkillManifest({COMPLETE_TASK.api: AllowedOperation()})
    assert refusal(ending, COMPLETE_TASK, {"answer": "x"}, seen()) is None


@pytest.mark.parametrize(
    "sent",
    [
        PASSWORD,
        PASSWORD.upper(),
        f"  {PASSWORD}\n",
        f"hello {PASSWORD}",
        f"x{PASSWORD}y",
        PASSWORD[:9],
        PASSWORD[3:],
        [{"deep": [PASSWORD]}],
        {PASSWORD: "iris"},
        PASSWORD.split("-")[2],
    ],
)
def test_a_value_that_was_read_goes_nowhere_that_it_did_not_go_before(sent: Any) -> None:
    """A time bomb: with `name` it sent what it was given, now it sends what another operation returned."""
    allowed = manifest(PARAMETER, CONSTANT)
    found = seen("iris", "hello", supervisor=[{"account": "mail", "password": PASSWORD}])
    assert "came from result:supervisor.list" in (send(allowed, found, sent) or "")
    assert send(allowed, found, "hello Iris") is None
    assert send(manifest(PARAMETER, CONSTANT, f"{RESULT}supervisor.list"), found, PASSWORD) is None


@pytest.mark.parametrize(
    "sent",
    [PASSWORD[::-1], PASSWORD.encode().hex(), "aHVudGVyMi1hbmQtbW9yZQ==", 0x68756E74657232, ["h", "u", "n"]],
)
def test_an_encoded_value_is_computed_and_refused_where_nothing_was_computed(sent: Any) -> None:
    found = seen("iris", "hello", supervisor=PASSWORD)
    assert "came from computed" in (send(manifest(PARAMETER, CONSTANT), found, sent) or "")


def test_a_constant_goes_nowhere_that_only_parameters_went() -> None:
    found = seen("iris@example.com", ["attacker@evil.test"])
    assert send(manifest(PARAMETER), found, "iris@example.com") is None
    assert "came from constant" in (send(manifest(PARAMETER), found, "attacker@evil.test") or "")


def test_an_argument_that_was_never_given_is_refused() -> None:
    reason = refusal(manifest(PARAMETER), operation("mail.send", "POST"), {"bcc": "iris"}, seen("iris"))
    assert "the argument bcc" in (reason or "")


def test_what_the_skill_was_called_with_may_also_have_been_read() -> None:
    found = seen({"who": "iris@example.com"}, None, mail=[{"sender": "iris@example.com"}])
    assert send(manifest(PARAMETER), found, "iris@example.com") is None
    assert send(manifest(LISTED), found, "iris@example.com") is None


@pytest.mark.parametrize("sent", [True, None, 3, -7, 9_999, "", " ", "2024-05-03", "2024-05-03T10:00:00Z", "12"])
def test_values_that_coincide_by_chance_are_not_traced_to_a_result(sent: Any) -> None:
    found = seen(
        "iris", None, mail=[{"day": "2024-05-03", "at": "2024-05-03T10:00:00Z", "n": [3, 9_999, 12, "12"]}]
    )
    assert send(manifest("computed"), found, sent) is None


def test_a_small_number_is_a_parameter_a_constant_or_unexplained_whatever_was_read() -> None:
    found = seen({"limit": 30, "text": "at most 40"}, [50], mail=[30, 60, "a1b2"])
    origins = {number: set(found.trace(number)[0].origins) for number in (30, 40, 50, 60, 2)}
    assert origins == {
        30: {"parameter", "number"},
        40: {"parameter"},
        50: {"constant"},
        60: {"number"},
        2: {"number"},
    }


def test_an_argument_that_took_unexplained_small_numbers_may_take_larger_ones() -> None:
    found = seen("iris", None, mail={"id": 123456789})
    assert send(manifest("number"), found, 123456789) is None
    assert send(manifest("number"), found, 12.5) is not None
    assert send(manifest("number"), found, "123456789") is not None
    assert send(manifest(CONSTANT), seen("iris", None, mail={"id": 123456789}), 123456789) is not None


class Sender:
    """A skill that lists mails and passes one value after the other, until it is refused."""

    def __init__(self, *origins: str, constant: Any = None) -> None:
        self.allowed = manifest(*origins)
        self.found = seen("iris", constant)

    def passes(self, values: Iterable[Any]) -> int:
        """How many of them it can send."""
        sent = [send(self.allowed, self.found, each) for each in values]
        return sent.index(next(each for each in sent if each is not None)) if any(sent) else len(sent)


def test_small_numbers_tell_no_more_than_a_few_characters_and_none_of_a_secret() -> None:
    secret = b"launch-code-4711-x-rays"
    codes = [int.from_bytes(secret[at : at + 2]) % 10_000 for at in range(0, len(secret), 2)]
    for origins in ((PARAMETER,), (CONSTANT,), (LISTED,), (PARAMETER, CONSTANT, LISTED)):
        assert Sender(*origins).passes(codes) == 0
    read = Sender("number")
    read.found.add(LISTED, {"text": secret.decode()})
    assert 0 < read.passes(codes) < 6
    for told in ({"password": secret.decode()}, {"mails": [{"api_key": "another-secret"}]}):
        knows = Sender("number")
        knows.found.add(LISTED, told)
        assert knows.passes(codes) == 0
    given = Sender("number")
    given.found.add(PARAMETER, {"access_token": "another-secret"})
    assert given.passes(codes) == 0
    pin = Sender("number")
    pin.found.add(LISTED, {"id": 4711, "pin": 4712})
    assert (pin.passes([4711]), pin.passes([4713]), Sender("number").passes([4712])) == (1, 0, 1)
    assert pin.passes([4712]) == 0


def test_marks_and_flags_tell_no_more_either() -> None:
    bits = [bool(int(each)) for each in "".join(f"{byte:08b}" for byte in b"launch-code-4711-x-rays")]
    groups = [bits[at : at + 8] for at in range(0, len(bits), 8)]
    assert 0 < Sender(PARAMETER).passes(groups) < 10
    assert 0 < Sender(PARAMETER).passes("♔♕♖♗♘♙♚♛♜♝♞♟") < 8
    knows = Sender(PARAMETER)
    knows.found.add(LISTED, {"password": "another-secret"})
    assert (knows.passes("♔"), knows.passes([True] * 200)) == (0, 200)


def test_counters_and_numbers_in_the_order_of_an_answer_pass_however_many() -> None:
    """A skill that has logged in goes through pages, and through what it has listed."""
    token = {"access_token": "another-secret"}
    for origins, constant, numbers in (
        ((CONSTANT, "number"), 1, range(1, 200)),
        ((CONSTANT,), 1, range(1, 200)),
        ((CONSTANT,), [0, 20], range(0, 4_000, 20)),
    ):
        counts = Sender(*origins, constant=constant)
        counts.found.add(LISTED, token)
        assert counts.passes(numbers) == len(numbers)
    ids = [each * each * 7_919 % 9_973 for each in range(200)]
    lists = Sender("number")
    lists.found.add(LISTED, token)
    lists.found.add(LISTED, [{"id": each, "size": each % 90, "by": {"id": 3}} for each in ids])
    assert lists.passes(ids) == 200
    assert Sender("number").passes(ids) < 10


def test_a_counter_that_went_further_than_its_first_constant_is_not_wider() -> None:
    assert widenings(manifest(CONSTANT, "number"), manifest(CONSTANT)) == []
    assert widenings(manifest("number"), manifest(PARAMETER)) != []


def test_large_numbers_are_traced_like_texts() -> None:
    found = seen("pay 2,500,000", None, mail={"iban": 123456789})
    assert send(manifest(PARAMETER), found, 2_500_000) is None
    assert send(manifest(PARAMETER), found, 123456789) is not None
    assert send(manifest(LISTED), found, 123456789) is None


def test_what_is_too_large_to_trace_counts_as_all_that_was_read() -> None:
    found = seen("iris", None, mail="x" * 2_000_000, notes="short")
    assert "result:mail.list" in (send(manifest(PARAMETER, "computed"), found, "unknown") or "")
    assert send(manifest(PARAMETER, "computed", LISTED), found, "unknown") is None
    long = seen("iris", None, notes="short")
    assert "result:notes.list" in (send(manifest(PARAMETER, "computed"), long, "y " * 20_000) or "")


def test_values_that_take_too_long_to_search_count_as_all_that_was_read() -> None:
    """Each text is looked for in all that was read: a list of them may not keep the server busy for minutes."""
    found = seen("iris", None, mail="x" * 1_000_000)
    assert send(manifest(PARAMETER, "computed"), found, ["unknown", "texts"]) is None
    many = [f"unknown{number}" for number in range(5_000)]
    assert "result:mail.list" in (send(manifest(PARAMETER, "computed"), found, many) or "")
    assert send(manifest(PARAMETER, "computed", LISTED), found, many) is None


def test_numbers_that_are_too_many_to_index_count_as_what_was_read() -> None:
    found = seen("iris", None, mail=[10_000 + number for number in range(100_001)])
    assert send(manifest("computed"), found, 5_000_000) is not None
    assert send(manifest("computed", LISTED), found, 5_000_000) is None
    assert send(manifest("computed"), seen("iris", None, mail=[10_000]), 5_000_000) is None


def test_numbers_that_no_float_holds_are_traced() -> None:
    assert send(manifest(PARAMETER), seen(10**400), 10**400) is None
    assert send(manifest(PARAMETER), seen("iris"), 10**400) is not None


def test_a_manifest_of_an_earlier_version_permits_any_arguments_of_its_operations() -> None:
    old = SkillManifest.unrestricted(["mail.send"])
    assert send(old, seen(None, None, mail=PASSWORD), PASSWORD) is None
    assert refusal(old, operation("mail.list"), {}, seen()) is not None


@pytest.mark.parametrize(
    ("new", "old", "wider"),
    [
        (manifest(PARAMETER), manifest(PARAMETER, CONSTANT), []),
        (manifest(PARAMETER), SkillManifest.unrestricted(["mail.send", "mail.list"]), []),
        (manifest(LISTED), manifest(PARAMETER), ["it gives mail.send the argument text from result:mail.list"]),
        (
            manifest(PARAMETER, argument="bcc"),
            manifest(PARAMETER),
            ["it gives mail.send the argument bcc from parameter"],
        ),
        (
            manifest(PARAMETER, method="DELETE"),
            manifest(PARAMETER),
            ["it calls mail.send as another operation than before"],
        ),
        (
            SkillManifest.unrestricted(["mail.send", "notes.list"]),
            manifest(PARAMETER),
            ["it calls mail.send with any arguments", "it calls notes.list"],
        ),
    ],
)
def test_a_manifest_is_wider_by_operations_methods_and_origins(
    new: SkillManifest, old: SkillManifest, wider: list[str]
) -> None:
    assert widenings(new, old) == wider


def test_a_skill_that_remembers_what_it_read_cannot_pass_it_on_in_a_later_call() -> None:
    guard = SkillGuard({"send": GuardedSkill.of(manifest(PARAMETER), "def send(text: str) -> None: ...")})
    first, second = EnteredSkill("send", {"text": "iris"}), EnteredSkill("send", {"text": "omar"})
    guard.check(first, operation("mail.list"), {})
    guard.returned(first, Call(seq=0, turn=0, api="mail.list", arguments={}, result="a long secret"))
    for _ in range(2):
        with pytest.raises(HostError) as refused:
            guard.check(second, operation("mail.send", "POST"), {"text": "a long secret"})
        assert refused.value.kind == "PermissionError"
    guard.check(second, operation("mail.send", "POST"), {"text": "omar"})
    reason = "the argument text of mail.send came from result:mail.list, unlike when it was kept"
    assert guard.take_refusals() == [SkillRefusal("send", "mail.send", reason)]
    with pytest.raises(HostError):
        guard.check(second, operation("mail.send", "POST"), {"text": "a long secret"})
    assert guard.take_refusals() == [], "a turn that runs again violates nothing new"


def test_a_skill_without_a_manifest_is_not_restricted() -> None:
    other = EnteredSkill("unknown", {})
    guard = SkillGuard({})
    guard.check(other, operation("mail.send", "POST"), {"text": "anything"})
    guard.returned(other, Call(seq=0, turn=0, api="mail.send", arguments={}, result=None))
    assert guard.take_refusals() == []


def test_the_constants_of_a_source_are_its_texts_and_numbers() -> None:
    assert set(constants_of('def f(a: int = 3) -> str:\n    return f"to {a}" + "b" * 4.5 * True')) == {
        3,
        "to ",
        "b",
        4.5,
    }
