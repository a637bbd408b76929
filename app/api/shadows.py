"""Routes for shadow tasks: a release repeats finished tasks without side effects, to compare it."""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Self
from uuid import UUID

import msgspec
from litestar import Controller, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

from app.apis.documents.reader import DocumentReader
from app.db import releases, shadows
from app.release.shadow_stats import PairedComparison, compare_pairs
from app.runner import shadow_candidates
from app.web.access import Caller, Db
from app.web.problem import problems


class ShadowRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`tasks` is the maximum number of finished tasks to repeat, the latest first."""

    tasks: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 50


class ShadowsView(msgspec.Struct, frozen=True, kw_only=True):
    """The release compared with the releases that served the tasks. Scores are those of the tasks' own checks.

    `failures` counts by reason: a call that would have written, or why a task could not be executed or scored.
    """

    tasks: int
    pending: int
    failures: dict[str, int]
    score: PairedComparison | None
    turns: PairedComparison | None
    tokens: PairedComparison | None

    @classmethod
    def of(cls, pairs: Sequence[shadows.ShadowedTask]) -> Self:
        ended = [(pair, pair.shadow) for pair in pairs if pair.shadow]
        done = [(pair, shadow) for pair, shadow in ended if shadow.stop]
        scores = [
            (pair.score, shadow.score)
            for pair, shadow in done
            if pair.score is not None and shadow.score is not None
        ]
        return cls(
            tasks=len(pairs),
            pending=len(pairs) - len(ended),
            failures=dict(Counter(shadow.failure for _, shadow in ended if shadow.failure)),
            score=compare_pairs(scores),
            turns=compare_pairs([(pair.turns, shadow.turns) for pair, shadow in done]),
            tokens=compare_pairs([(pair.generated_tokens, shadow.generated_tokens) for pair, shadow in done]),
        )


class ShadowController(Controller):
    path = "/releases/{release_id:uuid}/shadow"
    tags = ("Releases",)
    opt = {"scope": "admin"}  # noqa: RUF012

    @post(status_code=202, summary="Repeat finished tasks", responses=problems(400, 401, 403, 404, 409))
    async def start_shadows(
        self,
        release_id: FromPath[UUID],
        data: JSONBody[ShadowRequest],
        session: Db,
        access: Caller,
        document_reader: NamedDependency[DocumentReader],
    ) -> ShadowsView:
        """This release repeats finished tasks that made read-only calls (GET, HEAD, OPTIONS, or `x-safe: true`),
        with the same seed, clock and skills. A call that would write is refused and counted. The tasks, their
        skills and trajectories do not change. 409 if no finished task was read-only."""
        row = await releases.get(session, release_id, access.project_id)
        await shadow_candidates.request_shadows(session, document_reader, row, data.tasks)
        await session.commit()
        return ShadowsView.of(await shadows.of_release(session, row.id))

    @get(
        summary="Compare a release on finished tasks",
        opt={"scope": "tasks"},
        responses=problems(401, 403, 404),
    )
    async def show_shadows(self, release_id: FromPath[UUID], session: Db, access: Caller) -> ShadowsView:
        """Paired differences between tasks and their shadows, with 95 % intervals of the mean."""
        row = await releases.get(session, release_id, access.project_id)
        return ShadowsView.of(await shadows.of_release(session, row.id))
