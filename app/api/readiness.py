"""What /readyz checks besides services: the disks, the runners by part, and the loops of this process."""

from collections.abc import Mapping, Sequence

from app.api.health import ReadinessCheck
from app.api.http_server import Shutdown
from app.db import hosted_models, notifications, runners, tables
from app.db.database import TRANSIENT, Sessions
from app.db.disk_space import DiskSpace
from app.errors import AppError
from app.loop import BACKGROUND, faults_by_part
from app.plural import numbered


class RunnerError(AppError):
    """No runner can execute tasks."""

    status = 503


class PartError(AppError):
    """A part of this process does not work."""

    status = 503


def readiness_checks(sessions: Sessions, disk: DiskSpace, shutdown: Shutdown) -> Mapping[str, ReadinessCheck]:
    """By component."""

    async def check_process() -> None:
        if shutdown.begun:
            raise PartError("it is shutting down")

    async def check_disk() -> str:
        if shortage := await disk.shortage():
            raise PartError(shortage)
        return await check_part(sessions, runners.DISK)

    return {
        "process": check_process,
        "runners": lambda: check_runners(sessions),
        "claims": lambda: check_part(sessions, runners.CLAIMS),
        "sandbox": lambda: check_part(sessions, runners.SANDBOX),
        "disk": check_disk,
        "host": lambda: check_part(sessions, runners.HOST),
        "notifications": lambda: _check_loops(sessions, notifications.PART),
        BACKGROUND: lambda: _check_loops(sessions, BACKGROUND),
    }


async def check_runners(sessions: Sessions) -> str:
    """Raises RunnerError if no live runner can execute tasks. Returns what is wrong with others."""
    live = await _live(sessions)
    faults = [f"{_name(each)}: {each.error}" for each in live if each.error]
    if len(faults) == len(live):
        raise RunnerError("; ".join(faults))
    return "; ".join(faults)


async def check_part(sessions: Sessions, part: str) -> str:
    """Raises RunnerError if this part works in no live runner. Returns what is wrong with some."""
    live = await _live(sessions)
    faults = _faults(live, part)
    if len(faults) == len(live):
        raise RunnerError("; ".join(faults))
    return "; ".join(faults)


async def hosted_failures(sessions: Sessions) -> str:
    """How many hosted models that serve failed at the latest request. No error: the next task may succeed.

    Whose they are, and why they failed, is for keys: what reads this needs none.
    """
    async with sessions() as session:
        failed = len(await hosted_models.failing(session))
    if not failed:
        return ""
    return f"hosted models of {numbered(failed, 'project')} fail: `sage doctor` says which, and why"


async def _check_loops(sessions: Sessions, part: str) -> str:
    """Raises PartError for this process's own. Returns what is wrong with those of runners, which poll."""
    if part in (own := faults_by_part()):
        raise PartError(own[part])
    try:
        return "; ".join(_faults(await _live(sessions), part))
    except RunnerError:  # another component says so
        return ""


async def _live(sessions: Sessions) -> Sequence[tables.RunnerProcess]:
    """Raises RunnerError if there is none."""
    try:
        async with sessions() as session:
            live = await runners.live(session)
    except TRANSIENT as error:
        raise RunnerError("unknown while the database does not answer") from error
    if not live:
        raise RunnerError(f"{runners.NONE_LIVE}: start one with `sage runner`, or read its log")
    if not (staying := [each for each in live if not each.draining]):
        raise RunnerError("all runners are shutting down: start another with `sage runner`")
    return staying


def _faults(live: Sequence[tables.RunnerProcess], part: str) -> list[str]:
    return [f"{_name(each)}: {each.faults[part]}" for each in live if part in each.faults]


def _name(runner: tables.RunnerProcess) -> str:
    return f"{runner.host} (pid {runner.pid})"
