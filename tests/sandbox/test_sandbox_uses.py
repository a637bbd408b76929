"""Counts of calls and returns of functions: those of offered skills are the use signal of the reward."""

import pytest

from app.base.values import Json, Use
from app.sandbox.forked_sandbox import ForkedSandbox
from app.sandbox.protocol import Function, SessionLimits

_HALF = Function(
    "half",
    "import math\ndef half(n: int) -> int:\n    '''Half of n.'''\n"
    "    apis.t.echo(n)\n    return math.floor(6 / n)\n",
)
_PURE = Function("pure", "def pure(n: int) -> int:\n    return n\n")


async def _call(api: str, args: list[Json], kwargs: dict[str, Json], **_: object) -> Json:
    return [api, args, kwargs]


async def _uses(sandbox: ForkedSandbox, *turns: str) -> list[set[Use]]:
    session = await sandbox.open({"t": ["echo"]}, _call, SessionLimits(), prelude=[_HALF, _PURE])
    seen = [await session.run(turn) for turn in turns]
    await session.close()
    return [set(one.uses) for one in seen]


async def test_calls_and_returns_are_counted_per_turn(sandbox: ForkedSandbox) -> None:
    first, second, third = await _uses(
        sandbox, "def twice(n):\n    return half(n) * 2\ntwice(1); twice(2)", "half(3)\ntwice(0)", "x = half"
    )
    assert first == {Use("twice", False, 2, 2), Use("half", True, 2, 2)}
    assert second == {Use("twice", False, 1, 0), Use("half", True, 2, 1)}
    assert third == set()


async def test_a_call_of_a_skill_in_which_the_host_saw_no_api_call_does_not_count_as_returned(
    sandbox: ForkedSandbox,
) -> None:
    (seen,) = await _uses(sandbox, "print(pure(2), half(2))")
    assert seen == {Use("pure", True, 1, 0), Use("half", True, 1, 1)}


async def test_a_redefined_offered_function_is_the_agents_own_and_the_skill_it_calls_is_still_a_use(
    sandbox: ForkedSandbox,
) -> None:
    first, second = await _uses(
        sandbox, "half(1)\nold = half\ndef half(n):\n    return old(n)\nhalf(2)", "half(0)"
    )
    assert first == {Use("half", True, 2, 2), Use("half", False, 1, 1)}
    assert second == {Use("half", True, 1, 0), Use("half", False, 1, 0)}


async def test_a_definition_that_is_not_reached_changes_nothing(sandbox: ForkedSandbox) -> None:
    (seen,) = await _uses(sandbox, "if False:\n    def half(n): return 0\nhalf(1)")
    assert seen == {Use("half", True, 1, 1)}


@pytest.mark.parametrize(
    "forgery",
    [
        "half = lambda n: 1\nhalf(1)",
        "half.__code__ = (lambda n: 1).__code__\nhalf(1)",
        "half.__call__ = None\nhalf.__calls__ = 9",
        "def other(n): return 1\nother.__name__ = other.__qualname__ = 'half'\nother(1)",
        "exec('def half(n): return 1')\nhalf(1)",
        "class half:\n    def __init__(self, n): pass\nhalf(1)",
    ],
)
async def test_a_name_alone_is_not_a_use(forgery: str, sandbox: ForkedSandbox) -> None:
    (seen,) = await _uses(sandbox, forgery)
    assert not any(use.function == "half" and use.calls for use in seen)


async def test_recursion_generators_and_coroutines_are_counted(sandbox: ForkedSandbox) -> None:
    (seen,) = await _uses(
        sandbox,
        "import asyncio\ndef down(n):\n    return n if n == 0 else down(n - 1)\ndown(3)\n"
        "def numbers():\n    yield from range(3)\nlist(numbers())\nfor _ in numbers():\n    break\n"
        "async def wait(n):\n    await asyncio.sleep(0)\n    return 1 / n\n"
        "async def main():\n    return await asyncio.gather(wait(1), wait(0), return_exceptions=True)\n"
        "asyncio.run(main())",
    )
    assert seen == {
        Use("down", False, 4, 4),
        Use("numbers", False, 2, 2),
        Use("wait", False, 2, 1),
        Use("main", False, 1, 1),
    }


async def test_definitions_under_a_condition_count_and_methods_and_inner_functions_do_not(
    sandbox: ForkedSandbox,
) -> None:
    (seen,) = await _uses(
        sandbox,
        "try:\n    def a():\n        def inner(): return 1\n        return inner()\nfinally:\n    pass\n"
        "class C:\n    def method(self): return 2\na(); C().method(); (lambda: 3)()",
    )
    assert seen == {Use("a", False, 1, 1)}


async def test_counting_is_invisible_to_code(sandbox: ForkedSandbox) -> None:
    session = await sandbox.open({}, _call, SessionLimits(), prelude=[_HALF])
    seen = await session.run(
        "import inspect\nprint(half.__name__, half.__doc__, inspect.signature(half), half.__code__.co_varnames)\n"
        "print(inspect.getsource(half) == "
        + repr(_HALF.source.split("\n", 1)[1])
        + ", half.__code__.co_firstlineno)"
    )
    assert seen.stdout == "half Half of n. (n: int) -> int ('n',)\nTrue 2\n"
    await session.close()


async def test_a_function_stopped_by_the_cpu_limit_did_not_return(sandbox: ForkedSandbox) -> None:
    session = await sandbox.open({}, _call, SessionLimits(cpu_seconds=1))
    seen = await session.run("def spin():\n    while True: pass\nspin()")
    assert seen.uses == (Use("spin", False, 1, 0),)
    await session.close()
