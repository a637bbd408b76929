"""The built-in checks: which drafts they refuse, and why."""

import msgspec
import pytest

from app.apis.catalog import Catalog, Parameter
from app.base.values import Call, Json, Use
from app.skills.checks import MAX_SOURCE, api_terms, is_wrapper, refusals, task_details, validate_drafts
from app.skills.extract import extract
from tests.support.every_row import every_row
from tests.support.written_functions import ARCHIVE, CATALOG, archived, ran, rollout


def reasons(
    body: str, instruction: str = "archive mails from iris over 40", head: str = "f(who: str) -> int"
) -> list[str]:
    """The reasons against a function that was called once and returned."""
    code = f"def {head}:\n    {body}\n"
    name = head.partition("(")[0]
    trajectory = rollout(instruction, ran(code, Use(name, False, 1, 1)))
    [draft] = extract(trajectory)
    return refusals(draft, trajectory, CATALOG)


SEND = "apis.mail.sign_in(password=who)"


def test_a_general_function_that_worked_is_kept() -> None:
    trajectory = archived("iris")
    assert validate_drafts(trajectory, CATALOG).kept == tuple(extract(trajectory))
    assert validate_drafts(trajectory, CATALOG).refused == {}


def test_a_draft_that_does_not_compile_is_refused() -> None:
    trajectory = archived()
    [draft] = extract(trajectory)
    assert refusals(msgspec.structs.replace(draft, source="def f(:"), trajectory, CATALOG) == [
        "It does not compile."
    ]


def test_a_draft_may_catch_the_errors_of_apis() -> None:
    assert reasons(f"try: return {SEND}\n    except ApiError as error: return error.status") == []


def test_a_draft_too_long_to_offer_is_refused() -> None:
    [reason] = reasons(f"return {SEND}  # {'x' * MAX_SOURCE}")
    assert reason == "It is longer than 8,000 characters."


@pytest.mark.parametrize(
    "body", ["return token + {}", "global token; token = 1; {}", "return [token for _ in {}]"]
)
def test_a_name_of_the_session_that_is_not_defined_is_refused(body: str) -> None:
    assert reasons(body.format(SEND)) == ["It uses names that it does not define or import: token."]


def test_builtins_and_apis_need_not_be_defined() -> None:
    assert reasons(f"return len(sorted([{SEND}]))") == []


@pytest.mark.parametrize(
    ("head", "names"),
    [("f(who, n: int)", "who"), ("f(*who, **rest)", "who, rest"), ("f(n: int, /, *, who)", "who")],
)
def test_every_parameter_needs_a_type(head: str, names: str) -> None:
    assert reasons(f"return {SEND}", head=head) == [f"Parameters without a type: {names}."]


def test_a_name_that_hides_a_builtin_is_refused() -> None:
    assert reasons(f"return {SEND}", head="list(who: str)") == ["Its name hides the builtin list."]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (f"def f(who: str = {SEND}) -> str:\n    return {SEND}", "f has a default that is computed when"),
        (f"import functools\n@functools.cache\ndef f(who: str) -> str:\n    return {SEND}", "f has a decorator"),
        (f"def f(who: str) -> str:\n    yield {SEND}", "f is a generator"),
        (f"def g(who: str = (1, -2)) -> str:\n    yield {SEND}\ndef f(who: str) -> str:\n    return g()", None),
    ],
)
def test_a_function_that_does_something_when_it_is_loaded_is_refused(code: str, reason: str | None) -> None:
    trajectory = rollout("go", ran(f"{code}\n", Use("f", False, 1, 1)))
    draft = next(each for each in extract(trajectory) if each.name == "f")
    against = refusals(draft, trajectory, CATALOG)
    assert against == [] if reason is None else against[0].startswith(reason)


@pytest.mark.parametrize(
    ("use", "reason"),
    [
        (Use("f", False, 2, 0), "No call of it returned."),
        (Use("f", True, 1, 1), "It was not called."),
        (Use("g", False, 1, 1), "It was not called."),
    ],
)
def test_only_a_call_of_the_function_itself_that_returned_counts(use: Use, reason: str) -> None:
    trajectory = rollout("go", ran("def f() -> None:\n    apis.mail.fetch_mails()\n", use))
    [draft] = extract(trajectory)
    assert refusals(draft, trajectory, CATALOG) == [reason]


def test_looking_up_documents_or_ending_the_task_is_no_api_call() -> None:
    assert reasons("apis.supervisor.complete_task(apis.api_docs.search(who))") == ["It calls no API."]


def test_an_unknown_api_is_refused() -> None:
    assert reasons("apis.mail.fetch_mail(who)") == ["It names APIs that do not exist: mail.fetch_mail."]


@pytest.mark.parametrize(
    "literal", ['"iris"', '"Iris"', '"from iris"', "40", "40.0", '"over 40"', 'f"{who} iris"', '{"iris": 1}']
)
def test_a_detail_of_the_task_in_the_body_is_refused(literal: str) -> None:
    [reason] = reasons(f"return {SEND}, {literal}")
    assert reason.startswith("It hard-codes details of its task that should be parameters: ")


def test_a_detail_of_the_conversation_before_the_task_in_the_body_is_refused() -> None:
    said = archived("omar", f"def f(who: str) -> int:\n    return {SEND}, 'iris'\n", "f")
    [draft] = extract(said)
    assert [*task_details(draft, said, CATALOG)] == []
    task = msgspec.structs.replace(said.task, instruction="do it", conversation="user: mail iris")
    [against] = task_details(draft, msgspec.structs.replace(said, task=task), CATALOG)
    assert "'iris'" in against


def test_a_field_that_only_answers_show_is_no_detail() -> None:
    source = "def f(who: str) -> list:\n    return [each['iris'] for each in apis.mail.fetch_mails(who)]\n"
    votes: list[Json] = [{"votes": {"iris": count, "omar": 4}} for count in (3, 5)]
    rows: dict[str, tuple[list[Json], bool]] = {  # the answers of each turn
        "none": ([[]], False),
        "records": ([{"data": [{"iris": 1}, {"iris": 2}]}], True),
        "records of records": ([{"data": [{"id": 1, "by": {"iris": 1}}, {"id": 2, "by": {"iris": 2}}]}], True),
        "record": ([{"id": 7, "iris": 2}], True),
        "map": ([{"iris": {"id": 7}, "omar": {"id": 8}}], False),
        "map read twice": ([votes[0], votes[0]], False),
        "map that changed": (votes, False),
        "the same map in several places": ([{"before": votes[0], "after": votes[0]}], False),
        "maps of records": ([[{"iris": {"n": 7}, "omar": {"n": 8}}, {"iris": {"n": 9}, "omar": {"n": 8}}]], False),
        "records that are the same": ([[{"iris": 1}, {"iris": 1}]], False),
        "value": ([[{"id": 7, "who": "iris"}]], False),
    }
    with every_row() as row:
        for name, (results, is_field) in rows.items():
            with row(name):
                said = archived("iris", source, "f")
                calls = tuple(
                    Call(seq=seq, turn=0, api="mail.fetch_mails", arguments={}, result=result)
                    for seq, result in enumerate(results)
                )
                said = msgspec.structs.replace(
                    said, turns=tuple(msgspec.structs.replace(each, calls=calls) for each in said.turns)
                )
                [draft] = extract(said)
                assert ([*task_details(draft, said, CATALOG)] == []) is is_field


NO_DETAILS: list[str] = [
    '"sender"',
    '"mail"',
    '"fetch_mails"',
    '""',
    '" from "',
    '", "',
    "0",
    "1",
    "-1",
    "True",
    "None",
    '"omar"',
    "41",
]


def test_terms_of_the_apis_and_constants_of_no_task_are_no_details() -> None:
    with every_row() as row:
        for literal in NO_DETAILS:
            with row(literal):
                assert (
                    reasons(f"return {SEND}, {literal}", "mail sender fetch_mails from iris 0 1 true none") == []
                )


def test_a_default_is_a_detail_but_docstrings_and_annotations_are_not() -> None:
    [reason] = reasons(f"return {SEND}", head='f(who: str = "iris")')
    assert "'iris'" in reason
    body = f'"""iris"""\n    n: "iris" = {SEND}\n    return n'
    assert reasons(body, head='f(who: "iris") -> "iris"') == []


def test_numbers_with_thousands_separators_are_recognized() -> None:
    [reason] = reasons(f"return {SEND}, 1200.5", "pay 1,200.50 to iris")
    assert "1200.5" in reason


def test_a_helper_with_a_detail_gets_its_caller_refused_too() -> None:
    code = 'def who() -> str:\n    return "iris"\ndef f() -> None:\n    apis.mail.sign_in(who())\n'
    trajectory = rollout("archive mails from iris", ran(code, Use("f", False, 1, 1), Use("who", False, 1, 1)))
    assert set(validate_drafts(trajectory, CATALOG).refused) == {"who", "f"}


def test_values_that_a_schema_spells_out_are_api_terms() -> None:
    schema = {"anyOf": [{"enum": ["urgent", 3]}, {"items": {"properties": {"Due": {"default": "today"}}}}]}
    operation = CATALOG.apps["mail"].operations["file_mail"]
    parameter = Parameter(name="level", wire_name="X-Level", place="query", required=True, schema=schema)
    app = msgspec.structs.replace(
        CATALOG.apps["mail"],
        operations={"file_mail": msgspec.structs.replace(operation, parameters=(parameter,))},
    )
    words = api_terms(Catalog({"mail": app}))
    assert words == {"mail", "file_mail", "level", "x-level", "urgent", "3", "due", "today"}


@pytest.mark.parametrize(
    ("body", "wrapper"),
    [
        ("return apis.mail.file_mail(id=who)", True),
        ("return [apis.mail.file_mail(id=each) for each in who]", False),
        ("while apis.mail.file_mail(id=who): pass", False),
        ("apis.mail.file_mail(id=who); apis.mail.file_mail(id=who)", False),
        ("getattr(apis.mail, who)(apis.mail.file_mail())", False),
    ],
)
def test_a_wrapper_is_one_call_in_one_place(body: str, wrapper: bool) -> None:
    [draft] = extract(rollout("go", ran(f"def f(who: str) -> None:\n    {body}\n")))
    assert is_wrapper(draft.source) is wrapper


def test_the_canonical_function_is_no_wrapper() -> None:
    assert not is_wrapper(ARCHIVE)
