"""Offered skills run in processes of their own, and calls behave as if they ran in the session."""

import asyncio
import builtins
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
import pytest_asyncio

from app.errors import HostError
from app.records import Json, Use
from app.sandbox.child.load_effects import LoadEffects
from app.sandbox.forked_sandbox import ForkedSandbox
from app.sandbox.protocol import EnteredSkill, Function, Observation, RunStop, SessionLimits

_APIS = {"t": ["echo", "fail"]}
_LIMITS = SessionLimits(cpu_seconds=0.5, wall_seconds=20, calls=10, output_chars=200, frame_bytes=1 << 18)


class _Host:
    def __init__(self) -> None:
        self.seen: list[tuple[str, list[Json], EnteredSkill | None]] = []

    async def __call__(
        self, api: str, args: list[Json], kwargs: dict[str, Json], *, skill: EnteredSkill | None = None
    ) -> Json:
        self.seen.append((api, [*args, *kwargs.values()], skill))
        if api == "t.fail":
            raise HostError("ApiError", "no such address")
        return args[0] if args else None


@pytest_asyncio.fixture(scope="module")
async def sandbox() -> AsyncIterator[ForkedSandbox]:
    async with ForkedSandbox() as sandbox:
        yield sandbox


async def _run(
    sandbox: ForkedSandbox,
    skills: dict[str, str],
    *turns: str,
    host: _Host | None = None,
    limits: SessionLimits = _LIMITS,
    now: datetime | None = None,
) -> list[Observation]:
    prelude = [Function(name, source) for name, source in skills.items()]
    session = await sandbox.open(_APIS, host or _Host(), limits, prelude=prelude, seed=7, now=now)
    try:
        return [await session.run(turn) for turn in turns]
    finally:
        await session.close()


_SAME = {"same": "def same(value: object) -> object:\n    return value\n"}


@pytest.mark.parametrize(
    "value",
    [
        "None", "True", "-3", "2.5", "'hé'", "[1, [2]]", "{'a': {'b': 1}}", "(1, ('a',))", "{1, 2}",
        "frozenset({3})", "b'\\x00\\xff'", "bytearray(b'x')", "{1: 'a', (2, 3): 'b'}", "{'$': 1}", "float('inf')",
        "range(1, 9, 2)", "complex(1, -2)", "decimal.Decimal('1.10')", "dt.datetime(2024, 2, 29, 1, 2, 3, 4)",
        "dt.date(2024, 1, 2)", "dt.time(5, 6, 7)", "dt.timedelta(days=-1, seconds=3)",
        "dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)",
        "dt.datetime(2024, 1, 1, tzinfo=zoneinfo.ZoneInfo('Europe/Paris'))", "apis", "apis.t", "apis.t.echo",
    ],
)  # fmt: skip
async def test_a_plain_value_crosses_to_the_skill_and_back_unchanged(value: str, sandbox: ForkedSandbox) -> None:
    code = (
        f"import datetime as dt, decimal, zoneinfo\nsent = {value}\ngot = same(sent)\n"
        "print(type(got) is type(sent), repr(got) == repr(sent))"
    )
    (seen,) = await _run(sandbox, _SAME, code)
    assert (seen.stdout, seen.error) == ("True True\n", None)


@pytest.mark.parametrize("value", ["lambda: 1", "object()", "(n for n in [1])", "[print]", "open"])
async def test_another_value_is_a_type_error_that_names_the_parameter(value: str, sandbox: ForkedSandbox) -> None:
    (seen,) = await _run(sandbox, _SAME, f"same({value})")
    assert "TypeError: cannot pass the argument 'value' of same: " in (seen.error or "")
    assert "is not a plain value: pass None, bool, int" in (seen.error or "")


async def test_a_result_that_is_not_plain_is_a_type_error(sandbox: ForkedSandbox) -> None:
    (seen,) = await _run(sandbox, {"give": "def give() -> object:\n    return give\n"}, "give()")
    assert (seen.error or "").endswith(
        "TypeError: cannot pass the result of give: function is not a plain value: pass None, bool, int, float, "
        "str, bytes, Decimal, dates, times, or lists, tuples, sets and dicts of these"
    )


async def test_the_stub_has_the_name_signature_docstring_and_source_of_the_skill(sandbox: ForkedSandbox) -> None:
    source = (
        "from decimal import Decimal\n\n\n"
        "def pay(who: str, /, amount: Decimal, *rest: int, note: str | None = None, **more: list[str]) -> dict:\n"
        "    '''Pay someone.'''\n    return [who, amount, rest, note, more]\n"
    )
    (seen,) = await _run(
        sandbox,
        {"pay": source},
        "import inspect\nprint(pay.__name__, pay.__doc__, inspect.signature(pay))\n"
        "print('return [who' in inspect.getsource(pay))\nprint(pay('iris', 2, 3, 4, note='n', x=['y']))",
    )
    assert seen.stdout == (
        "pay Pay someone. (who: str, /, amount: 'Decimal', *rest: int, note: str | None = None, "
        "**more: list[str]) -> dict\nTrue\n['iris', 2, (3, 4), 'n', {'x': ['y']}]\n"
    )


async def test_wrong_arguments_fail_as_for_any_function(sandbox: ForkedSandbox) -> None:
    (seen,) = await _run(sandbox, _SAME, "same()")
    assert (seen.error or "").endswith("TypeError: same() missing 1 required positional argument: 'value'")


async def test_an_exception_crosses_with_its_class_causes_and_frames(sandbox: ForkedSandbox) -> None:
    source = (
        "import json\n\n\ndef inner(text: str) -> int:\n    return json.loads(text)\n\n\n"
        "def parse(text: str) -> int:\n    try:\n        return inner(text)\n    except ValueError as error:\n"
        "        raise KeyError(text) from error\n"
    )
    (seen,) = await _run(sandbox, {"parse": source}, "def f():\n    parse('{')\nf()")
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
    (seen,) = await _run(sandbox, {"boom": f"def boom() -> int:\n    {raising}\n"}, code)
    assert seen.error is None, seen.error
    assert seen.stdout.startswith(shown)


async def test_output_of_the_skill_comes_in_order_and_counts_towards_the_limit(sandbox: ForkedSandbox) -> None:
    skills = {"say": "def say(n: int) -> None:\n    print('s' * n)\n"}
    ordered, cut = await _run(
        sandbox, skills, "print('a')\nsay(2)\nprint('b')\nsay(3)", "say(120)\nsay(120)\nprint('lost')"
    )
    assert ordered.stdout == "a\nss\nb\nsss\n"
    assert cut.stdout == "s" * 120 + "\n" + "s" * 79 + "\n[output cut after 200 characters]\n"


async def test_calls_of_apis_are_known_to_come_from_the_skill_with_its_arguments(sandbox: ForkedSandbox) -> None:
    source = "def two(who: str, n: int = 2, *rest: int, **more: int) -> int:\n    return apis.t.echo(who) and n\n"
    host = _Host()
    (seen,) = await _run(
        sandbox, {"two": source}, "apis.t.echo('own')\nprint(two('iris', 3, 4, x=(5,)))", host=host
    )
    assert (seen.stdout, seen.calls) == ("3\n", 2)
    assert [(args, skill and (skill.name, skill.arguments)) for _, args, skill in host.seen] == [
        (["own"], None),
        (["iris"], ("two", {"who": "iris", "n": 3, "rest": [4], "x": [5]})),
    ]
    (call,) = seen.skill_calls
    assert (call.name, call.returned, call.error, call.arguments["who"]) == ("two", True, None, "iris")


async def test_the_call_budget_is_shared(sandbox: ForkedSandbox) -> None:
    skills = {"ask": "def ask(n: int) -> int:\n    return [apis.t.echo(i) for i in range(n)][-1]\n"}
    (seen,) = await _run(sandbox, skills, "apis.t.echo(1)\nprint(ask(8))\nask(2)")
    assert (seen.stdout, seen.stop, seen.calls, seen.alive) == ("7\n", RunStop.CALLS, 10, True)
    assert "the budget of 10 API calls is spent" in (seen.error or "")


async def test_the_cpu_limit_is_shared_and_interrupts_the_skill(sandbox: ForkedSandbox) -> None:
    skills = {"spin": "def spin() -> None:\n    while True: pass\n"}
    (seen, after) = await _run(sandbox, skills, "for _ in range(3 * 10**6): pass\nspin()", "print('on')")
    assert (seen.stop, seen.alive, after.stdout) == (RunStop.CPU, True, "on\n")
    assert (seen.error or "").endswith("TimeoutError: the code used more than 0.5 s of CPU time")
    assert '  File "<skill spin>", line 2, in spin' in (seen.error or "")
    assert seen.cpu_ms < 900


async def test_a_skill_that_cannot_be_interrupted_is_killed_and_the_session_lives(sandbox: ForkedSandbox) -> None:
    skills = {"long": "def long(n: int) -> int:\n    return sum(range(10**n))\n"}
    seen, after = await _run(sandbox, skills, "kept = 1\nlong(11)", "print(kept, long(2))")
    assert (seen.stop, seen.alive) == (RunStop.CPU, True)
    assert (seen.error or "").endswith("TimeoutError: the code used more than 0.5 s of CPU time")
    assert after.stdout == "1 4950\n"


async def test_exhausted_memory_is_a_memory_error_of_the_call(sandbox: ForkedSandbox) -> None:
    skills = {"fill": "def fill(n: int) -> int:\n    return len(bytearray(n << 20))\n"}
    limits = SessionLimits(memory_bytes=64 << 20)
    (seen, after) = await _run(sandbox, skills, "fill(80)", "print(fill(1))", limits=limits)
    assert (seen.stop, seen.alive, after.stdout) == (RunStop.MEMORY, True, "1048576\n")


async def test_a_skill_whose_process_dies_fails_its_call_and_starts_anew(sandbox: ForkedSandbox) -> None:
    skills = {
        "die": "import os, signal\ndef die(now: bool) -> str:\n    if now: os._exit(1)\n    return 'alive'\n"
    }
    code = "try:\n    die(True)\nexcept RuntimeError as e:\n    print(e)\nprint(die(False))"
    (seen,) = await _run(sandbox, skills, code)
    assert seen.stdout == "the process of die died\nalive\n"


async def test_the_wall_limit_ends_the_session_as_for_any_code(sandbox: ForkedSandbox) -> None:
    skills = {"wait": "import time\ndef wait() -> None:\n    time.sleep(9)\n"}
    (seen,) = await _run(sandbox, skills, "wait()", limits=SessionLimits(wall_seconds=0.5))
    assert (seen.stop, seen.alive) == (RunStop.WALL, False)


async def test_sleep_in_a_skill_advances_the_one_frozen_clock(sandbox: ForkedSandbox) -> None:
    skills = {"nap": "import time\ndef nap(n: int) -> float:\n    time.sleep(n)\n    return time.time()\n"}
    (seen,) = await _run(
        sandbox,
        skills,
        "import time\nstart = time.time()\ntime.sleep(5)\nprint(nap(10) - start, time.time() - start)",
        now=datetime(2024, 1, 1, tzinfo=UTC),
    )
    assert seen.stdout == "15.0 15.0\n"


async def test_a_skill_keeps_nothing_of_the_session_but_its_own_process(sandbox: ForkedSandbox) -> None:
    skills = {
        "count": "def count() -> int:\n    count.n = getattr(count, 'n', 0) + 1\n    return count.n\n",
        "look": "def look(name: str) -> bool:\n    return name in globals()\n",
    }
    (seen,) = await _run(sandbox, skills, "secret = 1\nprint(count(), count(), look('secret'), look('count'))")
    assert seen.stdout == "1 2 False False\n"


async def test_arguments_are_copies(sandbox: ForkedSandbox) -> None:
    skills = {"add": "def add(items: list) -> list:\n    items.append(1)\n    return items\n"}
    (seen,) = await _run(sandbox, skills, "mine = []\nprint(add(mine), mine)")
    assert seen.stdout == "[1] []\n"


async def test_the_uses_of_a_run_that_ends_its_session_are_counted(sandbox: ForkedSandbox) -> None:
    skills = {"ask": "def ask() -> int:\n    return apis.t.echo(1)\n"}
    (seen,) = await _run(sandbox, skills, "import os\nask()\nos._exit(1)")
    assert (seen.stop, seen.alive, seen.uses) == (RunStop.CRASH, False, (Use("ask", True, 1, 1),))


async def test_the_processes_of_skills_end_with_the_session(sandbox: ForkedSandbox) -> None:
    session = await sandbox.open(_APIS, _Host(), _LIMITS, prelude=[Function(*each) for each in _SAME.items()])
    await session.run("same(1)")
    ((process, _),) = session._skills._open.values()
    await session.close()
    await asyncio.sleep(0)
    assert not process.alive


async def test_a_skill_that_is_not_called_has_no_process(sandbox: ForkedSandbox) -> None:
    session = await sandbox.open(_APIS, _Host(), _LIMITS, prelude=[Function(*each) for each in _SAME.items()])
    await session.run("print(same)")
    assert not session._skills._open
    await session.close()


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import os\n\nos.environ['A'] = '1'\n\n\ndef f() -> int:\n    return 1\n", "Line 3 is neither"),
        ("def f(n: int = print('now')) -> int:\n    return n\n", "a default that is computed"),
        ("@print\ndef f() -> int:\n    return 1\n", "has a decorator"),
        ("def f() -> int:\n    yield 1\n", "is a generator"),
        ("async def f() -> int:\n    return 1\n", "is async"),
        ("class A:\n    pass\n\n\ndef f() -> int:\n    return 1\n", "Line 1 is neither"),
        ("def f(:\n", "SyntaxError"),
        ("def g() -> int:\n    return 1\n", "does not define 'f'"),
        ("def f() -> int:\n    return 1\n\n\nimport json as f\n", "does not define 'f'"),
        ("import nothing_like_this\ndef f() -> int:\n    return 1\n", "ModuleNotFoundError"),
        ("def f(n: print('annotated') = -1, *, k=(1, 'a')) -> print('result'):\n    return n\n", None),
    ],
)
async def test_a_skill_loads_only_if_it_is_inert(source: str, reason: str | None, sandbox: ForkedSandbox) -> None:
    found = await sandbox.load_error(Function("f", source), _LIMITS)
    assert found is None if reason is None else reason in (found or "")


def test_everything_that_loading_changed_is_found() -> None:
    namespace: dict[str, object] = {"apis": 1, "kept": 2}
    effects = LoadEffects(namespace)
    assert effects.found(set()) == []
    namespace.update(apis=None, f=3, g=4)
    random.random()
    vars(builtins)["added"] = 5
    try:
        assert effects.found({"f"}) == ["builtins", "name g", "names", "random"]
    finally:
        del vars(builtins)["added"]
