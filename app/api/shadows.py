"""POST to have a release do finished tasks again without side effects, then ask how it compares."""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Self
from uuid import UUID

import msgspec
from litestar import Controller, get, post
from litestar.params import FromPath, JSONBody

from app.api.access import Caller, Db, find_release
from app.api.problem import problems
from app.db import shadows
from app.release.shadow_stats import Paired, compare
from app.runner import shadow_candidates


class ShadowRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """At most so many of the project's latest finished tasks."""

    tasks: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 50


class ShadowsView(msgspec.Struct, frozen=True, kw_only=True):
    """What the release did with tasks that others had done. `failures` counts by reason: what it wanted to write,
    or why a task could not be carried out or scored. Scores are those of the tasks' own checks.
    """

    tasks: int
    waiting: int
    failures: dict[str, int]
    score: Paired | None
    turns: Paired | None
    tokens: Paired | None

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
            waiting=len(pairs) - len(ended),
            failures=dict(Counter(shadow.failure for _, shadow in ended if shadow.failure)),
            score=compare(scores),
            turns=compare([(pair.turns, shadow.turns) for pair, shadow in done]),
            tokens=compare([(pair.generated_tokens, shadow.generated_tokens) for pair, shadow in done]),
        )


class ShadowController(Controller):
    path = "/releases/{release_id:uuid}/shadow"
    tags = ("Releases",)
    opt = {"scope": "admin"}  # noqa: RUF012

    @post(status_code=202, summary="Do finished tasks again", responses=problems(400, 401, 403, 404, 409))
    async def ask(
        self, release_id: FromPath[UUID], data: JSONBody[ShadowRequest], session: Db, access: Caller
    ) -> ShadowsView:
        """Tasks that called nothing but what only reads (GET, HEAD, OPTIONS, or `x-safe: true`) are done again by
        this release, with the same seed, clock and skills. A call that would write is refused and counted. The
        tasks themselves, their skills and trajectories stay as they are. 409 if no finished task only reads."""
        row = await find_release(session, access, release_id)
        await shadow_candidates.request_shadows(session, row, data.tasks)
        await session.commit()
        return ShadowsView.of(await shadows.of_release(session, row.id))

    @get(
        summary="How a release compares on finished tasks",
        opt={"scope": "tasks"},
        responses=problems(401, 403, 404),
    )
    async def paired(self, release_id: FromPath[UUID], session: Db, access: Caller) -> ShadowsView:
        """Pairs of a task as it was done and its shadow, with 95 % intervals of the mean difference."""
        row = await find_release(session, access, release_id)
        return ShadowsView.of(await shadows.of_release(session, row.id))
