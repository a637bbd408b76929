"""The gate between training and serving: a run's adapter becomes a candidate release, which passes or is rejected.

The candidate and the active release are evaluated on the same scenarios, and where the candidate would pass, so
is the reference, the last release that has proven a gain, or the next since that can be evaluated. A release
that passed is activated by the API servers, once the model servers have proven that they have its weights, and
only if the weights that it was compared with still serve.

Where they are sampled, the results of both differ by luck, too. If these show neither a gain nor a loss beyond
the margin, both are examined greedily, on the same scenarios, and a gain in that lets the candidate pass. The
evidence says in words what the tasks of an exam could not show.
"""

import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.agent.prompts import prompt_of
from app.base.errors import AdapterError, EngineRefusalError, StagingError
from app.base.run_settings import MIN_JUDGED, MIN_KINDS, MIN_KNOWN, RunSettings
from app.base.values import Json
from app.db import tables
from app.db.database import Sessions
from app.db.tables import ReleaseState
from app.releases import store as releases
from app.releases.exams import store as exams
from app.releases.exams.store import NewEvaluation
from app.releases.reference import since_reference
from trainer.evaluation.gate_decision import GateDecision, GateRules, check_reference, decide, look_greedily
from trainer.evaluation.local import Evaluator, PairedResults, evaluate_again, evaluate_pair
from trainer.run_job import RunProgress

_CHECKS = "make an exam with more tasks that have a check (POST /v1/exams)"
_LIVE_TASKS_DECIDE = "Recorded calls show no gain on tasks that were never solved: live tasks decide (gate=canary)"


class _Ground(msgspec.Struct, frozen=True):
    """The words for what trials run on."""

    unjudged: str = "that cannot be judged"  # tasks
    unknown: str = "have unknown results"  # scenarios
    advice: str = "name an environment with more scenarios"


_GROUNDS = {
    "recorded": _Ground(
        "without a record that solved it by today's operations",
        "asked for what was never recorded",
        "have more tasks scored",
    ),
    "staging": _Ground("without a check", advice=_CHECKS),
    "live": _Ground("without a check or a record that only read", "tried to write", _CHECKS),
}


class UndecidedError(Exception):
    """The results of an exam are too few to decide by."""

    def __init__(self, results: PairedResults, reason: str, advice: str = "") -> None:
        super().__init__(reason)
        self.evaluation: dict[str, Json] = results.settings
        self.advice = advice or _advice(results)  # what would let them decide


def check_decidable(results: PairedResults, min_scenarios: int) -> None:
    """Raises UndecidedError."""
    known, scenarios = results.settings["coverage"], len({each.scenario for each in results.candidate})
    also = "" if results.reference is None else ", also of the reference"
    if known < MIN_KNOWN:
        share = f"the results of {known:.0%} of the scenarios are known{also}, {MIN_KNOWN:.0%} are needed"
        raise UndecidedError(results, f"{share}: the others {_ground(results).unknown}")
    if scenarios < min_scenarios:
        number = f"the exam has {scenarios} scenarios to examine on{also}, {min_scenarios} are needed"
        raise UndecidedError(results, number + left_out(results))
    exam = results.settings.get("exam", {})
    every = exam.get("kinds", 0)
    tried = every - exam.get("kinds_left_out", 0)
    if tried < MIN_JUDGED * every:
        number = f"the exam can be tried on tasks of {tried} of its {every} kinds, {MIN_JUDGED:.0%} are needed"
        raise UndecidedError(results, number + left_out(results))
    known_kinds = len({each.template for each in results.candidate})
    if exam and known_kinds < MIN_KINDS:
        number = f"the exam has tasks of {known_kinds} kinds to examine on{also}, {MIN_KINDS} are needed"
        raise UndecidedError(results, number + left_out(results))
    every_result = (*results.candidate, *results.incumbent, *(results.reference or ()))
    if exam and not any(each.success for each in every_result):
        nobody = "no release solved a task of the exam, so it compares nothing"
        raise UndecidedError(results, nobody + left_out(results), "mend the checks if nothing can pass them")


def left_out(results: PairedResults) -> str:
    """The end of a sentence that says which tasks of the exam were left out; empty if none was."""
    exam = results.settings.get("exam", {})
    unjudged, idle = exam.get("tasks_left_out", 0), exam.get("true_whatever_happens", 0)
    parts = [f"{unjudged} {_ground(results).unjudged}"] if unjudged else []
    if idle:
        parts.append(f"{idle} that doing nothing solves (checks that are true whatever happens)")
    return f"; tasks left out: {', '.join(parts)}" if parts else ""


def _advice(results: PairedResults) -> str:
    if results.settings.get("exam", {}).get("true_whatever_happens"):
        return f"mend the checks that pass when nothing is done, {_ground(results).advice}"
    return _ground(results).advice


def _ground(results: PairedResults) -> _Ground:
    exam = results.settings.get("exam")
    return _GROUNDS[exam["on"]] if exam else _Ground()


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """A release, and those that would have been the reference if an engine could still load their adapters."""

    release: tables.Release
    is_examined: bool  # its weights are neither the incumbent's nor the candidate's
    gone: Sequence[tables.Release] = ()

    @property
    def left_out(self) -> str:
        """The end of a sentence; empty if nothing was."""
        if not self.gone:
            return ""
        numbers = ", ".join(str(release.number) for release in self.gone)
        return f"; the reference is not release {numbers}: the adapter is gone, or of another base model"


async def find_reference(
    sessions: Sessions, evaluator: Evaluator, incumbent: tables.Release, candidate: tables.Release
) -> Reference:
    """Of the incumbent. Raises EngineError if an adapter may be there, but cannot be fetched or loaded now."""
    async with sessions() as session:
        history = await releases.of_project(session, incumbent.project_id)
    gone: list[tables.Release] = []
    for release in since_reference(history, incumbent):
        if release.model in (incumbent.model, candidate.model):
            return Reference(release=release, is_examined=False, gone=gone)
        if await _loads(sessions, evaluator, release):
            return Reference(release=release, is_examined=True, gone=gone)
        gone.append(release)
    return Reference(release=incumbent, is_examined=False, gone=gone)


async def _loads(sessions: Sessions, evaluator: Evaluator, release: tables.Release) -> bool:
    async with sessions() as session:
        adapter = await session.get(tables.Adapter, release.model)
    if adapter is not None and adapter.base != evaluator.base:
        return False
    try:
        await evaluator.load(release.model)
    except (AdapterError, EngineRefusalError):
        return False
    return True


class CandidateAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """The adapter that a run proposes for serving."""

    project_id: UUID
    run_id: UUID
    model: str  # the adapter's hash
    settings: RunSettings
    without_exam: str = ""  # why the project's own work is no exam
    no_time: str = ""  # why the run has none left for its exam


class Guarded(NamedTuple):
    """What a guard found: the figures, and why the candidate must not pass, if so."""

    figures: dict[str, Json]
    refusal: str = ""


Guard: TypeAlias = Callable[[Evaluator, str, str], Awaitable[Guarded]]
"""Looks at a candidate that would pass, beside the model that serves, for what the exam does not show."""


class GateResult(msgspec.Struct, frozen=True):
    """The candidate's release after the gate, with the evidence on its row."""

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


async def evaluate_candidate(
    sessions: Sessions,
    candidate: CandidateAdapter,
    evaluator: Evaluator | None,
    *,
    progress: RunProgress,
    rules: GateRules | None = None,
    directory: Path | None = None,
    guard: Guard | None = None,
) -> GateResult:
    """Propose the candidate, evaluate it, and approve or reject its release. A `guard` may reject one that passes
    the exam, or that live tasks were to decide about.

    Where no exam can decide, live tasks do if the run says so (gate=canary), unless the run had no time for its
    exam or the guard cannot be asked. Or else it stays a candidate whose evidence states what to do. All results
    are written to `directory`/gate.json. If the gate has already decided for this run, that result is returned.

    Raises EngineError if an engine is down: the release stays a candidate, and the run can be retried.
    Raises what `progress` raises if the run is cancelled or lost.
    """
    rules = rules or GateRules()
    async with sessions.begin() as session:
        await progress.hold(session)
        release = await releases.propose(session, candidate.project_id, candidate.model, candidate.run_id)
        incumbent = await releases.active(session, candidate.project_id)
        served = await session.get(tables.Adapter, incumbent.model)
    gate = _Gate(sessions, progress, candidate, release, incumbent, evaluator, guard)
    if release.state != ReleaseState.CANDIDATE:
        return _result(release)
    if release.model == incumbent.model:
        return await gate.reject(
            {"reason": f"its weights are those of the active release, number {incumbent.number}"}
        )
    if evaluator is None or candidate.settings.gate_scenarios < rules.min_scenarios:
        return await gate.go_without(*_not_evaluated(candidate, rules))
    if incumbent.prompt not in (None, prompt_of(incumbent.model, evaluator.prompt_hash)):
        reason = "this worker renders another prompt than the one that is served"
        advice = "give workers and runners one version and one SAGE_PROMPT_PROFILE and train again"
        return await gate.wait({"verdict": "untested", "reason": reason, "next": f"{advice}, or {gate.by_hand}"})
    if served is not None and served.base != evaluator.base:
        reason = f"the active release has an adapter for {served.base}, but {evaluator.base} is served"
        return await gate.wait({"verdict": "untested", "reason": reason, "next": gate.by_hand})
    return await gate.examine(evaluator, rules, directory)


@dataclass(frozen=True)
class _Gate:
    """Writes the outcome for one candidate."""

    sessions: Sessions
    progress: RunProgress
    candidate: CandidateAdapter
    release: tables.Release
    incumbent: tables.Release
    evaluator: Evaluator | None
    guard: Guard | None

    async def examine(self, evaluator: Evaluator, rules: GateRules, directory: Path | None) -> GateResult:
        """Evaluate, decide, and act on the decision."""
        try:
            compared = await self.compare(await self.evaluate(evaluator), evaluator, rules)
        except UndecidedError as undecided:
            return await self.go_without(str(undecided), undecided.advice, undecided.evaluation)
        except StagingError as error:  # the trained weights are kept
            return await self.go_without(str(error), "mend what resets it")
        if directory is not None:
            compared.results.write(directory / "gate.json")
        evidence = await self.record(compared)
        if compared.decision.promote or self.may_be_better(compared):
            guarded = await self.guarded()
            evidence |= guarded.figures
            if guarded.refusal:
                return await self.reject(evidence | _refused(guarded, evidence["reason"]))
        if not compared.decision.promote:
            if self.may_be_better(compared):
                reason = f"{evidence['reason']}. {_LIVE_TASKS_DECIDE}"
                return await self.approve(evidence | {"verdict": "canary", "reason": reason})
            return await self.reject(evidence)
        if not self.candidate.settings.promote:
            return await self.wait(
                evidence | {"next": f"the run does not promote (promote=false): {self.by_hand}"}
            )
        return await self.approve(evidence)

    def may_be_better(self, compared: "_Comparison") -> bool:
        """Whether live tasks are to decide about it, as it is neither better nor worse on recorded calls."""
        exam = compared.results.settings.get("exam", {})
        return self.asks_live_tasks and exam.get("on") == "recorded" and not compared.decision.worse

    @property
    def asks_live_tasks(self) -> bool:
        """Whether the run wants them to decide where no exam does."""
        return self.candidate.settings.gate == "canary" and self.candidate.settings.promote

    async def go_without(self, reason: str, advice: str, evaluation: dict[str, Json] | None = None) -> GateResult:
        """Where no exam decides, for a reason, live tasks do if the run says so. The advice is for those who train
        again; `evaluation` are the settings of an exam that was not enough.
        """
        settings, evidence = self.candidate.settings, dict[str, Json]()
        if evaluation is not None:
            evidence = {"environment": settings.environment, "evaluation": evaluation}
        if self.asks_live_tasks and self.may_pass_untested:
            guarded = await self.guarded()
            evidence |= guarded.figures | {"compared_with": _named(self.incumbent)}
            if guarded.refusal:
                return await self.reject(evidence | _refused(guarded, reason))
            told = {"verdict": "canary", "reason": f"{reason}: live tasks decide (gate=canary)"}
            return await self.approve(evidence | told)
        by_canary = ", or set gate=canary" if settings.gate != "canary" and self.may_pass_untested else ""
        after = f"{advice}{by_canary}, and train again, or {self.by_hand}"
        return await self.wait(evidence | {"verdict": "untested", "reason": reason, "next": after})

    @property
    def may_pass_untested(self) -> bool:
        """Whether live tasks may decide without an exam: not about a run that was too short for one, nor unguarded
        where there is a guard.
        """
        return not self.candidate.no_time and (self.guard is None or self.evaluator is not None)

    async def guarded(self) -> Guarded:
        """What the guard says of the candidate: nothing where there is none, or nobody to ask it of."""
        if self.guard is None or self.evaluator is None:
            return Guarded({})
        return await self.guard(self.evaluator, self.release.model, self.incumbent.model)

    async def evaluate(self, evaluator: Evaluator) -> PairedResults:
        """The candidate and the incumbent, on the scenarios whose results are known of both."""
        seed, count = zlib.crc32(self.candidate.run_id.bytes), self.candidate.settings.gate_scenarios
        both = self.release.model, self.incumbent.model
        return (await evaluate_pair(evaluator, *both, scenarios=count, seed=seed)).only_known()

    async def compare(self, results: PairedResults, evaluator: Evaluator, rules: GateRules) -> "_Comparison":
        """Decide, also by the reference if the candidate would pass. Raises UndecidedError."""
        check_decidable(results, rules.min_scenarios)
        decision = decide(results.candidate, results.incumbent, rules)
        if decision.open and evaluator.temperature:
            greedy = await self.evaluate(replace(evaluator, temperature=0.0))
            results = msgspec.structs.replace(results, greedy=greedy)
            if greedy.settings["coverage"] >= MIN_KNOWN:
                decision = look_greedily(decision, greedy.candidate, greedy.incumbent, rules)
        if not decision.promote:
            return _Comparison(results, decision)
        found = await find_reference(self.sessions, evaluator, self.incumbent, self.release)
        if found.is_examined:
            third = await evaluate_again(results, evaluator, found.release.model)
            results = msgspec.structs.replace(results, reference=third).only_known()
            check_decidable(results, rules.min_scenarios)
            decision = check_reference(decision, results.candidate, results.reference or (), rules)
        return _Comparison(results, decision, found)

    @property
    def by_hand(self) -> str:
        return f"activate it by hand (POST /v1/releases/{self.release.id}/activate)"

    async def record(self, compared: "_Comparison") -> dict[str, Json]:
        """Store an evaluation for each model, and the evidence, which is returned, on the candidate's release."""
        results, decision, found = compared
        evidence = {
            "verdict": "promote" if decision.promote else "reject",
            "reason": decision.reason + left_out(results) + (found.left_out if found else ""),
            "compared_with": _named(self.incumbent),
            **({"reference_release": _named(found.release)} if found else {}),
            "environment": self.candidate.settings.environment,
            "evaluation": results.settings,
            **decision.figures,
        }
        async with self._begin() as session:
            evaluated = {"candidate": self.release, "incumbent": self.incumbent}
            if found is not None and found.is_examined:
                evaluated["reference"] = found.release
            for name, release in evaluated.items():
                new = NewEvaluation(
                    model=release.model,
                    environment=self.candidate.settings.environment,
                    settings=results.settings,
                    figures=decision.figures[name],
                    run_id=self.candidate.run_id,
                    release_id=release.id,
                )
                await exams.add(session, self.candidate.project_id, new)
            await releases.record_evidence(session, self.release.id, evidence)
        return evidence

    async def wait(self, evidence: dict[str, Json]) -> GateResult:
        async with self._begin() as session:
            return _result(await releases.record_evidence(session, self.release.id, evidence))

    async def reject(self, evidence: dict[str, Json]) -> GateResult:
        async with self._begin() as session:
            return _result(await releases.reject(session, self.release.id, evidence))

    async def approve(self, evidence: dict[str, Json]) -> GateResult:
        """Approve the release, unless other weights were activated since: it was not compared with those."""
        percent = self.candidate.settings.canary_percent
        async with self._begin() as session:
            await releases.locked(session, self.release.id)  # from here on no release of the project changes
            active = await releases.active(session, self.candidate.project_id)
            if active.model == self.incumbent.model:
                return _result(await releases.approve(session, self.release.id, evidence, percent))
            outdated = (
                f"it was compared with release {self.incumbent.number}, but release {active.number} was activated "
                f"during the evaluation: train again, or {self.by_hand}"
            )
            return _result(await releases.record_evidence(session, self.release.id, evidence | {"next": outdated}))

    @asynccontextmanager
    async def _begin(self) -> AsyncIterator[AsyncSession]:
        """A transaction in which this process holds the run."""
        async with self.sessions.begin() as session:
            await self.progress.hold(session)
            yield session


class _Comparison(NamedTuple):
    results: PairedResults
    decision: GateDecision
    reference: Reference | None = None  # where the candidate would pass by the incumbent alone


def _named(release: tables.Release) -> dict[str, Json]:
    return {"number": release.number, "model": release.model}


def _refused(guarded: Guarded, exam: str) -> dict[str, Json]:
    return {"verdict": "reject", "reason": f"{guarded.refusal}; in the exam, {exam}"}


def _not_evaluated(candidate: CandidateAdapter, rules: GateRules) -> tuple[str, str]:
    """Why, and the advice."""
    count = candidate.settings.gate_scenarios
    if candidate.no_time:
        return candidate.no_time, "give it more hours"
    if not candidate.settings.environment:
        reason = "the run names no environment to evaluate it in"
        if candidate.without_exam:
            reason += f", and {candidate.without_exam}"
        return reason, "let the project hold out more work (holdout_percent), or set environment"
    reason = f"{count} scenarios are too few" if count else "the run skips the evaluation (gate_scenarios=0)"
    return reason, f"set gate_scenarios to at least {rules.min_scenarios}"


def _result(release: tables.Release) -> GateResult:
    return GateResult(release.id, release.number, release.state, release.evidence or {})
