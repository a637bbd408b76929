"""Skills that archive mails, and a project to store them in."""

from uuid import UUID

from app.db.database import Sessions
from app.projects import store as projects
from app.skills.extract import Draft, extract
from tests.support.written_functions import ARCHIVE, archived

QUERY = "archive every one of my mails from omar"


async def project(sessions: Sessions, name: str = "demo") -> UUID:
    async with sessions.begin() as session:
        return (await projects.create(session, name)).id


def draft(source: str = ARCHIVE) -> Draft:
    return extract(archived("iris", source))[0]


def named(name: str) -> Draft:
    return extract(archived("iris", ARCHIVE.replace("archive_mails_by_person", name), name))[0]
