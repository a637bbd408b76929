"""Cost of a sandbox session. Prints a table: python -m tests.bench.bench_sandbox"""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import perf_counter

from app.base.values import Json
from app.sandbox.forked_sandbox import ForkedSandbox
from app.sandbox.protocol import SessionLimits
from app.sandbox.session import ForkedSession

_LIVE = 50


async def _call(api: str, args: list[Json], kwargs: dict[str, Json], **_: object) -> Json:
    return [api, args, kwargs]


async def main() -> None:
    for bwrap in (False, True):
        async with ForkedSandbox(bwrap=bwrap) as sandbox:
            print(sandbox.describe())
            print(f"  cold start                         {await _seconds(_start, 1, bwrap) * 1e3:8.1f} ms")
            opened = await _seconds(_open_close, 100, sandbox)
            print(f"  open + close, one after another    {opened * 1e3:8.2f} ms")
            whole = await _seconds(_whole, 100, sandbox)
            print(f"  3 turns, 5 host calls              {whole * 1e3:8.2f} ms")
            started = perf_counter()
            await asyncio.gather(*(_in_turn(sandbox, 25) for _ in range(16)))
            print(f"  such sessions, 16 at once          {400 / (perf_counter() - started):8.0f} a second")
            session = await _open(sandbox)
            print(
                f"  trivial turn                       {await _seconds(session.run, 2000, 'x = 1') * 1e6:8.0f} µs"
            )
            calls = await session.run(
                "import time\nt = time.perf_counter()\nfor _ in range(2000): apis.t.echo(1)\n"
                "print((time.perf_counter() - t) / 2000)"
            )
            print(f"  host call                          {float(calls.stdout) * 1e6:8.0f} µs")
            await session.close()
            before, own = _cpu(), [await _open(sandbox) for _ in range(_LIVE)]
            for one in own:
                await one.run("import json\nx = [json.dumps({'a': i}) for i in range(100)]")
            inside = sum(one._process.fork.cpu_seconds() for one in own) / _LIVE
            print(f"  CPU of open + one turn: host       {(_cpu() - before) / _LIVE * 1e3:8.2f} ms")
            print(f"  CPU of open + one turn: session    {inside * 1e3:8.2f} ms")
            print(f"  Pss of a live session, {_LIVE} live     {_pss(own):8.2f} MB")


async def _seconds(what: Callable[..., Awaitable[object]], times: int, *args: object) -> float:
    started = perf_counter()
    for _ in range(times):
        await what(*args)
    return (perf_counter() - started) / times


async def _start(bwrap: bool) -> None:
    async with ForkedSandbox(bwrap=bwrap):
        pass


async def _open(sandbox: ForkedSandbox) -> ForkedSession:
    return await sandbox.open({"t": ["echo"]}, _call, SessionLimits(calls=10_000))


async def _open_close(sandbox: ForkedSandbox) -> None:
    await (await _open(sandbox)).close()


async def _whole(sandbox: ForkedSandbox) -> None:
    session = await _open(sandbox)
    await session.run("found = [apis.t.echo(i) for i in range(3)]\nprint(found)")
    await session.run("def last(n: int) -> list:\n    return apis.t.echo(n)\nprint(last(1), last(2))")
    await session.run("print(len(found))")
    await session.close()


async def _in_turn(sandbox: ForkedSandbox, times: int) -> None:
    for _ in range(times):
        await _whole(sandbox)


def _cpu() -> float:
    times = os.times()
    return times.user + times.system


def _pss(sessions: list[ForkedSession]) -> float:
    """Megabytes, on average; 0 where this user may not look."""
    total = 0
    for session in sessions:
        try:
            said = Path(f"/proc/{session._process.fork.pid}/smaps_rollup").read_text()
        except PermissionError:
            return 0.0
        total += sum(int(kilobytes) for kilobytes in re.findall(r"^Pss:\s+(\d+)", said, re.MULTILINE))
    return total / 1024 / len(sessions)


if __name__ == "__main__":
    asyncio.run(main())
