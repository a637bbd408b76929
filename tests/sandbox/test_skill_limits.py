"""A session and its skills share the limits of output, calls, CPU time, memory and time."""

from app.sandbox.forked_sandbox import ForkedSandbox
from app.sandbox.protocol import RunStop, SessionLimits
from tests.support.lateness import lateness
from tests.support.skill_sessions import run_turns


async def test_output_of_the_skill_comes_in_order_and_counts_towards_the_limit(sandbox: ForkedSandbox) -> None:
    skills = {"say": "def say(n: int) -> None:\n    print('s' * n)\n"}
    ordered, cut = await run_turns(
        sandbox, skills, "print('a')\nsay(2)\nprint('b')\nsay(3)", "say(120)\nsay(120)\nprint('lost')"
    )
    assert ordered.stdout == "a\nss\nb\nsss\n"
    assert cut.stdout == "s" * 120 + "\n" + "s" * 79 + "\n[output cut after 200 characters]\n"


async def test_the_call_budget_is_shared(sandbox: ForkedSandbox) -> None:
    skills = {"ask": "def ask(n: int) -> int:\n    return [apis.t.echo(i) for i in range(n)][-1]\n"}
    (seen,) = await run_turns(sandbox, skills, "apis.t.echo(1)\nprint(ask(8))\nask(2)")
    assert (seen.stdout, seen.stop, seen.calls, seen.alive) == ("7\n", RunStop.CALLS, 10, True)
    assert "the budget of 10 API calls is spent" in (seen.error or "")


async def test_the_cpu_limit_is_shared_and_interrupts_the_skill(sandbox: ForkedSandbox) -> None:
    skills = {"spin": "def spin() -> None:\n    while True: pass\n"}
    async with lateness() as late:
        (seen, after) = await run_turns(sandbox, skills, "for _ in range(3 * 10**6): pass\nspin()", "print('on')")
    assert (seen.stop, seen.alive, after.stdout) == (RunStop.CPU, True, "on\n")
    assert (seen.error or "").endswith("TimeoutError: the code used more than 0.5 s of CPU time")
    assert '  File "<skill spin>", line 2, in spin' in (seen.error or "")
    assert seen.cpu_ms < 900 + 1_000 * late.seconds


async def test_a_skill_that_cannot_be_interrupted_is_killed_and_the_session_lives(sandbox: ForkedSandbox) -> None:
    skills = {"long": "def long(n: int) -> int:\n    return sum(range(10**n))\n"}
    seen, after = await run_turns(sandbox, skills, "kept = 1\nlong(11)", "print(kept, long(2))")
    assert (seen.stop, seen.alive) == (RunStop.CPU, True)
    assert (seen.error or "").endswith("TimeoutError: the code used more than 0.5 s of CPU time")
    assert after.stdout == "1 4950\n"


async def test_exhausted_memory_is_a_memory_error_of_the_call(sandbox: ForkedSandbox) -> None:
    skills = {"fill": "def fill(n: int) -> int:\n    return len(bytearray(n << 20))\n"}
    limits = SessionLimits(memory_bytes=64 << 20)
    (seen, after) = await run_turns(sandbox, skills, "fill(80)", "print(fill(1))", limits=limits)
    assert (seen.stop, seen.alive, after.stdout) == (RunStop.MEMORY, True, "1048576\n")


async def test_the_wall_limit_ends_the_session_as_for_any_code(sandbox: ForkedSandbox) -> None:
    skills = {"wait": "import time\ndef wait() -> None:\n    time.sleep(9)\n"}
    (seen,) = await run_turns(sandbox, skills, "wait()", limits=SessionLimits(wall_seconds=3))
    assert (seen.stop, seen.alive) == (RunStop.WALL, False)


async def test_the_second_skill_that_cannot_be_interrupted_ends_the_session(sandbox: ForkedSandbox) -> None:
    skills = {"long": "def long() -> int:\n    return sum(range(10**11))\n"}
    code = "for _ in range(99):\n    try:\n        long()\n    except TimeoutError:\n        pass"
    async with lateness() as late:
        (seen,) = await run_turns(sandbox, skills, code, limits=SessionLimits(cpu_seconds=0.2))
    assert (seen.stop, seen.alive) == (RunStop.CPU, False)
    assert seen.cpu_ms < 4 * 200 + 2 * 1_000 * late.seconds  # each of two is killed late


async def test_a_session_that_computes_beside_its_skill_gets_no_more_cpu_time(sandbox: ForkedSandbox) -> None:
    skills = {"long": "def long() -> int:\n    return sum(range(10**11))\n"}
    code = (
        "import signal\nsignal.signal(signal.SIGALRM, lambda *_: sum(range(10**11)))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.05)\nlong()"
    )
    async with lateness() as late:
        (seen,) = await run_turns(sandbox, skills, code, limits=SessionLimits(cpu_seconds=0.5))
    assert (seen.stop, seen.alive) == (RunStop.CPU, False)
    assert seen.cpu_ms < 3.5 * 500 + 2 * 1_000 * late.seconds  # two processes compute
