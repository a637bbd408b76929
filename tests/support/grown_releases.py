"""Thirty releases of a project: promoted, rejected, rolled back, and one that is a canary now."""

from datetime import datetime, timedelta
from hashlib import sha256
from random import Random
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis import store as apis
from app.base.values import Json
from app.db import tables
from app.db.tables import AuditAction, ExamSource, ReleaseState
from app.releases import store as releases
from app.releases.exams import store as exams
from app.releases.exams.store import NewEvaluation, NewExamTask
from app.releases.trials_store import CanaryShare
from tests.support.ledger import Ledger
from trainer.evaluation.gate_decision import decide
from trainer.evaluation.metrics import TaskResult

COUNT = 30
_REJECTED = {3, 9, 14, 22, 29}
_ROLLED_BACK = 11
_CHANGED_API = 17
_DAYS = 3.0
_SCENARIOS = 80
_SETTINGS: dict[str, Json] = {
    "split": "validation",
    "scenarios": _SCENARIOS,
    "seed": 7,
    "coverage": 1.0,
    "base": "seed",
    "exam": {
        "name": "everyday",
        "version": 1,
        "on": "recorded",
        "scenarios": 100,
        "scenarios_left_out": 20,
        "tasks_left_out": 31,
    },
}


async def grow_releases(
    session: AsyncSession, project_id: UUID, now: datetime, run_id: UUID, chance: Random
) -> list[tables.Release]:
    """Release 28 is active and watched, 30 is a canary. A run made each but the first and number 17."""
    await _put_tools(session, project_id)
    await _put_exam(session, project_id)
    first = await releases.active(session, project_id)
    first.tools, first.prompt = "tools-1", "prompt-1"
    active, made = first, [first]
    first.created_at = first.activated_at = now - timedelta(days=92)
    for number in range(2, COUNT + 1):
        at = now - timedelta(days=_DAYS * (COUNT - number + 1))
        row = _release(project_id, number, run_id, at)
        session.add(row)
        await session.flush()
        made.append(row)
        row.evidence = await _evidence(session, row, active, chance)
        if number == COUNT:
            await _begin_canary(session, row, now)
        elif number not in _REJECTED:
            active = await _activate(session, row, active, at + timedelta(hours=20))
    await session.flush()
    return made


async def _put_exam(session: AsyncSession, project_id: UUID) -> None:
    """Two versions."""
    for count in (_SCENARIOS // 2, _SCENARIOS):
        tasks = [
            NewExamTask(instruction=f"sum page {number}", scenario=f"sum {number // 3}", check_code="score = 1.0")
            for number in range(count * 3)
        ]
        await exams.put(session, project_id, "everyday", ExamSource.SUBMITTED, tasks)


def _release(project_id: UUID, number: int, run_id: UUID, at: datetime) -> tables.Release:
    trained = number != _CHANGED_API
    return tables.Release(
        project_id=project_id,
        number=number,
        model=_weights(number if trained else number - 1),
        state=ReleaseState.REJECTED if number in _REJECTED else ReleaseState.CANDIDATE,
        training_run_id=run_id if trained else None,
        tools="tools-1" if number < _CHANGED_API else "tools-2",
        prompt="prompt-1" if number < 20 else "prompt-2",
        created_at=at,
    )


def _weights(number: int) -> str:
    return sha256(str(number).encode()).hexdigest()[:32]


async def _evidence(
    session: AsyncSession, row: tables.Release, active: tables.Release, chance: Random
) -> dict[str, Json]:
    if row.number == _CHANGED_API:
        return {"reason": "the API ledger changed"}
    gain = -0.08 if row.number in _REJECTED else 0.2 if row.number == 7 else 0.05
    decision = decide(_results(0.6 + gain, 700, chance), _results(0.6, 850, chance))
    verdict = "reject" if row.number in _REJECTED else "promote"
    for release, name in ((row, "candidate"), (active, "incumbent")):
        figures = decision.figures[name]
        new = NewEvaluation(
            model=release.model, environment="office", settings=_SETTINGS, figures=figures, release_id=release.id
        )
        await exams.add(session, row.project_id, new)
    compared = {"number": active.number, "model": active.model}
    about = {"environment": "office", "evaluation": _SETTINGS, "compared_with": compared}
    return {"verdict": verdict, "reason": decision.reason, **about, **decision.figures}


def _results(success: float, tokens: int, chance: Random) -> list[TaskResult]:
    return [
        TaskResult(
            scenario=f"s{number // 3}",
            template="t",
            success=Random(number // 3).random() < success,
            turns=3 + number % 2,
            tokens=round(chance.gauss(tokens, 60)),
            stop="completed",
            offered=1,
            used=int(chance.random() < 0.7),
            wrote=int(chance.random() < 0.6),
        )
        for number in range(3 * _SCENARIOS)
    ]


async def _activate(
    session: AsyncSession, row: tables.Release, active: tables.Release, at: datetime
) -> tables.Release:
    """Serve a release instead of the one before. Returns the one that serves in the end."""
    active.state, active.watched_against, active.watched_since = ReleaseState.RETIRED, None, None
    await session.flush()  # one is active at a time
    row.state, row.activated_at = ReleaseState.ACTIVE, at
    actor = "server" if row.number == _CHANGED_API else "canary" if row.number % 2 else "gate"
    if actor == "canary":
        await _audit(session, row, AuditAction.CANARY_BEGAN, at - timedelta(hours=18), "gate", percent=10.0)
    await _audit(session, row, AuditAction.ACTIVATED, at, actor, previous=active.number)
    if row.number == _ROLLED_BACK:
        return await _roll_back(session, row, active, at + timedelta(days=1))
    if row.number == 28:
        row.watched_against, row.watched_since = active.id, at
        watch = {"state": "watching", "since": at, "baseline": {"number": active.number, "model": active.model}}
        row.evidence = (row.evidence or {}) | {"watch": msgspec.to_builtins(watch)}
    return row


async def _roll_back(
    session: AsyncSession, row: tables.Release, former: tables.Release, at: datetime
) -> tables.Release:
    row.state = ReleaseState.REJECTED
    await session.flush()
    former.state, former.activated_at = ReleaseState.ACTIVE, at
    reason = "lower reward: reward -0.31 [-0.44, -0.18] on 120 pairs"
    watch: dict[str, Any] = {"state": "rolled back", "reason": reason}
    row.evidence = (row.evidence or {}) | {"verdict": "reject", "reason": f"rolled back: {reason}", "watch": watch}
    await _audit(session, row, AuditAction.WATCH_ENDED, at, "watch", **watch)
    await _audit(session, former, AuditAction.ACTIVATED, at, "watch", previous=row.number)
    return former


async def _begin_canary(session: AsyncSession, row: tables.Release, now: datetime) -> None:
    row.state, row.canary_percent, row.canary_at = ReleaseState.CANARY, 20.0, now - timedelta(days=5)
    row.canary_shares = [msgspec.to_builtins(CanaryShare(20.0, row.canary_at))]
    await _audit(session, row, AuditAction.CANARY_BEGAN, row.canary_at, "gate", percent=20.0)


async def _audit(
    session: AsyncSession, row: tables.Release, action: AuditAction, at: datetime, actor: str, **detail: Json
) -> None:
    entry = tables.AuditEntry(
        project_id=row.project_id, release_id=row.id, actor=actor, action=action, detail=detail, created_at=at
    )
    session.add(entry)
    await session.flush()


async def _put_tools(session: AsyncSession, project_id: UUID) -> None:
    """The ledger, and the document that it had before it could delete entries."""
    before = Ledger().document("http://ledger.test")
    entries = before["paths"]["/entries"]
    delete = {**entries["get"], "operationId": "clear_entries", "summary": "delete all entries"}
    after = {**before, "paths": {"/entries": {**entries, "delete": delete}}}
    for number, document in enumerate((before, after), start=1):
        await session.merge(tables.ToolDocument(digest=f"document-{number}", document=document))
        await session.merge(tables.ToolSet(hash=f"tools-{number}", documents={"ledger": f"document-{number}"}))
        await session.merge(tables.PromptText(hash=f"prompt-{number}", text=f"You are an agent.\nRule {number}."))
    await apis.put(session, project_id, "ledger", source="upload", document=after, digest="document-2")
