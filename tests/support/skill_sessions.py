"""Sessions that are offered skills, and the host that answers their calls."""

from datetime import datetime

from app.base.errors import HostError
from app.base.values import Json
from app.sandbox.forked_sandbox import ForkedSandbox
from app.sandbox.protocol import EnteredSkill, Function, Observation, SessionLimits

APIS = {"t": ["echo", "fail"]}
LIMITS = SessionLimits(cpu_seconds=0.5, wall_seconds=20, calls=10, output_chars=200, frame_bytes=1 << 18)
SAME = {"same": "def same(value: object) -> object:\n    return value\n"}


class EchoHost:
    """Returns the first argument of a call, and notes which skill made it."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, list[Json], EnteredSkill | None]] = []

    async def __call__(
        self, api: str, args: list[Json], kwargs: dict[str, Json], *, skill: EnteredSkill | None = None
    ) -> Json:
        self.seen.append((api, [*args, *kwargs.values()], skill))
        if api == "t.fail":
            raise HostError("ApiError", "no such address")
        return args[0] if args else None


def functions(skills: dict[str, str]) -> list[Function]:
    return [Function(name, source) for name, source in skills.items()]


async def run_turns(
    sandbox: ForkedSandbox,
    skills: dict[str, str],
    *turns: str,
    host: EchoHost | None = None,
    limits: SessionLimits = LIMITS,
    now: datetime | None = None,
) -> list[Observation]:
    """What the turns of a new session print and raise."""
    session = await sandbox.open(APIS, host or EchoHost(), limits, prelude=functions(skills), seed=7, now=now)
    try:
        return [await session.run(turn) for turn in turns]
    finally:
        await session.close()
