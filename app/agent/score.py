"""Scores a finished task by the submitter's own Python: the reward of live tasks."""

import asyncio
import json
from collections.abc import Iterator
from datetime import datetime

import structlog

from app.apis.calls.gateway import Gateway
from app.base.errors import InvalidError, SandboxError
from app.base.values import Json
from app.sandbox.protocol import Observation, Sandbox, Session, SessionLimits
from app.sandbox.wire import HINT, NO_FUNCTIONS

log = structlog.get_logger(__name__)

_READ = "print(float(score)) if 'score' in globals() else None"
_TRIES = 3
_PAUSE_SECONDS = 1.0  # before another try, for a machine that cannot start a session now
_PIECE_CHARS = 20_000  # of the answer in one run, which the largest message holds whatever the characters


async def score(
    code: str,
    answer: Json,
    *,
    sandbox: Sandbox,
    gateway: Gateway,
    limits: SessionLimits,
    now: datetime | None,
    output: list[str] | None = None,
) -> float:
    """Run a check in a session of its own. It reads `answer` and the APIs, and sets `score` in [0, 1].

    What it prints is added to `output`, also if it breaks. Raises InvalidError with the reason if the check breaks
    for whatever reason that may lie in the answer, and SandboxError if the machine can start no session.
    """
    session = await _open(sandbox, gateway, limits, now)
    try:
        for piece in _binding(answer):
            await _run(session, piece)
        await _run(session, code, output)
        printed = await _run(session, _READ)
    finally:
        await session.close()
    value = _number(printed.stdout)
    if not 0 <= value <= 1:
        raise _broken(f"it set `score` to {value:g}, which must lie between 0 and 1")
    return value


async def _open(sandbox: Sandbox, gateway: Gateway, limits: SessionLimits, now: datetime | None) -> Session:
    for left in reversed(range(_TRIES)):
        try:
            return await sandbox.open(gateway.names(), gateway.answer_call, limits, now=now)
        except SandboxError as error:
            if not left:
                raise
            log.warning("a check waits for the sandbox", cause=str(error))
            await asyncio.sleep(_PAUSE_SECONDS)
    raise AssertionError("the last try returns or raises")


def _binding(answer: Json) -> Iterator[str]:
    """Runs that bind `answer`. In pieces, because the length of code is limited, and an answer's is not here."""
    text = json.dumps(answer, ensure_ascii=False)
    yield "answer = ''"
    for start in range(0, len(text), _PIECE_CHARS):
        yield f"answer += {text[start : start + _PIECE_CHARS]!r}"
    yield "import json as _json\nanswer = _json.loads(answer)\ndel _json"


async def _run(session: Session, code: str, output: list[str] | None = None) -> Observation:
    observation = await session.run(code)
    if output is not None:
        output.append(observation.stdout)
    if observation.error is not None or not observation.alive:
        last = (observation.error or "").strip().rpartition("\n")[2].removesuffix(f"{HINT}{NO_FUNCTIONS}")
        raise _broken(last or observation.stop)
    return observation


def _number(printed: str) -> float:
    try:
        return float(printed.strip().rpartition("\n")[2])
    except ValueError:
        raise _broken("it must set `score`, to a number from 0 to 1") from None


def _broken(reason: str) -> InvalidError:
    return InvalidError(f"the check failed, so it scores 0: {reason}")
