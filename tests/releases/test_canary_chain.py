"""Many canaries one after the other, each a little worse and cheaper, without a gate."""

from datetime import timedelta

import numpy as np
import pytest

from app.db import tables
from app.db.database import Sessions
from app.db.tables import ReleaseState
from app.releases import store as releases
from app.releases.canary import CanaryAction, CanaryDecision, CanaryRules
from app.releases.reference import possible_loss
from app.releases.trials_store import CanaryTask
from tests.support.canary_project import Project, apply_decision, begin, evaluate, open_project
from tests.support.promoted_releases import EVEN, GAIN, exam, live
from tests.support.trials import START, Arm, judged, trial

LOSS, PER_ARM, CANARIES = 0.015, 1_990, 6


@pytest.fixture
async def project(committed: Sessions) -> Project:
    return await open_project(committed)


def _trial(rng: np.random.Generator, active: float, tokens: float) -> list[CanaryTask]:
    found = []
    for place in range(2 * PER_ARM):
        own, at = bool(rng.random() < 0.5), START + timedelta(minutes=place)
        success = rng.random() < active - LOSS * own
        cost = int(tokens * (0.8 if own else 1.0) * rng.uniform(0.5, 1.5))
        found.append(CanaryTask("mail", own, at, float(success), at, 0.0, 2, cost))
    return found


def _decided(tasks: list[CanaryTask], rules: CanaryRules) -> CanaryDecision:
    """At the first of some looks that decides."""
    found = judged(tasks[:500], rules)
    for count in range(1_000, len(tasks) + 1, 500):
        if found.action is not CanaryAction.WAIT:
            break
        found = judged(tasks[:count], rules)
    return found


def _chain(seed: int, *, accounts: bool) -> float:
    """Success in the end, from 0.95."""
    rng, success, lost = np.random.default_rng(seed), 0.95, 0.0
    for _ in range(CANARIES):
        rules = CanaryRules(max_scored=9_999, possible_loss=lost if accounts else 0.0)
        decision = _decided(_trial(rng, success, 300.0), rules)
        if decision.action is CanaryAction.PROMOTE:
            success, lost = success - LOSS, decision.possible_loss
            assert lost <= rules.margin or not accounts
    return success


@pytest.mark.slow
def test_losses_within_the_margin_do_not_add_up_beyond_it() -> None:
    seeds = range(3)
    assert all(_chain(seed, accounts=True) >= 0.95 - 0.05 for seed in seeds)
    assert min(_chain(seed, accounts=False) for seed in seeds) < 0.95 - 0.05, (
        "a comparison with the last one alone"
    )


def test_a_larger_gain_ends_the_account_and_the_gate_adds_nothing_to_it() -> None:
    fewer = trial(Arm(0.95, tokens=100), Arm(0.95), 1_500)
    rules = CanaryRules(max_scored=9_999)
    first = judged(fewer, rules)
    assert first.action is CanaryAction.PROMOTE
    assert first.possible_loss == pytest.approx(-_low(first))
    assert 0 < first.possible_loss <= 0.05
    second = judged(fewer, CanaryRules(max_scored=9_999, possible_loss=first.possible_loss))
    assert (second.action, second.possible_loss) == (CanaryAction.WAIT, 0.0)
    assert "fewer tokens count within 0.0" in second.reason
    examined = judged(fewer, CanaryRules(max_scored=9_999, possible_loss=0.04, passed_gate=True))
    assert (examined.action, examined.possible_loss) == (CanaryAction.PROMOTE, 0.04)
    better = judged(trial(Arm(0.9), Arm(0.3), 200), CanaryRules(possible_loss=0.04))
    assert (better.action, better.possible_loss) == (CanaryAction.PROMOTE, 0.0)


def _low(decision: CanaryDecision) -> float:
    difference = decision.metrics["reward"].difference
    assert difference is not None
    return difference.low


def test_a_gain_makes_up_for_no_more_than_itself() -> None:
    gain = trial(Arm(0.9), Arm(0.3), 200)
    low = _low(judged(gain))
    assert 0 < low < 0.9
    assert judged(gain, CanaryRules(possible_loss=0.9)).possible_loss == pytest.approx(0.9 - low)


async def test_a_gain_over_the_reference_in_an_exam_owes_nothing_of_what_came_before(project: Project) -> None:
    first = await _active(project)
    async with project.sessions.begin() as session:
        await releases.record_evidence(session, project.candidate, live(first, EVEN, lost=0.03))
    await project.promoter.activate(project.candidate, "canary")
    async with project.sessions.begin() as session:
        before = await releases.active(session, project.id)
        better = await releases.propose(session, project.id, "c0de")
        proven = exam(before, GAIN, reference=first, than=GAIN)
        await releases.approve(session, better.id, proven | live(before, EVEN, lost=0.03))
    await project.promoter.activate(better.id, "canary")
    async with project.sessions() as session:
        history = await releases.of_project(session, project.id)
    assert possible_loss(history, await _active(project)) == 0.0


@pytest.mark.slow
async def test_what_a_promotion_may_have_lost_is_kept_with_its_weights(project: Project) -> None:
    first = await _active(project)
    async with project.sessions.begin() as session:
        await releases.record_evidence(session, project.candidate, live(first, EVEN, lost=0.03))
    await project.promoter.activate(project.candidate, "canary")
    async with project.sessions.begin() as session:  # as an API document that changes does
        same = await releases.propose(session, project.id, "f00d")
        await releases.activate(session, same.id)
        cheaper = await releases.propose(session, project.id, "c0de")  # and an exam without a canary
        await releases.approve(session, cheaper.id, exam(same, reference=first))
    await project.promoter.activate(cheaper.id, "gate")
    project.candidate = await project.propose("cafe")
    await begin(project)
    await project.ended(project.candidate, 0.5, scenario="mail")
    await project.ended((await _active(project)).id, 1.0, scenario="mail")
    assert "within 0.02 of reward only, as earlier releases may have lost 0.03" in (await evaluate(project)).reason
    await project.ended((await _active(project)).id, 0.0, 200)
    await project.ended(project.candidate, 1.0, 200)
    assert await apply_decision(project) is CanaryAction.PROMOTE
    decision = ((await _active(project)).evidence or {})["canary"]["decision"]
    assert (decision["action"], decision["possible_loss"]) == ("promote", 0.0)


async def _active(project: Project) -> tables.Release:
    async with project.sessions() as session:
        active = await releases.active(session, project.id)
    assert active.state is ReleaseState.ACTIVE
    return active
