"""Route for the differences between two releases."""

from uuid import UUID

from litestar import Controller, get
from litestar.di import NamedDependency
from litestar.params import FromPath

from app.apis.documents.reader import DocumentReader
from app.db import releases
from app.release.diff import Diff, diff
from app.web.access import Caller, Db
from app.web.problem import problems


class ReleaseDiffController(Controller):
    path = "/releases/{release_id:uuid}/diff"
    tags = ("Releases",)
    opt = {"scope": "tasks"}  # noqa: RUF012

    @get("/{other:uuid}", summary="Compare two releases", responses=problems(400, 401, 403, 404))
    async def compare(
        self,
        release_id: FromPath[UUID],
        other: FromPath[UUID],
        session: Db,
        access: Caller,
        document_reader: NamedDependency[DocumentReader],
    ) -> Diff:
        """What the second release changes: weights, skills, API documents by operation, prompt.

        Skills are compared as of the time each release last stopped serving; for the active release and for those
        that never served, as of now.
        """
        release = await releases.get(session, release_id, access.project_id)
        return await diff(session, document_reader, release, await releases.get(session, other, access.project_id))
