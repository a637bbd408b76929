"""Offered skills run in processes of their own, and calls behave as if they ran in the session."""

import asyncio
from datetime import UTC, datetime

import msgspec

from app.base.values import Use
from app.sandbox.forked_sandbox import ForkedSandbox
from app.sandbox.protocol import RunStop
from tests.support.skill_sessions import APIS, LIMITS, SAME, EchoHost, functions, run_turns


async def test_the_stub_has_the_name_signature_docstring_and_source_of_the_skill(sandbox: ForkedSandbox) -> None:
    source = (
        "from decimal import Decimal\n\n\n"
        "def pay(who: str, /, amount: Decimal, *rest: int, note: str | None = None, **more: list[str]) -> dict:\n"
        "    '''Pay someone.'''\n    return [who, amount, rest, note, more]\n"
    )
    (seen,) = await run_turns(
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
    (seen,) = await run_turns(sandbox, SAME, "same()")
    assert (seen.error or "").endswith("TypeError: same() missing 1 required positional argument: 'value'")


async def test_calls_of_apis_are_known_to_come_from_the_skill_with_its_arguments(sandbox: ForkedSandbox) -> None:
    source = "def two(who: str, n: int = 2, *rest: int, **more: int) -> int:\n    return apis.t.echo(who) and n\n"
    host = EchoHost()
    (seen,) = await run_turns(
        sandbox, {"two": source}, "apis.t.echo('own')\nprint(two('iris', 3, 4, x=(5,)))", host=host
    )
    assert (seen.stdout, seen.calls) == ("3\n", 2)
    assert [(args, skill and (skill.name, skill.arguments)) for _, args, skill in host.seen] == [
        (["own"], None),
        (["iris"], ("two", {"who": "iris", "n": 3, "rest": [4], "x": [5]})),
    ]
    (call,) = seen.skill_calls
    assert (call.name, call.returned, call.error, call.arguments["who"]) == ("two", True, None, "iris")


async def test_the_records_of_a_run_have_few_arguments_in_all(sandbox: ForkedSandbox) -> None:
    skills = {"same": "def same(**more: str) -> int:\n    return len(more)\n"}
    code = "large = {f'n{n}': 'x' * 1_990 for n in range(50)}\nfor _ in range(30):\n    same(**large)"
    (seen,) = await run_turns(sandbox, skills, code)
    assert seen.error is None
    assert [(use.function, use.calls) for use in seen.uses] == [("same", 30)]
    sizes = [len(msgspec.json.encode(each.arguments)) for each in seen.skill_calls]
    assert (len(sizes), sizes[0] > 90_000, sizes[-1], seen.skill_calls[-1].exact) == (30, True, 2, False)
    assert sum(sizes) < 1_200_000


async def test_a_skill_whose_process_dies_fails_its_call_and_starts_anew(sandbox: ForkedSandbox) -> None:
    skills = {
        "die": "import os, signal\ndef die(now: bool) -> str:\n    if now: os._exit(1)\n    return 'alive'\n"
    }
    code = "try:\n    die(True)\nexcept RuntimeError as e:\n    print(e)\nprint(die(False))"
    (seen,) = await run_turns(sandbox, skills, code)
    assert seen.stdout == "the process of die died\nalive\n"


async def test_sleep_in_a_skill_advances_the_one_frozen_clock(sandbox: ForkedSandbox) -> None:
    skills = {"nap": "import time\ndef nap(n: int) -> float:\n    time.sleep(n)\n    return time.time()\n"}
    (seen,) = await run_turns(
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
    (seen,) = await run_turns(
        sandbox, skills, "secret = 1\nprint(count(), count(), look('secret'), look('count'))"
    )
    assert seen.stdout == "1 2 False False\n"


async def test_the_uses_of_a_run_that_ends_its_session_are_counted(sandbox: ForkedSandbox) -> None:
    skills = {"ask": "def ask() -> int:\n    return apis.t.echo(1)\n"}
    (seen,) = await run_turns(sandbox, skills, "import os\nask()\nos._exit(1)")
    assert (seen.stop, seen.alive, seen.uses) == (RunStop.CRASH, False, (Use("ask", True, 1, 1),))


async def test_the_processes_of_skills_end_with_the_session(sandbox: ForkedSandbox) -> None:
    session = await sandbox.open(APIS, EchoHost(), LIMITS, prelude=functions(SAME))
    await session.run("same(1)")
    ((process, _),) = session._skills._open.values()
    await session.close()
    await asyncio.sleep(0)
    assert not process.alive


async def test_a_skill_that_is_not_called_has_no_process(sandbox: ForkedSandbox) -> None:
    session = await sandbox.open(APIS, EchoHost(), LIMITS, prelude=functions(SAME))
    await session.run("print(same)")
    assert not session._skills._open
    await session.close()


async def test_the_processes_of_skills_end_even_if_the_end_of_the_session_is_cancelled(
    sandbox: ForkedSandbox,
) -> None:
    session = await sandbox.open(APIS, EchoHost(), LIMITS, prelude=functions(SAME))
    await session.run("same(1)")
    ((process, _),) = session._skills._open.values()
    closing = asyncio.ensure_future(session.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    assert not process.alive
