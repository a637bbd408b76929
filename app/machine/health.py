"""What /readyz checks besides services: the disks, the runners by part, and the loops of this process; and of
which APIs it warns, since the model cannot use them.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final, Self

import msgspec
import structlog

from app.apis import store as apis
from app.apis import trials
from app.apis.documents.reader import DocumentReader
from app.apis.documents.stored import read_request
from app.apis.trials import TriedApi
from app.base.errors import AppError
from app.base.loop import BACKGROUND, Loop, Looping, faults_by_part
from app.base.text import numbered
from app.db import notify, runners, tables
from app.db.database import TRANSIENT, Sessions
from app.db.disk_space import DiskSpace
from app.engine.model_scope import ADVICE, LARGER, ModelScope, trial_remark
from app.machine.routes import ReadinessCheck
from app.releases import hosted_models
from app.releases import store as releases
from app.web.server import Shutdown

log = structlog.get_logger(__name__)

_SECONDS: Final = 30.0  # between looks for documents whose operations are not known yet
_Version = tuple[str, str, bytes]  # of an API: its name, its document, and how that is presented


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
        return await check_runners(sessions, runners.DISK)

    return {
        "process": check_process,
        "runners": lambda: check_runners(sessions),
        "claims": lambda: check_runners(sessions, runners.CLAIMS),
        "sandbox": lambda: check_runners(sessions, runners.SANDBOX),
        "disk": check_disk,
        "host": lambda: check_runners(sessions, runners.HOST),
        "notifications": lambda: _check_loops(sessions, notify.PART),
        BACKGROUND: lambda: _check_loops(sessions, BACKGROUND),
    }


async def check_runners(sessions: Sessions, part: str | None = None) -> str:
    """Raises RunnerError if no live runner can execute tasks, or this part works in none. Returns what is wrong
    with some.
    """
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


def _faults(live: Sequence[tables.RunnerProcess], part: str | None) -> list[str]:
    """Of a part, or what keeps a runner from executing tasks."""
    found = ((each, each.error if part is None else each.faults.get(part)) for each in live)
    return [f"{each.host} (pid {each.pid}): {fault}" for each, fault in found if fault]


class ScopeCheck(Looping):
    """An API that only shares its name with one that the model knows counts once its document was read, in the
    background while this is entered. What a model was made for says nothing of an API that was tried.
    """

    def __init__(self, sessions: Sessions, reader: DocumentReader, scope: ModelScope) -> None:
        self._sessions, self._reader, self._scope = sessions, reader, scope
        self._others: dict[_Version, bool] = {}
        self._loop = Loop("read operations of APIs", self.look, _SECONDS, expected=TRANSIENT)

    async def __aenter__(self) -> Self:
        return await super().__aenter__() if self._scope.apis else self

    async def warning(self) -> str:
        """How many there are; it shows no names. Empty if there are none."""
        rows = await self._rows() if self._scope.apis else ()
        async with self._sessions() as session:
            tried = await trials.scores(session)
        affected = {row.project_id for row in rows if row.id not in tried and self._is_other(row)}
        said = [_failed_trials(tried.values())]
        if affected:
            number = len({row.project_id for row in rows})
            said.append(
                f"{len(affected)} of {number} projects with APIs have some that the model {self._scope.model} was "
                "not made for: set SAGE_MODEL to an instruct model"
            )
        return "; ".join(filter(None, said))

    async def look(self) -> None:
        """Read the documents of APIs whose names the model knows."""
        rows = await self._rows()
        by_version = {_version(row): row for row in rows if self._scope.apis.get(row.name)}
        for version, row in by_version.items():
            if version not in self._others:
                self._others[version] = bool(self._scope.others({row.name: await self._operations(row)}))
        self._others = {version: self._others[version] for version in by_version}

    async def _rows(self) -> Sequence[tables.Api]:
        """Of projects that the model serves."""
        async with self._sessions() as session:
            served = set(await releases.local_projects(session))
            return [row for row in await apis.of_all_projects(session) if row.project_id in served]

    async def _operations(self, row: tables.Api) -> list[str]:
        """None for a document that cannot be read: its tasks say so."""
        try:
            async with self._sessions() as session:
                content = await apis.document(session, row.id, row.digest)
            app = await self._reader.view(read_request(row, row.bind), content, row.digest)
        except AppError as error:
            log.warning("the operations of an API are unknown", api=row.name, cause=str(error))
            return []
        return [each.name for each in app.operations]

    def _is_other(self, row: tables.Api) -> bool:
        return bool(self._scope.others({row.name: ()})) or self._others.get(_version(row), False)


def _failed_trials(tried: Collection[TriedApi]) -> str:
    failed = [each for each in tried if trial_remark(*each.score) is not None]
    said, now = [], [each for each in failed if not each.is_outdated]
    for advice, of in (
        (ADVICE, [each for each in now if each.score.hosted is None]),
        (LARGER, [each for each in now if each.score.hosted is not None]),
    ):
        if asked := sum(each.score.asked for each in of):
            can = "cannot be used yet" if asked > len(of) else "can perhaps not be used"
            said.append(
                f"{len(of)} of {numbered(len(tried), 'API')} tried {can}, as the model answered 0 of "
                f"{numbered(asked, 'question')} right: {advice}"
            )
    if old := len(failed) - len(now):
        said.append(
            f"{old} of {numbered(len(tried), 'API')} tried could not be used by a release that serves no more: "
            "they are tried again soon"
        )
    return "; ".join(said)


def _version(row: tables.Api) -> _Version:
    return row.name, row.digest, msgspec.json.encode(row.presentation, order="sorted")
