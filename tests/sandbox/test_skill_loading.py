"""A skill loads only if it is inert, and in little time."""

import builtins
import random

import pytest

from app.sandbox.child.skills import LoadEffects
from app.sandbox.forked_sandbox import ForkedSandbox
from app.sandbox.protocol import Function, RunStop, SessionLimits
from tests.support.skill_sessions import LIMITS, SAME, run_turns


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
    found = await sandbox.load_error(Function("f", source), LIMITS)
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


def _slow(levels: int) -> str:
    """A short function that takes seconds to compile: each block stands twice in the one around it."""
    indents = [" " * (4 + level) for level in range(levels)]
    blocks = [f"{indent}try:\n{indent} pass\n{indent}finally:\n" for indent in indents]
    return "def slow() -> None:\n" + "".join(blocks) + " " * (4 + levels) + "pass\n"


async def test_a_skill_that_takes_too_long_to_load_fails_its_call_and_the_session_lives(
    sandbox: ForkedSandbox,
) -> None:
    limits = SessionLimits(cpu_seconds=0.1, memory_bytes=1 << 30)
    code = "try:\n    slow()\nexcept RuntimeError as error:\n    print(error)\nprint(same(2))"
    (seen,) = await run_turns(sandbox, {"slow": _slow(17)} | SAME, code, limits=limits)
    assert (seen.stdout, seen.stop, seen.alive) == (
        "slow cannot be called: the code used more than 0.1 s of CPU time\n2\n",
        RunStop.OK,
        True,
    )


async def test_a_session_whose_cpu_time_ends_while_a_skill_loads_ends_as_for_any_code(
    sandbox: ForkedSandbox,
) -> None:
    limits = SessionLimits(cpu_seconds=5, session_cpu_seconds=0.2, memory_bytes=1 << 30)
    (seen,) = await run_turns(sandbox, {"slow": _slow(17)}, "slow()", limits=limits)
    assert (seen.stop, seen.alive) == (RunStop.CPU, False)
