"""Scores a finished task by the submitter's own Python: the reward of live tasks."""

import json
from datetime import datetime

from app.errors import InvalidError
from app.gateway.gateway import Gateway
from app.records import Json
from app.sandbox.protocol import Observation, Sandbox, SessionLimits


async def score(
    code: str, answer: Json, *, sandbox: Sandbox, gateway: Gateway, limits: SessionLimits, now: datetime | None
) -> float:
    """Run a check in a session of its own. It reads `answer` and the APIs, and sets `score` in [0, 1].

    Raises InvalidError with the reason if the check fails.
    """
    session = await sandbox.open(gateway.names(), gateway, limits, now=now)
    try:
        await session.run(f"import json as _json\nanswer = _json.loads({json.dumps(answer)!r})\ndel _json")
        _checked(await session.run(code))
        printed = _checked(await session.run("print(float(score))"))
    finally:
        await session.close()
    value = float(printed.stdout.strip().rpartition("\n")[2])
    if not 0 <= value <= 1:
        raise InvalidError(f"the check set score to {value}: it must lie between 0 and 1")
    return value


def _checked(observation: Observation) -> Observation:
    if observation.error is not None or not observation.alive:
        last = (observation.error or "").strip().rpartition("\n")[2]
        raise InvalidError(f"the check failed: {last or observation.stop}")
    return observation
