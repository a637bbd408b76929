"""The project `demo`: the APIs of the bundled office suite, for a first task within a minute."""

import httpx

from app.apis.openapi import fetch_document, parse_document
from app.db import apis, projects
from app.db.session import open_database
from app.records import Json

PROJECT = "demo"
_SITE = 0
_APPS = ("calendar", "contacts", "files", "mail", "music", "notes", "payments", "supervisor", "todo")


async def register_demo(url: str, services: str) -> None:
    """Bring the demo project's documents in line with what the services say. Safe to repeat."""
    documents: dict[str, tuple[str, dict[str, Json]]] = {}
    async with httpx.AsyncClient(timeout=10) as client:
        for app in _APPS:
            source = f"{services}/sites/{_SITE}/{app}/openapi.json"
            documents[app] = (source, await fetch_document(client, source))
    async with open_database(url) as database, database.sessions.begin() as session:
        project = await projects.by_name(session, PROJECT)
        for app, (source, document) in documents.items():
            digest = parse_document(app, document, source=source).digest
            await apis.put(session, project.id, app, source=source, document=document, digest=digest)
