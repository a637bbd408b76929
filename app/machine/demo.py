"""The project `demo`: the APIs that the demo services offer, for a first task within a minute."""

import json
import shlex

import httpx
import msgspec

from app.apis.api_documents import fetch_document, parse_document
from app.db import api_trials, apis, manifests, projects
from app.db.database import open_database
from app.errors import ApiDocumentError
from app.records import Json
from app.release import manifest

PROJECT = "demo"


class DemoIndex(msgspec.Struct, frozen=True):
    """The body of /demo, which the demo services publish."""

    documents: dict[str, str]  # the URL of each API's OpenAPI document
    task: dict[str, str]  # a first task, as POST /v1/tasks takes it, without its project


async def register_demo(url: str, services: str) -> DemoIndex:
    """Bring the demo project's documents in line with those that the services publish. Safe to repeat.

    `url` is the database. Raises ApiDocumentError if the services do not answer.
    """
    async with httpx.AsyncClient(timeout=10, trust_env=False) as client:
        index = await _fetch_index(client, f"{services}/demo")
        documents = {
            api: (source, await fetch_document(client, source)) for api, source in index.documents.items()
        }
    await _put(url, documents)
    return index


async def _fetch_index(client: httpx.AsyncClient, url: str) -> DemoIndex:
    try:
        answer = await client.get(url)
        return msgspec.json.decode(answer.raise_for_status().content, type=DemoIndex)
    except (httpx.HTTPError, msgspec.MsgspecError) as error:
        raise ApiDocumentError(f"{url} cannot be read ({error}): set SAGE_DEMO_PORT to a free port") from error


async def _put(url: str, documents: dict[str, tuple[str, dict[str, Json]]]) -> None:
    async with open_database(url) as database, database.sessions.begin() as session:
        project = await projects.by_name(session, PROJECT)
        serving = await manifest.lock_active(session, project.id)
        before = await manifests.api_tools(session, project.id)
        for api, (source, document) in documents.items():
            digest = parse_document(api, document, source=source).digest
            row = await apis.put(session, project.id, api, source=source, document=document, digest=digest)
            if api not in before:  # models are shown how to use these
                await api_trials.renew(session, project.id, row.id, wanted=False)
        now = await manifests.api_tools(session, project.id)
        changed = [api for api in now if now[api] != before.get(api)]  # a rollback outlives a restart
        await manifest.update_tools(session, serving, changed, manifest.SERVER)


def first_task(address: str, task: dict[str, str]) -> list[str]:
    """Shell lines that submit a task, follow its events and show its result."""
    auth, body = '-H "Authorization: Bearer $KEY"', json.dumps(task | {"project": PROJECT})
    named = f"--project {PROJECT} --scenario {shlex.quote(task['scenario'])}" if "scenario" in task else ""
    return [
        f"  sage run {shlex.quote(task['instruction'])} {named}   # or, without it:",
        f"  curl -s {address}/v1/tasks {auth} -d '{body}'",
        "  ID=...   # the id in that answer",
        f"  curl -sN {address}/v1/tasks/$ID/events {auth}   # its events, as they happen",
        f"  curl -s {address}/v1/tasks/$ID {auth}           # its state and result",
    ]
