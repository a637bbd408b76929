"""Warns, in /readyz, of APIs that the model cannot use: by their trials, or because it was not made for them."""

from collections.abc import Collection, Sequence
from typing import Final, Self

import msgspec
import structlog

from app.api.api_reading import read_request
from app.apis.document_reader import DocumentReader
from app.db import api_trials, apis, manifests, releases, tables
from app.db.api_trials import TriedApi
from app.db.database import TRANSIENT, Sessions
from app.engine.model_scope import ADVICE, LARGER, ModelScope, trial_remark
from app.errors import AppError
from app.loop import Loop
from app.plural import numbered

log = structlog.get_logger(__name__)

_SECONDS: Final = 30.0  # between looks for documents whose operations are not known yet
_Version = tuple[str, str, bytes]  # of an API: its name, its document, and how that is presented


class ScopeCheck:
    """An API that only shares its name with one that the model knows counts once its document was read, in the
    background while this is entered. What a model was made for says nothing of an API that was tried.
    """

    def __init__(self, sessions: Sessions, reader: DocumentReader, scope: ModelScope) -> None:
        self._sessions, self._reader, self._scope = sessions, reader, scope
        self._others: dict[_Version, bool] = {}
        self._loop = Loop("read operations of APIs", self.look, _SECONDS, expected=TRANSIENT)

    async def __aenter__(self) -> Self:
        if self._scope.apis:
            await self._loop.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._scope.apis:
            await self._loop.stop()

    async def warning(self) -> str:
        """How many there are; it shows no names. Empty if there are none."""
        rows = await self._rows() if self._scope.apis else ()
        async with self._sessions() as session:
            tried = await api_trials.scores(session)
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
                content = await manifests.document(session, row.id, row.digest)
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
