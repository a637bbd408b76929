"""Hostile code is contained: it reaches nothing, ends in time, and does not affect its siblings.

Bubblewrap is left out on purpose, so that the filter and the limits have to hold alone.
"""

import asyncio
import json
import resource
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from app.base.errors import HostError, SandboxError
from app.base.values import Json
from app.sandbox.forked_sandbox import ForkedSandbox
from app.sandbox.protocol import Function, Observation, SessionLimits
from app.sandbox.session import ForkedSession

_AT_ONCE = 6
_LIMITS = SessionLimits(cpu_seconds=0.3, wall_seconds=10, calls=50, output_chars=20_000, frame_bytes=1 << 20)
_MORE_CPU = 2.0  # seconds for what ends in an error that is known: on a busy machine the same takes more of them
_APIS = {"t": ["echo", "boom", "kbi", "reenter", "deep", "large", "strange", "odd_kind", "unicode_kind"]}
_PRELUDE = [Function("offered", "def offered():\n    return 1\n")]
_CASES = Path(__file__).parent / "sandbox_cases"


class Attack(msgspec.Struct, frozen=True, kw_only=True):
    """Turns of hostile code, and what must come of the first one, as far as it is known."""

    name: str
    turns: list[str] = []
    code: str = ""
    error: str | None = None  # in its last line
    stdout: str | None = None
    stop: str | None = None


class Outcome(msgspec.Struct, frozen=True):
    observations: list[Observation]
    seconds: float
    sibling: str  # what a session that was opened before and lived on said afterwards
    grown_mb: float  # peak memory of this process, all attacks taken together


def _attacks() -> dict[str, Attack]:
    found = [
        attack
        for file in ("attacks.json", "more_attacks.json")
        for attack in msgspec.convert(json.loads((_CASES / file).read_text()), list[Attack])
    ]
    return {attack.name: attack for attack in found}


_ATTACKS = _attacks()


@pytest_asyncio.fixture(scope="module")
async def outcomes() -> AsyncIterator[dict[str, Outcome]]:
    """All attacks at once, some at a time, each beside a session that does nothing wrong."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with ForkedSandbox(bwrap=False) as sandbox:
        victim = await sandbox.open(_APIS, _Host(), _LIMITS)
        await victim.run("kept = [1, 2]")
        gate = asyncio.Semaphore(_AT_ONCE)
        done = dict(await asyncio.gather(*(_attack(sandbox, attack, gate) for attack in _ATTACKS.values())))
        sibling = (await victim.run("print(kept, apis.t.echo('x'))")).stdout
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    yield {name: Outcome(*result, sibling, grown) for name, result in done.items()}


@pytest.mark.parametrize("attack", _ATTACKS.values(), ids=lambda attack: attack.name)
async def test_an_attack_is_contained(attack: Attack, outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes[attack.name]
    first = outcome.observations[0]
    shown = f"{first.stop} {first.stdout[-500:]!r} {first.error}"
    assert not any("ESCAPED" in (seen.stdout + _last_line(seen)) for seen in outcome.observations), shown
    assert outcome.seconds < len(outcome.observations) * (_LIMITS.wall_seconds + 30)
    assert all(len(seen.stdout) <= _LIMITS.output_chars + 100 for seen in outcome.observations)
    assert not any(
        use.inherited for seen in outcome.observations for use in seen.uses if use.function != "offered"
    )
    assert attack.error is None or attack.error in _last_line(first), shown
    assert attack.stdout is None or attack.stdout == first.stdout, shown
    assert attack.stop is None or _stops(attack) & {seen.stop for seen in outcome.observations}, shown


async def test_a_sibling_survives_all_attacks_with_its_state(outcomes: dict[str, Outcome]) -> None:
    assert {outcome.sibling for outcome in outcomes.values()} == {"[1, 2] x\n"}


async def test_the_host_stays_small_through_all_attacks(outcomes: dict[str, Outcome]) -> None:
    assert max(outcome.grown_mb for outcome in outcomes.values()) < 120


async def _attack(
    sandbox: ForkedSandbox, attack: Attack, gate: asyncio.Semaphore
) -> tuple[str, tuple[list[Observation], float]]:
    async with gate:
        host = _Host()
        cpu_seconds = _LIMITS.cpu_seconds if attack.error is None or attack.stop else _MORE_CPU
        limits = msgspec.structs.replace(_LIMITS, cpu_seconds=cpu_seconds)
        session = host.session = await sandbox.open(_APIS, host, limits, prelude=_PRELUDE)
        observations: list[Observation] = []
        started = monotonic()
        for turn in attack.turns or [attack.code]:
            if session.alive:
                observations.append(await session.run(turn))
        await session.close()
        return attack.name, (observations, monotonic() - started)


class _Host:
    """What the attacks may call."""

    def __init__(self) -> None:
        self.session: ForkedSession | None = None

    async def __call__(self, api: str, args: list[Json], kwargs: dict[str, Json], **_: object) -> Json:
        _ = kwargs
        answer: Any = getattr(self, "_" + api.removeprefix("t."))(*args[:1])
        return await answer if asyncio.iscoroutine(answer) else answer

    def _echo(self, value: Json = None) -> Json:
        return value

    def _boom(self) -> Json:
        raise HostError("RuntimeError", "boom")

    def _kbi(self) -> Json:
        raise HostError("KeyboardInterrupt", "")

    def _odd_kind(self) -> Json:
        raise HostError("no identifier; $(x)", "odd")

    def _unicode_kind(self) -> Json:
        raise HostError("UnicodeDecodeError", "bad")

    async def _reenter(self) -> Json:
        assert self.session is not None
        try:
            await self.session.run("print('ESCAPED')")
        except SandboxError as error:
            return str(error)
        return "ESCAPED"

    def _deep(self) -> Json:
        value: Json = []
        for _ in range(10_000):
            value = [value]
        return value

    def _large(self) -> Json:
        return "x" * 30_000_000

    def _strange(self) -> Json:
        return {"when": object()}


def _stops(attack: Attack) -> set[str]:
    """On a busy machine the wall clock may be faster than what eats CPU time and memory."""
    return {attack.stop, "cpu", "wall"} if attack.stop in {"cpu", "memory"} else {attack.stop or ""}


def _last_line(observation: Observation) -> str:
    return observation.error.splitlines()[-1] if observation.error else ""
