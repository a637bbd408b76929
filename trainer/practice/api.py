"""The plug-in `practice`: tasks on the double of an API of the project that a run belongs to.

The double is made from the document that the active release has of it, and from samples of the real API, which
is read only where the project wants it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

import msgspec

from app.apis import store as apis
from app.apis.calls.network import Certificates, OwnServices, open_client
from app.apis.catalog import Operation
from app.apis.documents.protocols import parse_document, read_document
from app.apis.documents.reader import DocumentReader
from app.apis.mcp.document import is_listing
from app.apis.presentation import present
from app.base.errors import ApiDocumentError, InvalidError
from app.base.fields import AppName
from app.base.files import write_atomically
from app.base.values import Json, Task
from app.db.database import Sessions, reading
from app.db.tables import PracticeSource
from app.projects.settings import ProjectSettings
from app.releases import manifest
from app.releases.tools import ApiDocument
from app.runs.practice import RealApi, read_real_api
from trainer.environment import Scenario, Split, World
from trainer.practice.environments import Practice, PracticeEnvironment, practice_on
from trainer.run_job import Job

_SECONDS: Final = 300.0  # of all calls for samples
_CALL_SECONDS: Final = 30.0  # of one
_READER_SECONDS: Final = 1_800.0  # on the clock: training may leave it little of the machine
_SAMPLES = "samples.msgpack"
_SPLITS: tuple[Split, ...] = ("train", "test")


def load_environment(*, api: AppName, paraphraser: str = "") -> "PracticeChoice":  # noqa: ARG001  of runs
    """The plug-in: practice on the API of that name, by the document that the active release has of it. The
    hosted model `paraphraser` words the lessons of a run of kind practice.
    """
    return PracticeChoice(api)


class PracticeChoice(msgspec.Struct, frozen=True):
    """Which API. A run opens it; by itself it is an environment without tasks."""

    api: str

    def scenarios(self, split: Split, count: int, seed: int) -> Sequence[Scenario]:  # noqa: ARG002
        raise InvalidError("an API belongs to a project: name practice in a training run of that project")

    def open(self, scenario: Scenario, task: Task) -> AbstractAsyncContextManager[World]:
        raise AssertionError(f"{task} of {scenario} came from elsewhere")


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


async def keep_samples(job: Job, sessions: Sessions, api: str) -> None:
    """Read samples of the real API into the run's directory, unless an earlier attempt did. None are kept where
    nothing was answered: the next attempt asks again.
    """
    path = job.directory / _SAMPLES
    if not path.exists() and (samples := await read_samples(job, sessions, api)):
        write_atomically(msgspec.msgpack.encode(samples), path)


async def open_practice(job: Job, sessions: Sessions, choice: PracticeChoice) -> PracticeEnvironment:
    """By the document that the active release has of the API, and by samples where the run's directory has some.

    Raises InvalidError for an unknown API and for one without an OpenAPI document, and NothingToPractiseError.
    """
    async with reading(sessions) as session:
        served = await manifest.begin_serving(session, job.project_id, None, None)
        known = {each.name: each for each in served.documents}
        if choice.api not in known:
            raise InvalidError(
                f"the project {job.project} has no API {choice.api}: it has {', '.join(sorted(known)) or 'none'}"
            )
        api = known[choice.api]
        content = await apis.document(session, api.id, api.digest)
    path = job.directory / _SAMPLES
    samples = msgspec.msgpack.decode(path.read_bytes(), type=dict[str, Json]) if path.exists() else {}
    return PracticeEnvironment(await asyncio.to_thread(_practice, api, content, samples))


def _practice(api: ApiDocument, content: bytes, samples: Mapping[str, Json]) -> Practice:
    """Something can be practised on it, in training and in tests. The agent sees it as its tasks do."""
    if is_listing(content):
        raise InvalidError(f"{api.name} is an MCP server, and only what has an OpenAPI document can be practised")
    try:
        document = read_document(content)
        written = parse_document(api.name, document, server=f"http://{api.name}.practice")
        shown = present(written, api.presentation)
        shown_document = _without(document, shown.hidden)
        practice = practice_on(api.name, shown_document, samples, presentation=api.presentation, bind=api.bind)
    except ApiDocumentError as error:
        raise InvalidError(f"{api.name} cannot be practised: {error}") from error
    environment = PracticeEnvironment(practice)
    for split in _SPLITS:
        environment.scenarios(split, 1, 0)
    return practice


def _without(document: Mapping[str, Json], hidden: Sequence[Operation]) -> Mapping[str, Json]:
    """What the agent is not shown cannot be asked of it."""
    gone = {(each.path, each.method.lower()) for each in hidden}
    paths: Mapping[str, Json] = document.get("paths", {})
    kept = {
        path: {name: each for name, each in item.items() if (path, name) not in gone}
        for path, item in paths.items()
        if isinstance(item, dict)
    }
    return {**document, "paths": {**paths, **kept}} if gone else document
