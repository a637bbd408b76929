"""Samples of the real API of a project, for practice on its double: read only where the project wants it."""

from collections.abc import Mapping
from typing import Final

import msgspec

from app.apis.document_reader import DocumentReader
from app.db import apis
from app.db.database import Sessions
from app.db.tables import PracticeSource
from app.gateway.certificates import Certificates
from app.gateway.http_client import open_client
from app.gateway.own_services import OwnServices
from app.project.project_settings import ProjectSettings
from app.records import Json
from app.release import manifest
from app.release.real_reads import RealApi, read_real_api
from trainer.run_job import Job

_SECONDS: Final = 300.0  # of calls
_CALL_SECONDS: Final = 30.0
_READER_SECONDS: Final = 1_800.0  # on the clock: training may leave it little of the machine


async def read_samples(job: Job, sessions: Sessions, api: str) -> Mapping[str, Json]:
    """Answers of the real API, by the names of operations in its model, masked: they may be stored. Empty unless
    the API has `practice: read`.

    `practice_on(name, document, samples)` makes of them what can be practised. Raises NotFoundError for an API
    that the project does not have, ApiDocumentError for one whose document cannot be read as records.
    """
    async with sessions() as session:
        row = await apis.get(session, job.project_id, api, document=False)
        served = await manifest.begin_serving(session, job.project_id, None, None)
    document = next((each for each in served.documents if each.name == api), None)
    if row.practice is not PracticeSource.READ or document is None:
        return {}
    client = open_client(
        allow_private_hosts=job.deployment.allow_private_hosts,
        certificates=Certificates.of(job.deployment),
        own=OwnServices.of(job.deployment),
    )
    async with client, DocumentReader(timeout=_READER_SECONDS, at_once=1) as reader:
        real = RealApi(
            sessions=sessions,
            client=client,
            reader=reader,
            project_id=job.project_id,
            document=document,
            rules=msgspec.convert(served.settings, ProjectSettings).approvals,
            seconds=_SECONDS,
            call_seconds=_CALL_SECONDS,
        )
        return (await read_real_api(real))()
