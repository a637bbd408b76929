"""The gate between training and serving: a run's adapter becomes a candidate release, sits an exam, passes or not.

What passes is brought to serve by the API servers, once the model servers have proven that they have its weights,
and only if those that it was compared with still serve.
"""

import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import evaluations, models, releases
from app.db.database import Sessions
from app.db.evaluations import NewEvaluation
from app.db.models import ReleaseState
from app.records import Json
from app.run_settings import RunSettings
from trainer.evaluation.decision import Decision, Rules, decide
from trainer.evaluation.paired import Examiner, Sat, examine_candidate
from trainer.job import Progress


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """What a run wants to see served."""

    project_id: UUID
    run_id: UUID
    model: str  # the adapter's hash
    settings: RunSettings


class Held(msgspec.Struct, frozen=True):
    """What the gate left: the release, and the evidence that is on its row."""

    release_id: UUID
    number: int
    state: ReleaseState
    evidence: dict[str, Any]

    @property
    def decision(self) -> str:
        """passed, rejected or waiting."""
        if self.state is ReleaseState.CANDIDATE:
            return "waiting"
        return "rejected" if self.state is ReleaseState.REJECTED else "passed"

    @property
    def reason(self) -> str:
        return ". ".join(str(self.evidence[key]) for key in ("reason", "next") if key in self.evidence)


async def hold(
    sessions: Sessions,
    candidate: Candidate,
    examiner: Examiner | None,
    *,
    progress: Progress,
    rules: Rules | None = None,
    directory: Path | None = None,
) -> Held:
    """Propose the candidate, examine it, and approve or reject its release.

    Without an environment, or with too few scenarios to tell, it stays a candidate whose evidence says what to do.
    All results are written to `directory`/gate.json. A gate that has decided for this run decides nothing again.
    Raises EngineError where an engine is down: the candidate stays one, and the run can be retried. Raises what
    `progress` does where the run is cancelled or lost.
    """
    rules = rules or Rules()
    async with sessions.begin() as session:
        await progress.hold(session)
        release = await releases.propose(session, candidate.project_id, candidate.model, candidate.run_id)
        incumbent = await releases.active(session, candidate.project_id)
    gate = _Gate(sessions, progress, candidate, release, incumbent)
    if release.state != ReleaseState.CANDIDATE:
        return _held(release)
    if release.model == incumbent.model:
        return await gate.reject(
            {"reason": f"these are the very weights of release {incumbent.number}, which serves"}
        )
    if examiner is None or candidate.settings.gate_scenarios < rules.least:
        return await gate.wait(_untested(candidate.settings, rules, gate.by_hand))
    seed, count = zlib.crc32(candidate.run_id.bytes), candidate.settings.gate_scenarios
    sat = await examine_candidate(examiner, release.model, incumbent.model, scenarios=count, seed=seed)
    if directory is not None:
        sat.write(directory / "gate.json")
    decision = decide(sat.candidate, sat.incumbent, rules)
    evidence = await gate.record(sat, decision)
    if not decision.promote:
        return await gate.reject(evidence)
    if not candidate.settings.promote:
        return await gate.wait(evidence | {"next": f"the run was asked not to promote it: {gate.by_hand}"})
    return await gate.approve(evidence)


@dataclass(frozen=True)
class _Gate:
    """Writes what becomes of one candidate."""

    sessions: Sessions
    progress: Progress
    candidate: Candidate
    release: models.Release
    incumbent: models.Release

    @property
    def by_hand(self) -> str:
        return f"to serve it, activate it by hand (POST /v1/releases/{self.release.id}/activate)"

    async def record(self, sat: Sat, decision: Decision) -> dict[str, Json]:
        """A row for what each can do; the release's own row gets all that speaks for or against it: the result."""
        evidence: dict[str, Json] = {
            "verdict": "promote" if decision.promote else "reject",
            "reason": decision.reason,
            "compared_with": {"number": self.incumbent.number, "model": self.incumbent.model},
            "environment": self.candidate.settings.environment,
            "exam": sat.asked,
            **decision.figures,
        }
        async with self._begin() as session:
            for name, release in (("candidate", self.release), ("incumbent", self.incumbent)):
                await self._add_evaluation(session, release, sat.asked, decision.figures[name])
            await releases.note(session, self.release.id, evidence)
        return evidence

    async def wait(self, evidence: dict[str, Json]) -> Held:
        async with self._begin() as session:
            return _held(await releases.note(session, self.release.id, evidence))

    async def reject(self, evidence: dict[str, Json]) -> Held:
        async with self._begin() as session:
            return _held(await releases.reject(session, self.release.id, evidence))

    async def approve(self, evidence: dict[str, Json]) -> Held:
        """Unless other weights were activated meanwhile: with those it was not compared."""
        percent = self.candidate.settings.canary_percent
        async with self._begin() as session:
            await releases.locked(session, self.release.id)  # no release of the project changes from here on
            active = await releases.active(session, self.candidate.project_id)
            if active.model == self.incumbent.model:
                return _held(await releases.approve(session, self.release.id, evidence, percent))
            late = (
                f"it was compared with release {self.incumbent.number}, but release {active.number} was activated "
                f"during the exam: train again, or {self.by_hand}"
            )
            return _held(await releases.note(session, self.release.id, evidence | {"next": late}))

    @asynccontextmanager
    async def _begin(self) -> AsyncIterator[AsyncSession]:
        """A transaction in which the run is still this process's."""
        async with self.sessions.begin() as session:
            await self.progress.hold(session)
            yield session

    async def _add_evaluation(
        self, session: AsyncSession, release: models.Release, asked: dict[str, Json], figures: dict[str, Json]
    ) -> None:
        new = NewEvaluation(
            model=release.model,
            environment=self.candidate.settings.environment,
            settings=asked,
            figures=figures,
            run_id=self.candidate.run_id,
            release_id=release.id,
        )
        await evaluations.add(session, self.candidate.project_id, new)


def _untested(settings: RunSettings, rules: Rules, by_hand: str) -> dict[str, Json]:
    if not settings.environment:
        reason = "the run names no environment, so there was nothing to examine it on"
        cure = 'name one (environment="office") and train again'
    elif not settings.gate_scenarios:
        reason = "the run was asked to hold no gate (gate_scenarios=0)"
        cure = f"ask for {rules.least} scenarios or more and train again"
    else:
        reason = f"{settings.gate_scenarios} scenarios are too few to tell"
        cure = f"ask for {rules.least} or more (gate_scenarios) and train again"
    return {"verdict": "untested", "reason": reason, "next": f"{cure}; or, {by_hand}"}


def _held(release: models.Release) -> Held:
    return Held(release.id, release.number, release.state, release.evidence or {})
