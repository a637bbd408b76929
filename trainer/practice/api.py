"""The environment `practice?api=NAME` of a run: the double of an API of its project."""

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from app.apis.api_documents import parse_document, read_document
from app.apis.catalog import Operation
from app.apis.mcp_document import is_listing
from app.apis.presentation import present
from app.db import manifests
from app.db.database import Sessions, reading
from app.errors import ApiDocumentError, InvalidError
from app.records import Json
from app.release import manifest
from app.release.tool_documents import ApiDocument
from trainer.atomic_write import write_atomically
from trainer.environment import Split
from trainer.practice.environments import Practice, PracticeEnvironment, practice_on
from trainer.practice.practice_choice import PracticeChoice
from trainer.run_job import Job
from trainer.runs.practice_samples import read_samples

_SAMPLES = "samples.msgpack"
_SPLITS: tuple[Split, ...] = ("train", "test")


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
        content = await manifests.document(session, api.id, api.digest)
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
