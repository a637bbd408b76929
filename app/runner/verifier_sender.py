"""Asks the verifiers of projects about finished tasks, each until it answers or is given up."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Self

import httpx
import structlog

from app.base.errors import AppError
from app.db import tables, verifications
from app.db.database import Sessions
from app.db.verifications import FailedAttempt, VerifierRequest
from app.projects.settings import VerifierAnswer, VerifierAnswerError, read_answer
from app.projects.webhooks import (
    ClaimedMessages,
    PostError,
    PostTimeoutError,
    SendLimits,
    SignedPost,
    post,
    status_problem,
)
from app.skills import admission

log = structlog.get_logger(__name__)

_MAX_ANSWER = 1 << 20  # bytes


class VerifierOptions(SendLimits, frozen=True, kw_only=True):
    """Limits and intervals of the sender."""

    per_project: int = 4
    timeout: float = 5.0
    delays: Sequence[float] = (5, 30, 120, 600)


class VerifierSender:
    """Asks while it is entered. Leaving hands questions back that have no answer yet."""

    def __init__(
        self,
        sessions: Sessions,
        client: httpx.AsyncClient,
        options: VerifierOptions = VerifierOptions(),  # noqa: B008  frozen
    ) -> None:
        self._sessions = sessions
        self._client = client
        self._options = options
        self._questions = ClaimedMessages("ask verifiers", sessions, verifications.QUEUE, self._verify, options)

    async def __aenter__(self) -> Self:
        await self._questions.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._questions.__aexit__()

    async def _verify(self, row: tables.Verification) -> None:
        result = await self._result(row)
        if result is None:
            return
        retry_in = self._questions.delay_after(row.attempt)
        async with self._sessions.begin() as session:
            counts = await verifications.record(session, row, result, retry_in)
            if counts and isinstance(result, VerifierAnswer) and result.score is not None:
                await admission.scored(session, row.task_id, result.score)
        if isinstance(result, FailedAttempt):
            about = {"task": str(row.task_id), "attempt": row.attempt, "cause": result.problem}
            log.warning("a task was not verified", **about)

    async def _result(self, row: tables.Verification) -> VerifierAnswer | FailedAttempt | None:
        """None if this process has stalled, and the question is another's by now."""
        try:
            async with self._sessions() as session:
                if not await verifications.QUEUE.is_claimed(session, row):
                    return None
                request = await verifications.request(session, row)
            return request if isinstance(request, FailedAttempt) else await self._ask(row, request)
        except AppError as error:  # the secret cannot be decrypted here
            return FailedAttempt(str(error))

    async def _ask(self, row: tables.Verification, request: VerifierRequest) -> VerifierAnswer | FailedAttempt:
        message = SignedPost(request.url, request.key, f"msg_{row.task_id.hex}", request.body)
        try:
            status, body = await post(self._client, message, seconds=self._options.timeout, limit=_MAX_ANSWER)
        except PostTimeoutError as error:
            return FailedAttempt(f"the verifier timed out: {error}")
        except PostError as error:
            return FailedAttempt(f"the verifier failed: {error}")
        if (problem := status_problem(status)) is not None:
            return FailedAttempt(f"the verifier failed: {problem}", final=status == HTTPStatus.GONE)
        try:
            return read_answer(body)
        except VerifierAnswerError as error:
            return FailedAttempt(f"the verifier answered nonsense: {error}")
