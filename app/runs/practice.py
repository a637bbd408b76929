"""What a run of practice on a project's API needs to know: whether the API is there, and what its hours buy.

And reads of the real API, which its double needs to be like it: GETs alone, with the project's own credentials.
"""

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Final
from uuid import UUID

import httpx
import msgspec
import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis import store as apis
from app.apis.approvals.gate import ApprovalGate
from app.apis.calls.gateway import Gateway
from app.apis.catalog import Catalog
from app.apis.credentials.stored_credentials import StoredCredentials
from app.apis.documents.read_process import ReadRequest
from app.apis.documents.reader import DocumentReader
from app.apis.double.coverage import PracticeQuestion
from app.apis.double.masking import samples_of
from app.apis.double.reads import MOST_CALLS, Given, Reading, read_answers
from app.apis.store import Comparison
from app.base.errors import ApiDocumentError, ConflictError, InvalidError, NotFoundError
from app.base.run_settings import RunKind, RunSettings, practice_option, read_settings
from app.base.secrets import SecretValues
from app.base.values import Json
from app.db import tables
from app.db.database import Sessions
from app.db.tables import OPEN_RUNS
from app.projects.settings import ApprovalRules
from app.releases import hosted_models
from app.releases.tools import ApiDocument, ProjectSecrets, trusting
from app.runs import store as runs
from app.runs.schedule import Serving
from app.sandbox.protocol import RefusalError

_UNDER_WAY: Final = set[UUID]()
"""The APIs that this process reads."""
log = structlog.get_logger(__name__)


async def check_practised_api(session: AsyncSession, project: tables.Project, settings: RunSettings) -> None:
    """Raises InvalidError where the settings name practice on an API that the project lacks, or an MCP server, or
    a hosted model that it lacks.
    """
    if model := practice_option(settings, "paraphraser"):
        try:
            await hosted_models.get(session, project.id, model)
        except NotFoundError as error:
            raise InvalidError(f"paraphraser={model}: {error}") from error
    name = practice_option(settings, "api")
    if not name or await apis.is_documented(session, project.id, name):
        return
    documented = await apis.documented(session, project.id)
    there = f"it can practise {', '.join(sorted(documented))}" if documented else "register one"
    raise InvalidError(f"the project {project.name} has no API {name} with an OpenAPI document: {there}")


class _Practised(msgspec.Struct, frozen=True):
    """Of the result of an earlier run."""

    hours: float
    demonstrations: int
    supervised_steps: int
    rolled_out: int


async def estimate(session: AsyncSession, run: tables.TrainingRun, serving: Serving) -> str | None:
    """What the hours of a run of practice buy, by the latest one of the same model.

    None once it has ended, and for other kinds.
    """
    if run.kind is not RunKind.PRACTICE or run.state not in OPEN_RUNS:
        return None
    settings = read_settings(run.settings)
    hours = f"in {settings.hours:g} h"
    found = await runs.latest_practice(session, run.project_id, serving.model)
    if found is None:
        return f"{hours}: how much it learns is measured in its first minutes"
    past = msgspec.convert(found, _Practised)
    part = settings.hours / past.hours
    return (
        f"{hours}: about {past.demonstrations * part:,.0f} demonstrations, "
        f"{past.supervised_steps * part:,.0f} supervised steps and {past.rolled_out * part:,.0f} tasks of "
        "rollouts, by the speed of the latest such run"
    )


class RealApi(msgspec.Struct, frozen=True, kw_only=True):
    """An API of a project, and what it is read with."""

    sessions: Sessions
    client: httpx.AsyncClient
    reader: DocumentReader
    project_id: UUID
    document: ApiDocument
    rules: ApprovalRules  # calls that wait for a person are not made
    seconds: float  # of calls, after which none begins: reading its document comes on top
    call_seconds: float  # of one call


async def read_real_api(api: RealApi) -> Callable[[], dict[str, Json]]:
    """Read it, and store how its answers differ from what its document promises, with the time.

    Nothing else of the answers is stored: what is returned makes samples of them, masked. Raises ApiDocumentError
    for a document that has no double, and ConflictError while the API is read.
    """
    if api.document.id in _UNDER_WAY:
        raise ConflictError(f"{api.document.name} is being compared with its document: wait until that is done")
    _UNDER_WAY.add(api.document.id)
    try:
        reading = _Reading(api)
        readings = await read_answers(reading.plan, reading.ask, reading.is_time_up)
        question = PracticeQuestion(about="differences", answers=readings.answers)
        found = await api.reader.practice(reading.request, await reading.content(), question)
        comparison = Comparison(
            at=datetime.now(UTC),
            digest=api.document.digest,
            calls=readings.calls,
            differences=found.differences,
            skipped=readings.skipped,
        )
        async with api.sessions.begin() as session:
            await apis.store_comparison(session, api.document.id, comparison)
    finally:
        _UNDER_WAY.remove(api.document.id)
    log.info("a real API was read", api=api.document.name, calls=readings.calls, skipped=len(readings.skipped))
    return partial(samples_of, readings, reading.is_secret)


class _Reading:
    """One reading: the calls of all its plans, by gateways that share what is secret."""

    def __init__(self, api: RealApi) -> None:
        self._api, self._content = api, b""
        self._secrets = SecretValues()
        self._gateway: Gateway | None = None
        self._spent = 0.0  # seconds of calls
        document = api.document
        self.request = ReadRequest(
            name=document.name,
            source=apis.url_of(document.source),
            server=document.server,
            presentation=document.presentation,
            bind=document.bind,
        )

    def is_secret(self, text: str) -> bool:
        return self._secrets.mask(text) != text

    async def content(self) -> bytes:
        if not self._content:
            async with self._api.sessions() as session:
                self._content = await apis.document(session, self._api.document.id, self._api.document.digest)
        return self._content

    def is_time_up(self) -> bool:
        return self._spent >= self._api.seconds

    async def plan(self, samples: Mapping[str, Json]) -> list[Reading]:
        api, question = self._api, PracticeQuestion(about="plan", samples=dict(samples))
        found = await api.reader.practice(self.request, await self.content(), question)
        if found.app is None:
            raise ApiDocumentError(
                f"{api.document.name} is no OpenAPI document, so nothing of it can be practised"
            )
        self._gateway = Gateway(
            Catalog({api.document.name: trusting(found.app, api.document)}),
            api.client,
            credentials=StoredCredentials(api.sessions, api.client, [api.document]),
            store=ProjectSecrets(api.sessions, api.project_id),
            read_only=True,
            approvals=ApprovalGate(api.rules),
            max_calls=MOST_CALLS,
            timeout=api.call_seconds,
            secrets=self._secrets,
        )
        return found.plan

    async def ask(self, operation: str, arguments: dict[str, Json]) -> Given:
        assert self._gateway is not None  # a plan comes before its calls
        begun = time.monotonic()
        try:
            answer = await self._gateway.answer_call(f"{self._api.document.name}.{operation}", [], arguments)
        except RefusalError as error:
            return Given(error.status, self._secrets.mask_value(error.response.body), error.response.headers)
        finally:
            self._spent += time.monotonic() - begun
        return Given(answer.status or 200, self._secrets.mask_value(answer.value), answer.headers)
