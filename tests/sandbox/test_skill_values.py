"""Values and exceptions cross between a session and its skills unchanged."""

import pytest

from app.sandbox.forked_sandbox import ForkedSandbox
from tests.support.every_row import every_row
from tests.support.skill_sessions import SAME, run_turns

PLAIN: list[str] = [
    "None", "True", "-3", "2.5", "'hé'", "[1, [2]]", "{'a': {'b': 1}}", "(1, ('a',))", "{1, 2}",
    "frozenset({3})", "b'\\x00\\xff'", "bytearray(b'x')", "{1: 'a', (2, 3): 'b'}", "{'$': 1}", "float('inf')",
    "range(1, 9, 2)", "complex(1, -2)", "decimal.Decimal('1.10')", "dt.datetime(2024, 2, 29, 1, 2, 3, 4)",
    "dt.date(2024, 1, 2)", "dt.time(5, 6, 7)", "dt.timedelta(days=-1, seconds=3)",
    "dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)",
    "dt.datetime(2024, 1, 1, tzinfo=zoneinfo.ZoneInfo('Europe/Paris'))", "apis", "apis.t", "apis.t.echo",
]  # fmt: skip


async def test_a_plain_value_crosses_to_the_skill_and_back_unchanged(sandbox: ForkedSandbox) -> None:
    with every_row() as row:
        for value in PLAIN:
            with row(value):
                code = (
                    f"import datetime as dt, decimal, zoneinfo\nsent = {value}\ngot = same(sent)\n"
                    "print(type(got) is type(sent), repr(got) == repr(sent))"
                )
                (seen,) = await run_turns(sandbox, SAME, code)
                assert (seen.stdout, seen.error) == ("True True\n", None)


@pytest.mark.parametrize("value", ["lambda: 1", "object()", "(n for n in [1])", "[print]", "open"])
async def test_another_value_is_a_type_error_that_names_the_parameter(value: str, sandbox: ForkedSandbox) -> None:
    (seen,) = await run_turns(sandbox, SAME, f"same({value})")
    assert "TypeError: cannot pass the argument 'value' of same: " in (seen.error or "")
    assert "is not a plain value: pass None, bool, int" in (seen.error or "")


async def test_a_result_that_is_not_plain_is_a_type_error(sandbox: ForkedSandbox) -> None:
    (seen,) = await run_turns(sandbox, {"give": "def give() -> object:\n    return give\n"}, "give()")
    assert (seen.error or "").endswith(
        "TypeError: cannot pass the result of give: function is not a plain value: pass None, bool, int, float, "
        "str, bytes, Decimal, dates, times, or lists, tuples, sets and dicts of these"
    )


async def test_arguments_are_copies(sandbox: ForkedSandbox) -> None:
    skills = {"add": "def add(items: list) -> list:\n    items.append(1)\n    return items\n"}
    (seen,) = await run_turns(sandbox, skills, "mine = []\nprint(add(mine), mine)")
    assert seen.stdout == "[1] []\n"


async def test_an_exception_crosses_with_its_class_causes_and_frames(sandbox: ForkedSandbox) -> None:
    source = (
        "import json\n\n\ndef inner(text: str) -> int:\n    return json.loads(text)\n\n\n"
        "def parse(text: str) -> int:\n    try:\n        return inner(text)\n    except ValueError as error:\n"
        "        raise KeyError(text) from error\n"
    )
    (seen,) = await run_turns(sandbox, {"parse": source}, "def f():\n    parse('{')\nf()")
    error = seen.error or ""
    assert error.startswith('Traceback (most recent call last):\n  File "<skill parse>", line 10, in parse\n')
    assert '  File "<skill parse>", line 5, in inner\n    return json.loads(text)\n' in error
    assert '  File "json/decoder.py", line' in error
    assert "json.decoder.JSONDecodeError: Expecting property name" in error
    assert error.endswith(
        "The above exception was the direct cause of the following exception:\n\n"
        'Traceback (most recent call last):\n  File "<turn 1>", line 3, in <module>\n    f()\n'
        "  File \"<turn 1>\", line 2, in f\n    parse('{')\n"
        '  File "<skill parse>", line 12, in parse\n    raise KeyError(text) from error\n'
        "KeyError: '{'"
    )


@pytest.mark.parametrize(
    ("raising", "caught", "shown"),
    [
        ("raise ValueError('a', 2)", "ValueError", "ValueError ('a', 2)"),
        ("'é'.encode('ascii')", "UnicodeEncodeError", "UnicodeEncodeError ('ascii', 'é', 0, 1"),
        ("import json; json.loads('{')", "json.JSONDecodeError", "JSONDecodeError ('Expecting property"),
        ("apis.t.fail()", "Exception", "ApiError ('no such address',)"),
        ("class Odd(LookupError): pass\n    raise Odd('x')", "LookupError", "Odd ('x',)"),
        (
            "raise ExceptionGroup('many', [ValueError(1)])",
            "Exception",
            "ExceptionGroup ('many (1 sub-exception)',)",
        ),
        ("import sys; sys.exit(3)", "SystemExit", "SystemExit (3,)"),
    ],
)
async def test_an_exception_can_be_caught_by_its_class(
    raising: str, caught: str, shown: str, sandbox: ForkedSandbox
) -> None:
    code = f"import json\ntry:\n    boom()\nexcept {caught} as e:\n    print(type(e).__name__, e.args)"
    (seen,) = await run_turns(sandbox, {"boom": f"def boom() -> int:\n    {raising}\n"}, code)
    assert seen.error is None, seen.error
    assert seen.stdout.startswith(shown)


async def test_an_exception_keeps_nine_causes(sandbox: ForkedSandbox) -> None:
    source = (
        "def boom(n: int) -> None:\n    try:\n        n and boom(n - 1)\n    except ValueError as error:\n"
        "        raise ValueError(n) from error\n    raise ValueError(n)\n"
    )
    code = (
        "try:\n    boom(20)\nexcept ValueError as error:\n    causes = []\n"
        "    while error:\n        causes.append(error.args[0])\n        error = error.__cause__\n"
        "    print(causes)"
    )
    (seen,) = await run_turns(sandbox, {"boom": source}, code)
    assert seen.stdout == f"{list(range(20, 10, -1))}\n"


@pytest.mark.parametrize("value", ["2**64", "-2**200", "[2**1000]"])
async def test_a_large_integer_crosses_unchanged(value: str, sandbox: ForkedSandbox) -> None:
    (seen,) = await run_turns(sandbox, SAME, f"print(same({value}) == {value})")
    assert (seen.stdout, seen.error) == ("True\n", None)
