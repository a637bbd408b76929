"""Sessions of the sandbox: calls, limits, isolation and determinism."""

import asyncio
import os
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from app.base.errors import HostError, SandboxError
from app.base.values import Json
from app.sandbox.forked_sandbox import ForkedSandbox
from app.sandbox.forks import find_bwrap
from app.sandbox.protocol import Function, Observation, RunStop, SessionLimits
from tests.support.every_row import every_row
from tests.support.processes import descendants, gone
from tests.support.zygote_limits import zygote_pid

_LIMITS = SessionLimits(cpu_seconds=0.5, wall_seconds=30, calls=5, output_chars=1000, frame_bytes=1 << 16)
_APIS = {"mail": ["send", "search"], "api_docs": ["show_api_descriptions", "show_app_descriptions"]}


async def _call(api: str, args: list[Json], kwargs: dict[str, Json], **_: object) -> Json:
    if api == "mail.send":
        raise HostError("ApiError", "no such address")
    if kwargs.get("wait"):
        await asyncio.sleep(60)
    return {"api": api, "args": args, "kwargs": kwargs}


async def _run(
    sandbox: ForkedSandbox, *turns: str, limits: SessionLimits = _LIMITS, **options: Any
) -> list[Observation]:
    session = await sandbox.open(_APIS, _call, limits, **options)
    try:
        return [await session.run(turn) for turn in turns]
    finally:
        await session.close()


async def test_a_call_reaches_the_host_with_its_arguments_and_returns_the_answer(sandbox: ForkedSandbox) -> None:
    (seen,) = await _run(sandbox, "print(apis.mail.search('iris', limit=(1, None)))")
    assert seen.stdout == "{'api': 'mail.search', 'args': ['iris'], 'kwargs': {'limit': [1, None]}}\n"
    assert (seen.calls, seen.stop, seen.alive) == (1, RunStop.OK, True)


async def test_a_host_error_is_an_exception_of_that_name(sandbox: ForkedSandbox) -> None:
    code = "try:\n    apis.mail.send()\nexcept Exception as e:\n    print(type(e).__name__, e)\napis.mail.send()"
    (seen,) = await _run(sandbox, code)
    assert seen.stdout == "ApiError no such address\n"
    assert seen.error is not None
    assert seen.error.endswith("    apis.mail.send()\nApiError: no such address")


async def test_output_names_no_directory_of_the_host(sandbox: ForkedSandbox) -> None:
    codes = {
        "interrupted finalizer": "class D:\n    def __del__(self):\n        while True: pass\nd = D()\ndel d",
        "failed finalizer": "class D:\n    def __del__(self):\n        apis.mail.send()\nd = D()\ndel d",
        "printed traceback": "import traceback\ntry: apis.mail.send()\nexcept Exception: traceback.print_exc()",
        "printed stack": "import traceback\ntraceback.print_stack()",
        "warning": "import warnings\nwarnings.simplefilter('always')\nwarnings.warn('old', stacklevel=9)",
        "module": "import json\nprint(json, json.__file__)",
    }
    with every_row() as row:
        for name, code in codes.items():
            with row(name):
                (seen,) = await _run(sandbox, code)
                assert seen.stdout
                said = seen.stdout + (seen.error or "")
                assert str(Path(__file__).parents[2]) not in said
                assert str(Path(os.__file__).parent) not in said
    (seen,) = await _run(sandbox, codes["interrupted finalizer"])
    assert seen.stdout.startswith("Exception ignored in: D.__del__\nTraceback (most recent call last):\n")
    assert "in __del__" in seen.stdout
    assert "_on_timer" not in seen.stdout


async def test_dir_lists_apps_and_operations(sandbox: ForkedSandbox) -> None:
    (seen,) = await _run(sandbox, "print(dir(apis), dir(apis.mail), apis.mail.send)")
    assert seen.stdout == "['api_docs', 'mail'] ['search', 'send'] apis.mail.send\n"


async def test_type_errors_name_apps_and_operations(sandbox: ForkedSandbox) -> None:
    app, operation = await _run(sandbox, "apis.mail()", "apis.mail.send[0]")
    assert (app.error or "").endswith("TypeError: 'App' object is not callable")
    assert (operation.error or "").endswith("TypeError: 'Operation' object is not subscriptable")


async def test_a_traceback_shows_the_agents_lines_and_no_frame_of_ours(sandbox: ForkedSandbox) -> None:
    prelude = [Function("half", "def half(n: int) -> int:\n    return n // 0\n")]
    first, second = await _run(sandbox, "def f():\n    return half(4)", "f()", prelude=prelude)
    assert first.error is None
    assert second.error == (
        'Traceback (most recent call last):\n  File "<turn 2>", line 1, in <module>\n    f()\n'
        '  File "<turn 1>", line 2, in f\n    return half(4)\n           ^^^^^^^\n'
        '  File "<skill half>", line 2, in half\n    return n // 0\n           ~~^^~~\n'
        "ZeroDivisionError: integer division or modulo by zero"
    )


async def test_a_traceback_through_the_standard_library_contains_no_path_of_this_machine(
    sandbox: ForkedSandbox,
) -> None:
    (seen,) = await _run(sandbox, "import json\njson.loads('{')")
    assert 'File "json/decoder.py", line' in (seen.error or "")
    assert os.sep + "lib" not in (seen.error or "")


async def test_the_soft_cpu_limit_raises_and_keeps_the_state(sandbox: ForkedSandbox) -> None:
    first, second = await _run(sandbox, "kept = 1\nwhile True: pass", "print(kept)")
    assert (first.stop, first.alive) == (RunStop.CPU, True)
    assert (first.error or "").endswith("TimeoutError: the code used more than 0.5 s of CPU time")
    assert second.stdout == "1\n"


async def test_uninterruptible_code_is_killed_at_twice_the_limit(sandbox: ForkedSandbox) -> None:
    session = await sandbox.open(_APIS, _call, _LIMITS)
    seen = await session.run("print('begun')\nsum(range(10**11))")
    assert (seen.stdout, seen.stop, seen.alive) == ("begun\n", RunStop.CPU, False)
    assert 1000 <= seen.cpu_ms < 10_000  # it would compute for minutes
    with pytest.raises(SandboxError, match="open a new one"):
        await session.run("1")


async def test_an_exception_whose_text_never_comes_is_shown_without_it(sandbox: ForkedSandbox) -> None:
    code = "class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E"
    (seen,) = await _run(sandbox, code, limits=SessionLimits(cpu_seconds=0.2))
    assert (seen.stop, seen.alive) == (RunStop.ERROR, True)
    assert (seen.error or "").endswith("E: <exception str() failed>")


async def test_the_wall_limit_ends_a_run_that_waits_for_the_host(sandbox: ForkedSandbox) -> None:
    limits = SessionLimits(wall_seconds=3)
    (seen,) = await _run(sandbox, "print('before')\napis.mail.search(wait=True)", limits=limits)
    assert (seen.stdout, seen.stop, seen.alive, seen.calls) == ("before\n", RunStop.WALL, False, 1)


async def test_exhausted_memory_is_an_error_and_the_session_survives(sandbox: ForkedSandbox) -> None:
    limits = SessionLimits(memory_bytes=64 << 20)
    fits, bursts, after = await _run(
        sandbox, "x = bytearray(40 << 20)\ndel x", "x = bytearray(80 << 20)", "print('on')", limits=limits
    )
    assert fits.error is None
    assert (bursts.stop, bursts.alive) == (RunStop.MEMORY, True)
    assert after.stdout == "on\n"


async def test_calls_beyond_the_budget_raise_and_the_session_survives(sandbox: ForkedSandbox) -> None:
    within, beyond, after = await _run(
        sandbox, "for _ in range(5): apis.mail.search()", "apis.mail.search()", "print('on')"
    )
    assert (within.stop, within.calls) == (RunStop.OK, 5)
    assert (beyond.stop, beyond.calls, beyond.alive) == (RunStop.CALLS, 0, True)
    assert "the budget of 5 API calls is spent" in (beyond.error or "")
    assert after.stdout == "on\n"


async def test_output_is_truncated_at_the_limit_with_a_notice(sandbox: ForkedSandbox) -> None:
    cut, whole = await _run(sandbox, "for i in range(2000): print('0123456789')", "print('z' * 999)")
    assert cut.stdout == ("0123456789\n" * 91)[:1000] + "\n[output cut after 1,000 characters]\n"
    assert whole.stdout == "z" * 999 + "\n"


async def test_a_second_run_at_the_same_time_is_refused(sandbox: ForkedSandbox) -> None:
    session = await sandbox.open(_APIS, _call, _LIMITS)
    first = asyncio.create_task(session.run("import time\ntime.sleep(0.2)\nprint('first')"))
    await asyncio.sleep(0)  # it begins
    with pytest.raises(SandboxError, match="one run at a time"):
        await session.run("1")
    assert (await first).stdout == "first\n"
    await session.close()


async def test_a_cancelled_run_leaves_no_process_behind(sandbox: ForkedSandbox) -> None:
    session = await sandbox.open(_APIS, _call, _LIMITS)
    run = asyncio.create_task(session.run("import time\ntime.sleep(60)"))
    await asyncio.sleep(0.05)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert not session.alive


@pytest.mark.parametrize("code", ["apis.mail.search()", "search()"])
@pytest.mark.parametrize("failure", [TimeoutError, ConnectionRefusedError, EOFError])
async def test_a_failure_of_the_host_itself_is_raised_to_the_caller(
    failure: type[Exception], code: str, sandbox: ForkedSandbox
) -> None:
    async def broken(api: str, args: list[Json], kwargs: dict[str, Json], **_: object) -> Json:
        raise failure(f"{api} {args} {kwargs}")

    search = Function("search", "def search() -> int:\n    return apis.mail.search()\n")
    session = await sandbox.open(_APIS, broken, _LIMITS, prelude=[search])
    with pytest.raises(failure, match=r"mail\.search"):
        await session.run(code)
    assert not session.alive


async def test_random_numbers_repeat_with_a_seed_and_differ_without(sandbox: ForkedSandbox) -> None:
    code = "import random, uuid, secrets\nprint(random.random(), uuid.uuid4(), secrets.token_hex(4))"
    seeded = [(await _run(sandbox, code, seed=7))[0].stdout for _ in range(2)]
    free = [(await _run(sandbox, code))[0].stdout for _ in range(2)]
    assert seeded[0] == seeded[1]
    assert len({*seeded, *free}) == 3


async def test_string_hashes_are_the_same_in_every_sandbox(sandbox: ForkedSandbox) -> None:
    (here,) = await _run(sandbox, "print(hash('iris'), list({'a', 'b', 'c'}))")
    async with ForkedSandbox(bwrap=False) as other:
        (there,) = await _run(other, "print(hash('iris'), list({'a', 'b', 'c'}))")
    assert here.stdout == there.stdout


async def test_a_prelude_function_that_does_not_load_is_named(sandbox: ForkedSandbox) -> None:
    with pytest.raises(SandboxError, match="'broken' does not load: SyntaxError"):
        await _run(sandbox, prelude=[Function("broken", "def broken(:\n")])
    with pytest.raises(SandboxError, match="does not define 'missing'"):
        await _run(sandbox, prelude=[Function("missing", "import json\n")])


async def test_a_session_that_is_not_ready_in_time_is_an_error_that_says_so(sandbox: ForkedSandbox) -> None:
    with pytest.raises(SandboxError, match="could not be prepared: it took too long"):
        await sandbox.open(_APIS, _call, SessionLimits(wall_seconds=0))


async def test_a_sandbox_that_was_closed_opens_no_session() -> None:
    async with ForkedSandbox(bwrap=False) as sandbox:
        pass
    with pytest.raises(SandboxError, match="not started"):
        await sandbox.open(_APIS, _call, _LIMITS)
    assert sandbox._zygote is None


async def test_a_dead_zygote_is_replaced_at_the_next_open() -> None:
    async with ForkedSandbox() as sandbox:
        session = await sandbox.open(_APIS, _call, _LIMITS)
        zygote = zygote_pid(sandbox)
        sessions = descendants(zygote)
        os.kill(zygote, signal.SIGKILL)
        await gone([zygote, *sessions])  # what it started is killed by the kernel, a little later
        assert (await session.run("print(1)")).stop == RunStop.CRASH
        (seen,) = await _run(sandbox, "print('again')")
        assert seen.stdout == "again\n"


async def test_64_sessions_live_at_once(sandbox: ForkedSandbox) -> None:
    sessions = await asyncio.gather(*(sandbox.open(_APIS, _call, _LIMITS) for _ in range(64)))
    seen = await asyncio.gather(*(session.run(f"x = {n}\nprint(x)") for n, session in enumerate(sessions)))
    assert [one.stdout for one in seen] == [f"{n}\n" for n in range(64)]
    await asyncio.gather(*(session.close() for session in sessions))


async def test_describe_lists_the_layers_of_confinement() -> None:
    async with ForkedSandbox(bwrap=False) as plain:
        assert "seccomp" in plain.describe()
        assert "without bubblewrap (switched off)" in plain.describe()


async def test_a_broken_bubblewrap_is_disabled_and_the_reason_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\necho 'bwrap: no permission to create namespaces' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    async with ForkedSandbox() as sandbox:
        assert "without bubblewrap (the sandbox did not start: bwrap: no permission" in sandbox.describe()
        assert (await _run(sandbox, "print(1)"))[0].stdout == "1\n"


async def test_bubblewrap_hides_other_processes_where_it_is_installed(sandbox: ForkedSandbox) -> None:
    (seen,) = await _run(sandbox, "import os\nprint(os.getppid())")
    inside = find_bwrap() is not None and "in bubblewrap" in sandbox.describe()
    assert (int(seen.stdout) in descendants(os.getpid())) != inside  # the warm interpreter, by its number out here


async def test_only_sleep_advances_a_frozen_clock(sandbox: ForkedSandbox) -> None:
    now = datetime(2023, 5, 18, 12, 30, 1, 250_000, tzinfo=UTC)
    (seen,) = await _run(
        sandbox,
        "import time, datetime as dt\nfrom datetime import datetime, date, timezone\n"
        "print(datetime.now(), repr(datetime.utcnow()), datetime.today() == datetime.now(), date.today())\n"
        "print(datetime.now(timezone(dt.timedelta(hours=2))), datetime.now().astimezone(timezone.utc))\n"
        "t = time.time(), time.monotonic()\ntime.sleep(3600.5)\n"
        "print(time.time() - t[0], time.monotonic() - t[1], datetime.now(), time.strftime('%H:%M'))\n"
        "class D(datetime): pass\nprint(type(D.now()).__name__, isinstance(datetime.now(), dt.datetime))",
        now=now,
    )
    assert seen.stdout == (
        "2023-05-18 12:30:01.250000 datetime.datetime(2023, 5, 18, 12, 30, 1, 250000) True 2023-05-18\n"
        "2023-05-18 14:30:01.250000+02:00 2023-05-18 12:30:01.250000+00:00\n"
        "3600.5 3600.5 2023-05-18 13:30:01.750000 13:30\n"
        "D True\n"
    )


async def test_a_frozen_clock_makes_asyncio_sleep_instantly(sandbox: ForkedSandbox) -> None:
    code = (
        "import asyncio, time\nasync def f(n):\n    await asyncio.sleep(n)\n    print(n)\n"
        "async def m(): await asyncio.gather(f(3000), f(1000))\n"
        "t = time.time()\nasyncio.run(m())\nprint(round(time.time() - t))"
    )
    (seen,) = await _run(sandbox, code, now=datetime(2023, 5, 18, tzinfo=UTC))
    assert seen.stdout == "1000\n3000\n3000\n"


async def test_without_now_the_clock_is_real(sandbox: ForkedSandbox) -> None:
    (seen,) = await _run(
        sandbox, "from datetime import datetime, timezone\nprint(datetime.now(timezone.utc).timestamp())"
    )
    assert abs(float(seen.stdout) - datetime.now(UTC).timestamp()) < 30
