"""Extracts the functions of a rollout."""

import msgspec

from app.base.untrusted import parse
from app.base.values import Use
from app.skills.extract import api_references, extract, summary_of
from tests.support.written_functions import ARCHIVE, archived, offer, ran, rollout


def test_a_draft_describes_the_function_its_apis_and_its_uses() -> None:
    [draft] = extract(archived("iris"))
    assert draft.name == "archive_mails_by_person"
    assert draft.signature == "archive_mails_by_person(name: str) -> int"
    assert draft.source == ARCHIVE.rstrip("\n")
    assert summary_of(draft.source, draft.name) == "Archive all mails from one person."
    assert draft.apis == ("mail.fetch_mails", "mail.file_mail", "mail.sign_in", "supervisor.show_passwords")
    assert draft.instruction == "archive every one of my mails from iris"
    assert draft.slots == ("iris",)
    assert (draft.calls, draft.returned) == (1, 1)


def test_the_latest_definition_wins_and_only_its_own_uses_count() -> None:
    first = ran("def f(n: int) -> int:\n    return n\n", Use("f", False, 3, 3))
    second = ran("def f(n: int) -> int:\n    return n + 1\n", Use("f", False, 1, 0))
    [draft] = extract(rollout("go", first, second))
    assert draft.source == "def f(n: int) -> int:\n    return n + 1"
    assert (draft.calls, draft.returned) == (1, 0)


def test_a_function_brings_the_imports_and_functions_it_needs_and_no_others() -> None:
    start = ran("import json, math\nfrom os import path as where, sep\ndef other() -> None: ...\n")
    double = "def double(n: int) -> int:\n    return math.floor(2 * n)\n"
    code = double + "def f(n: int) -> str:\n    return where.join(str(double(n)))\n"
    drafts = {draft.name: draft for draft in extract(rollout("go", start, ran(code)))}
    assert drafts["f"].source == (
        "import math\nfrom os import path as where\n\n\n"
        "def double(n: int) -> int:\n    return math.floor(2 * n)\n\n\n"
        "def f(n: int) -> str:\n    return where.join(str(double(n)))"
    )
    assert drafts["other"].source == "def other() -> None: ..."


def test_functions_that_call_each_other_are_both_included_once() -> None:
    even = "def even(n: int) -> bool:\n    return not n or odd(n - 1)\n"
    code = even + "def odd(n: int) -> bool:\n    return even(n - 1)\n"
    drafts = {draft.name: draft for draft in extract(rollout("go", ran(code)))}
    assert drafts["even"].source.count("def odd") == 1
    assert drafts["odd"].source.endswith("def odd(n: int) -> bool:\n    return even(n - 1)")


def test_an_offered_skill_is_no_draft_but_may_be_called_by_one() -> None:
    given = offer("token", "import json\n\n\ndef token() -> str:\n    return json.dumps(1)")
    turn = ran("def f() -> str:\n    return token()\n", Use("token", True, 1, 1))
    [draft] = extract(rollout("go", turn, offered=(given,)))
    assert draft.source.startswith("import json\n\n\ndef token() -> str:")


def test_an_offered_skill_that_is_redefined_is_a_draft() -> None:
    given = offer("f", "def f() -> int:\n    return 1")
    [draft] = extract(rollout("go", ran("def f() -> int:\n    return 2\n"), offered=(given,)))
    assert draft.source == "def f() -> int:\n    return 2"


def test_code_that_did_not_run_or_does_not_parse_is_skipped() -> None:
    idle = ran("def f() -> int:\n    return 1\n")
    idle = msgspec.structs.replace(idle, outcome="")
    assert extract(rollout("go", idle, ran("def g(:\n"), ran("def h() -> None: ...\nreturn 3\n"))) == []


def test_async_and_inner_functions_and_methods_are_no_drafts() -> None:
    others = "async def a() -> None: ...\nclass C:\n    def m(self) -> None: ...\n"
    code = others + "def f() -> None:\n    def inner() -> None: ...\n"
    assert [draft.name for draft in extract(rollout("go", ran(code)))] == ["f"]


def test_a_function_whose_name_is_rebound_by_an_import_is_no_draft() -> None:
    assert extract(rollout("go", ran("def floor() -> None: ...\nfrom math import floor\n"))) == []


def test_a_decorator_belongs_to_the_function() -> None:
    code = "import functools\n@functools.cache\ndef f(n: int) -> int:\n    return n\n"
    [draft] = extract(rollout("go", ran(code)))
    assert draft.source == "import functools\n\n\n@functools.cache\ndef f(n: int) -> int:\n    return n"


def test_a_name_that_hides_a_builtin_is_included() -> None:
    code = "def sum(n: list[int]) -> int:\n    return 0\ndef f() -> int:\n    return sum([1])\n"
    drafts = {draft.name: draft for draft in extract(rollout("go", ran(code)))}
    assert "def sum" in drafts["f"].source


def test_dynamic_api_references_count_as_the_calls_made_while_it_ran() -> None:
    code = 'def f(app: str) -> None:\n    getattr(apis, app).send()\nf("mail")\n'
    [draft] = extract(rollout("go", ran(code, Use("f", False, 1, 1), calls=("mail.send",))))
    assert draft.apis == ("mail.send",)


def test_calls_of_a_turn_do_not_count_for_a_function_with_literal_references() -> None:
    code = "def f() -> None:\n    apis.mail.send()\nf()\napis.notes.delete()\n"
    [draft] = extract(rollout("go", ran(code, Use("f", False, 1, 1), calls=("mail.send", "notes.delete"))))
    assert draft.apis == ("mail.send",)


def test_an_alias_of_an_app_is_a_dynamic_reference() -> None:
    tree = parse("m = apis.mail\nm.send()\napis.notes.read()")
    assert tree is not None
    assert api_references(tree) == (["notes.read"], True)


def test_slots_are_the_words_of_the_instruction_that_were_arguments() -> None:
    called = 'who = "Iris Park"\nprint("mails")\nf(who, b=40, c="elsewhere")\n'
    code = "def f(a: str, b: int, c: str) -> None: ...\n" + called
    [draft] = extract(rollout("archive mails over 40 from iris park", ran(code)))
    assert draft.slots == ("40", "iris", "park")
