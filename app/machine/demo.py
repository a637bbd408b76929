"""The project `demo`: the APIs of the bundled office suite, for a first task within a minute."""

import json

import httpx

from app.apis.openapi import fetch_document, parse_document
from app.db import apis, manifests, projects
from app.db.database import open_database
from app.records import Json
from app.release import manifest

PROJECT = "demo"
_SITE = 0
_APPS = ("calendar", "contacts", "files", "mail", "music", "notes", "payments", "supervisor", "todo")
_TASK = {
    "instruction": "archive every one of my mails from iris",
    "project": PROJECT,
    "scenario": "archive the mails of a sender",
}


async def register_demo(url: str, services: str) -> None:
    """Bring the demo project's documents in line with what the services say. Safe to repeat."""
    documents: dict[str, tuple[str, dict[str, Json]]] = {}
    async with httpx.AsyncClient(timeout=10, trust_env=False) as client:
        for app in _APPS:
            source = f"{services}/sites/{_SITE}/{app}/openapi.json"
            documents[app] = (source, await fetch_document(client, source))
    async with open_database(url) as database, database.sessions.begin() as session:
        project = await projects.by_name(session, PROJECT)
        serving = await manifest.hold(session, project.id)
        before = await manifests.registered(session, project.id)
        for app, (source, document) in documents.items():
            digest = parse_document(app, document, source=source).digest
            await apis.put(session, project.id, app, source=source, document=document, digest=digest)
        now = await manifests.registered(session, project.id)
        changed = [app for app in now if now[app] != before.get(app)]  # a roll-back outlives a restart
        await manifest.tools_changed(session, serving, changed, manifest.SERVER)


def first_task(address: str) -> list[str]:
    """Lines to paste: submit a task, see what it does, see what became of it."""
    auth = '-H "Authorization: Bearer $KEY"'
    return [
        f"  curl -s {address}/v1/tasks {auth} -d '{json.dumps(_TASK)}'",
        "  ID=...   # the id in that answer",
        f"  curl -sN {address}/v1/tasks/$ID/events {auth}   # what it does, as it does it",
        f"  curl -s {address}/v1/tasks/$ID {auth}           # what became of it",
    ]
