"""Second round of attacks: by skills on sessions and the reverse, and by what a turn leaves behind.

A hostile text prints ESCAPED where it reached something. Calls of APIs say who makes them: `own` or `skill`.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from time import monotonic

import msgspec
import pytest_asyncio

from app.base.values import Json
from app.sandbox.forked_sandbox import ForkedSandbox
from app.sandbox.protocol import EnteredSkill, Function, Observation, RunStop, SessionLimits
from tests.support.every_row import every_row
from tests.support.lateness import lateness

_LIMITS = SessionLimits(cpu_seconds=0.4, wall_seconds=20, calls=30, output_chars=5_000, frame_bytes=1 << 18)
_APIS = {"t": ["echo"]}
_SECRET = "key = 'launch-code-4711'\n"
_CHANNEL = "    c = apis.t.echo._channel\n"
_QUIET = "try:\n    print(f())\nexcept BaseException as e:\n    print(type(e).__name__, str(e)[:80])\nprint('on')"


def _skill(*lines: str) -> str:
    return "import gc, os, signal, sys\ndef f(*args, **more):\n" + "".join(f"    {line}\n" for line in lines)


def _forged(*lines: str) -> str:
    return (
        "import gc, os, signal, sys\ndef f(*args, **more):\n"
        + _CHANNEL
        + "".join(f"    {each}\n" for each in lines)
    )


BY_SKILLS = {
    "returns twice": _forged("c.send('returned', 1, 0)", "return 2"),
    "returns and goes on": _forged("c.send('returned', 1, 0)", "while True: pass"),
    "ends the session": _forged("c.send('done', 'ok', None, [])"),
    "says it is ready": _forged("c.send('ready')"),
    "says it is loaded": _forged("c.send('loaded', [])"),
    "says it failed to load": _forged("c.send('failed', 'x')"),
    "calls a skill": _forged("c.send('skill', 'f', [], {}, 0)"),
    "claims uses": _forged("c.send('done', 'ok', None, [['f', 9, 9]])"),
    "an unknown message": _forged("c.send('exec', 'x')"),
    "a message of another run": _forged("c.run = 'x'", "apis.t.echo('skill')"),
    "a call of an unknown API": _forged("c.send('call', 'os.system', ['id'], {})", "print(c.receive())"),
    "a call under the name of the session": _forged("c.send('call', 't.echo', ['skill own'], {})", "c.receive()"),
    "calls without waiting": _forged("for _ in range(500): c.send('call', 't.echo', ['skill'], {})"),
    "sleeps backwards": _forged("c.send('returned', 1, -5)"),
    "sleeps for ever": _forged("c.send('returned', 1, 1 << 62)"),
    "sleeps too long": _forged("c.send('returned', 1, 1 << 63)"),
    "raises without a chain": _forged("c.send('raised', 'E: x', [], 'error', 0)"),
    "raises an empty chain link": _forged("c.send('raised', 'E: x', [{}], 'error', 0)"),
    "raises an unknown stop": _forged("c.send('raised', 'E: x', [], 'ok', 0)"),
    "raises numbers": _forged("c.send('raised', 'E: x', [1, 2], 'error', 0)"),
    "raises SystemExit": _skill("raise SystemExit('x')"),
    "raises GeneratorExit": _skill("raise GeneratorExit"),
    "raises KeyboardInterrupt": _skill("raise KeyboardInterrupt"),
    "raises a cycle": _skill(
        "a, b = ValueError(1), ValueError(2)", "a.__cause__ = b", "b.__cause__ = a", "raise a"
    ),
    "raises itself as its cause": _skill("a = ValueError(1)", "a.__cause__ = a", "raise a"),
    "raises 10,000 causes": _skill(
        "e = None",
        "for n in range(10000):",
        "    x = ValueError(n)",
        "    x.__cause__ = e",
        "    e = x",
        "raise e",
    ),
    "raises a hostile text": _skill("class E(Exception):", "    def __str__(self): os._exit(0)", "raise E"),
    "raises an endless text": _skill(
        "class E(Exception):", "    def __str__(self):", "        while True: pass", "raise E"
    ),
    "raises a text that is none": _skill("class E(Exception):", "    def __str__(self): return 5", "raise E"),
    "raises a subclass of str": _skill(
        "class S(str):", "    def __getitem__(self, _): return 'x' * 10**7", "raise ValueError(S('x'))"
    ),
    "raises hostile fields": _skill("e = ValueError(1)", "e.__dict__['__class__'] = 5", "raise e"),
    "raises a hostile class name": _skill("raise type('x\\n' * 100 + 'ESCAPED'.lower(), (Exception,), {})('x')"),
    "raises from deep recursion": _skill("def g(n): return g(n + 1)", "return g(0)"),
    "returns a cycle": _skill("a = []", "a.append(a)", "return a"),
    "returns a deep value": _skill("a = []", "for _ in range(10**5): a = [a]", "return a"),
    "returns a huge value": _skill("return 'x' * 30_000_000"),
    "returns many values": _skill("return [0] * 3_000_000"),
    "returns itself": _skill("return f"),
    "returns a class": _skill("return type('A', (), {})()"),
    "returns a hostile int": _skill(
        "class I(int):", "    def __repr__(self): return '1], 0], [\"done\"'", "return I(5)"
    ),
    "returns a hostile dict": _skill(
        "class D(dict):", "    def items(self):", "        while True: pass", "return D(a=1)"
    ),
    "returns a tagged value": _skill("return {'$': 'tuple', 'v': [1]}"),
    "forges an unknown kind": _forged("c.send('returned', {'$': 'exec', 'v': 'x'}, 0)"),
    "forges a kind that is none": _forged("c.send('returned', {'$': [], 'v': 'x'}, 0)"),
    "forges an enormous range": _forged("c.send('returned', {'$': 'range', 'v': [0, 10**300, 1]}, 0)"),
    "forges an enormous Decimal": _forged("c.send('returned', {'$': 'Decimal', 'v': '9e999999999'}, 0)"),
    "forges a set of lists": _forged("c.send('returned', {'$': 'set', 'v': [[1]]}, 0)"),
    "forges a zone that is a path": _forged(
        "c.send('returned', {'$': 'datetime', 'v': ['2020-01-01', '../../etc/passwd', 0]}, 0)"
    ),
    "forges a proxy's class": _forged("c.send('returned', {'$': 'apis', 'v': 't.__class__'}, 0)"),
    "forges a proxy's channel": _forged("c.send('returned', {'$': 'apis', 'v': 't.echo._channel.send'}, 0)"),
    "forges a proxy's globals": _forged(
        "c.send('returned', {'$': 'apis', 'v': '__class__.__init__.__globals__'}, 0)"
    ),
    "forges a proxy that is none": _forged("c.send('returned', {'$': 'apis', 'v': 5}, 0)"),
    "floods the output": _skill("while True: print('x' * 1000)"),
    "floods the socket": _forged("while True: c.send('out', 'x' * 100)"),
    "writes half a message": _skill("os.write(3, b'\\0\\0')", "os._exit(0)"),
    "writes a huge length": _skill("os.write(3, b'\\xff\\xff\\xff\\xff')"),
    "writes no JSON": _skill("os.write(3, b'\\0\\0\\0\\3abc')"),
    "closes the socket": _skill("os.close(3)", "return 1"),
    "kills everybody": _skill("for pid in (-1, 0, 1, os.getppid()): os.kill(pid, 9)"),
    "stops its parent": _skill("os.kill(os.getppid(), signal.SIGSTOP)"),
    "forks": _skill("os.fork()"),
    "reads the memory of its parent": _skill("print('ESCAPED', open(f'/proc/{os.getppid()}/maps').read())"),
    "reads its environment": _skill("print('ESCAPED' if open('/proc/self/environ').read() else '')"),
    "lists files": _skill("print('ESCAPED', os.listdir('/proc'))"),
    "opens a socket": _skill("import socket", "socket.socket()", "print('ESCAPED')"),
    "looks for the session's variables": _skill(
        "for o in gc.get_objects():",
        "    if isinstance(o, dict) and 'launch-code' in str(o.get('key')): print('ESCAPED')",
    ),
    "exhausts the memory": _skill("a = []", "while True: a.append(bytearray(1 << 20))"),
    "exhausts descriptors": _skill("while True: os.dup(3)"),
    "cannot be interrupted": _skill("return sum(range(10**12))"),
    "catches every interruption": _skill(
        "while True:", "    try:", "        while True: pass", "    except BaseException: pass"
    ),
    "spends the budget of calls": _skill(
        "while True:", "    try: apis.t.echo('skill')", "    except Exception: pass"
    ),
    "leaves a signal handler": _skill(
        "def left(_, frame):",  # on a slow machine the timer goes off while the skill still runs, as it may
        "    while frame and frame.f_code.co_name != 'f': frame = frame.f_back",
        "    if frame is None: print('ESCAPED')",
        "signal.signal(signal.SIGALRM, left)",
        "signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)",
    ),
    "leaves a finalizer": _skill(
        "class A:", "    def __del__(self): os._exit(0)", "f.kept = A()", "f.kept = None"
    ),
    "leaves a gc callback": _skill("gc.callbacks.append(lambda *_: os._exit(0))", "gc.collect()"),
    "replaces the standard output": _skill("sys.stdout = None", "return 1"),
    "replaces builtins": _skill("import builtins", "builtins.len = builtins.list = None", "return 1"),
    "replaces the encoder": _skill("import json", "json.loads = json.dumps = lambda *_: os._exit(0)", "return 1"),
}
_HONEST = "def f(*args, **more):\n    return apis.t.echo('skill')\n"
_FORGE = "c = apis.t.echo._channel\n"
BY_SESSIONS = {
    "calls an unknown skill": [f"{_FORGE}c.send('skill', 'g', [], {{}}, 0)\nprint(c.receive())"],
    "calls a skill without waiting": [f"{_FORGE}for _ in range(60): c.send('skill', 'f', [], {{}}, 0)"],
    "forges that a skill returned": [f"{_FORGE}c.send('returned', 1, 0)"],
    "forges uses of a skill": [f"{_FORGE}c.send('done', 'ok', None, [['f', 1000000, 1000000]])"],
    "defines a function of the skill's name": ["def f(): return 1\nfor _ in range(50): f()"],
    "tampers with the stub": ["f.__code__ = (lambda *a, **k: 'own').__code__\nprint(f())"],
    "copies the stub": ["g = type(f)(f.__code__, {})\nprint(g())"],
    "passes itself": ["print(f(f))"],
    "passes a cycle": ["a = []\na.append(a)\nf(a)"],
    "passes a deep value": ["a = []\nfor _ in range(10**5): a = [a]\nf(a)"],
    "passes a huge value": ["f('x' * 30_000_000)"],
    "passes names of internals": [
        "print(f(**{n: 1 for n in ('self', 'args', 'kwargs', 'name', 'skill', 'names')}))"
    ],
    "passes thousands of names": ["for _ in range(9): f(**{f'name{n}': 'x' * 40 for n in range(4000)})"],
    "passes a hostile name": ["print(f(**{'a\\n$': 1, '': 2, '$': {'$': 'x'}}))"],
    "passes half a surrogate pair": ["print(f('\\ud800'))"],
    "passes a forged kind": [
        f"{_FORGE}c.send('skill', 'f', [{{'$': 'apis', 'v': '__class__'}}], {{}}, 0)\nc.receive()"
    ],
    "claims to have slept": [f"{_FORGE}c.send('skill', 'f', [], {{}}, 1 << 62)\nc.receive()"],
    "ends twice": [f"{_FORGE}c.send('done', 'ok', None, [])\nc.send('done', 'ok', None, [])", "print('two')"],
    "leaves a timer that answers": [
        f"{_FORGE}import signal\ndef later(*_): c.send('done', 'ok', 'x', [])\n"
        "signal.signal(signal.SIGALRM, later)\nsignal.setitimer(signal.ITIMER_REAL, 0.05)",
        "import time\nx = time.time\nwhile True: pass",
    ],
    "leaves a generator": ["def g():\n    try: yield\n    finally: f()\nx = g()\nnext(x)", "del x"],
    "leaves a finalizer that calls": ["class A:\n    def __del__(self): f()\na = A()", "del a"],
    "leaves a weak reference that calls": [
        "import weakref\nclass A: pass\na = A()\nw = weakref.finalize(a, lambda: apis.t.echo('own'))",
        "del a",
    ],
    "leaves a gc callback that calls": ["import gc\ngc.callbacks.append(lambda *_: f())", "gc.collect()"],
    "leaves a trace function": ["import sys\nsys.settrace(lambda *_: f())", "def g(): pass\ng()"],
    "leaves an exit handler": ["import atexit\natexit.register(f)", "raise SystemExit"],
}


class Contained(msgspec.Struct, frozen=True):
    """What came of one attack."""

    observations: list[Observation]
    calls: list[tuple[str, str]]  # (what the call said, whose it was)
    seconds: float
    late: float = 0.0  # how many seconds this process, which kills what computes for too long, was late at most


class _Recorder:
    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    async def __call__(
        self, api: str, args: list[Json], kwargs: dict[str, Json], *, skill: EnteredSkill | None = None
    ) -> Json:
        assert (api, kwargs) == ("t.echo", {})
        self.seen.append((str(args[0]), skill.name if skill else ""))
        return args[0]


async def _attack(sandbox: ForkedSandbox, source: str, turns: list[str], gate: asyncio.Semaphore) -> Contained:
    async with gate, lateness() as late:
        host, started = _Recorder(), monotonic()
        session = await sandbox.open(_APIS, host, _LIMITS, prelude=[Function("f", source)])
        observations = []
        for turn in [_SECRET, *turns]:
            if session.alive:
                observations.append(await session.run(turn))
        await session.close()
        return Contained(observations, host.seen, monotonic() - started, late.seconds)


@pytest_asyncio.fixture(scope="module")
async def contained() -> AsyncIterator[dict[str, Contained]]:
    """All attacks, some at a time, beside a session that does nothing wrong."""
    attacks = {name: (source, [_QUIET, _QUIET]) for name, source in BY_SKILLS.items()}
    attacks |= {name: (_HONEST, turns) for name, turns in BY_SESSIONS.items()}
    gate = asyncio.Semaphore(4)
    async with ForkedSandbox(bwrap=False) as sandbox:
        sibling = await sandbox.open(_APIS, _Recorder(), _LIMITS, prelude=[Function("f", _HONEST)])
        await sibling.run("kept = f()")
        done = await asyncio.gather(*(_attack(sandbox, *attack, gate) for attack in attacks.values()))
        found = dict(zip(attacks, done, strict=True))
        found["the sibling"] = Contained([await sibling.run("print(kept, f())")], [], 0.0)
        await sibling.close()
    yield found


def _check(outcome: Contained) -> None:
    shown = [(str(each.stop), each.stdout[-300:], each.error) for each in outcome.observations]
    assert not any("ESCAPED" in each.stdout for each in outcome.observations), shown
    assert all(len(each.stdout) <= _LIMITS.output_chars + 200 for each in outcome.observations)
    assert all(
        each.cpu_ms < 3_000 * _LIMITS.cpu_seconds + 1_000 * outcome.late for each in outcome.observations
    ), shown
    assert all(("skill" in said) == bool(whose) for said, whose in outcome.calls), outcome.calls
    assert len(outcome.calls) <= _LIMITS.calls
    for each in outcome.observations:
        assert all(len(call.arguments) <= 50 for call in each.skill_calls), "records stay small"
        counted = Counter(call.name for call in each.skill_calls)
        assert all(use.calls <= counted[use.function] for use in each.uses if use.inherited), shown


async def test_a_hostile_skill_is_contained(contained: dict[str, Contained]) -> None:
    with every_row() as row:
        for name in BY_SKILLS:
            with row(name):
                _check(contained[name])
                last = contained[name].observations[-1]
                assert last.alive or last.stop in (RunStop.CALLS, RunStop.WALL), (
                    last.error
                )  # calls and output are budgets of the whole turn
                spent = len(last.stdout) >= _LIMITS.output_chars or last.stop in (
                    RunStop.CPU,
                    RunStop.CALLS,
                    RunStop.WALL,
                )
                assert last.stdout.endswith("on\n") or spent, last
                if name.startswith("forges a proxy"):
                    assert contained[name].observations[1].stdout.startswith("ValueError"), (
                        "nothing of the session's process was handed over"
                    )


async def test_a_hostile_session_is_contained(contained: dict[str, Contained]) -> None:
    with every_row() as row:
        for name in BY_SESSIONS:
            with row(name):
                _check(contained[name])


async def test_a_sibling_keeps_its_state_and_its_skill(contained: dict[str, Contained]) -> None:
    assert contained["the sibling"].observations[0].stdout == "skill skill\n"
