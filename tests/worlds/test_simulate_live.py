"""The simulation of live traffic: what each arm gets, and what its results mean."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from app.base.errors import InvalidError
from app.base.run_settings import MIN_KINDS
from trainer.worlds.office.scenarios import templates_of
from trainer.worlds.simulate_live.findings import as_markdown, curves, findings, success_by_day
from trainer.worlds.simulate_live.simulation import Day, Simulation, SimulationPlan, SimulationState

PLAN = SimulationPlan(days=20, tasks=40, kinds=30)


def test_a_day_has_the_same_tasks_for_every_arm_and_no_task_comes_twice() -> None:
    assert PLAN.places(3) == PLAN.places(3)
    worlds = [place.world() for day in range(1, 21) for place in PLAN.places(day)]
    assert len(set(worlds)) == 20 * 40
    assert SimulationPlan(days=20, seed=1).kinds_on(1) != PLAN.kinds_on(1)


def test_kinds_come_and_go_and_the_apis_change_once() -> None:
    days = [set(PLAN.kinds_on(day)) for day in range(1, 21)]
    assert {len(kinds) for kinds in days} == {30}
    assert days[0] | days[-1] <= set(templates_of("test"))
    assert len(days[-1] - days[0]) == PLAN.changes
    assert [PLAN.site(day) for day in (1, 12, 13, 20)] == [0, 0, 1, 1]
    assert {place.site for place in PLAN.places(13)} == {1}


def test_people_score_their_share_and_are_sometimes_wrong() -> None:
    def given(arm: str) -> list[float]:
        every = [PLAN.score(PLAN.arms[arm], day, number, solved=True) for day in range(50) for number in range(40)]
        return [score for score in every if score is not None]

    assert 150 < len(given("learning")) < 250
    assert given("learning") == given("off"), "the arms differ in training alone"
    assert 0.93 < sum(given("all scored")) / 2000 < 0.97
    assert set(given("poisoned")) == {0.0}
    assert given("trivial check") == []


def test_own_work_is_examined_without_an_environment() -> None:
    arms = PLAN.arms
    assert PLAN.run_settings(arms["learning"], 13)["environment"] == "office?site=1&busy=0.35"
    own = PLAN.run_settings(arms["own work"], 13)
    assert ("environment" in own, own["gate"]) == (False, "canary")
    held_out = arms["own work"].holdout / 100 * PLAN.kinds
    assert held_out >= MIN_KINDS
    assert msgspec.structs.replace(arms["own work"], holdout=0) == arms["learning"]


def day(number: int, arm: str, solved: int, **releases: str) -> Day:
    return Day(
        day=number,
        arm=arm,
        solved=[True] * solved + [False] * (10 - solved),
        kinds=[f"k{each % 5}" for each in range(10)],
        scores=1,
        tokens=50,
        turns=2,
        skills_used=0.5,
        served_by={"1": 10},
        releases={"1": "active"} | {name.lstrip("r"): state for name, state in releases.items()},
        ended=number,
    )


def state(learning: Callable[[int], Day]) -> SimulationState:
    days = [each for number in range(1, 21) for each in (day(number, "off", 4), learning(number))]
    return SimulationState(plan=PLAN, days=days)


def test_findings_tell_what_learning_gained_and_what_became_of_releases() -> None:
    def learning(number: int) -> Day:
        if number <= 5:
            return day(number, "learning", 4)
        if number <= 8:
            return day(number, "learning", 4, r2="canary")
        if number == 9:
            return day(number, "learning", 2, r2="active", r3="rejected")
        return day(number, "learning", 8, r2="rejected" if number > 15 else "active", r3="rejected")

    found = findings([state(learning)])["learning"]
    assert (found.start, found.end) == (40, 80)
    assert (found.promoted, found.rejected, found.rolled_back, found.trial_days) == (1, 1, 1, [3])
    assert found.over_off is not None
    assert (found.over_off.mean, found.lowest) == (40, -4)
    assert "| learning | 1 | 20 | 40.0 | 80.0 | -4.0 | 1 | 1 | 1 | 1 | 1 | 3 | +40.0 [" in as_markdown(
        findings([state(learning)])
    )
    assert curves([state(learning)])["learning"][0][-1] == (20, 80)


def test_findings_tell_for_how_long_success_was_below_the_start_and_below_no_training() -> None:
    def worse(number: int) -> Day:
        return day(number, "learning", 5 if number <= 5 else 3 if number <= 12 else 4)

    found = findings([state(worse)])
    assert (found["learning"].days_below_start, found["learning"].days_below_off) == (15, 7)
    assert (found["off"].days_below_start, found["off"].days_below_off) == (0, 0)


def test_a_simulation_without_an_arm_or_with_half_of_it_is_compared_as_far_as_it_goes() -> None:
    whole = state(lambda number: day(number, "learning", 8))
    without = SimulationState(plan=PLAN, days=[each for each in whole.days if each.arm == "off"])
    other = [day(number, "off", 4 if number <= 12 else 9) for number in range(1, 21)]
    half = SimulationState(plan=PLAN, days=[*other, *(day(number, "learning", 8) for number in range(1, 13))])
    found = findings([whole, without, half])["learning"]
    assert (found.seeds, found.days) == (2, 12)
    assert found.over_off is not None
    assert found.over_off.mean == pytest.approx(40)


def test_the_days_of_each_arm_and_seed_are_told_as_they_are() -> None:
    one = state(lambda number: day(number, "learning", 4 if number <= 10 else 8))
    found = success_by_day([one])
    assert found == {"off": {0: [40.0] * 20}, "learning": {0: [40.0] * 10 + [80.0] * 10}}
    shorter = SimulationState(plan=msgspec.structs.replace(PLAN, seed=1), days=one.days[:3])
    assert success_by_day([one, shorter])["off"] == {0: [40.0] * 20, 1: [40.0] * 2}


def test_an_interrupted_simulation_goes_on_with_its_own_plan_only(tmp_path: Path) -> None:
    first = Simulation(PLAN, ["off"], tmp_path)
    first.state.days.append(day(1, "off", 5))
    first._save()
    again = Simulation(PLAN, ["off", "learning"], tmp_path)
    assert again.state == first.state
    with pytest.raises(InvalidError, match="use these, or another --work"):
        Simulation(msgspec.structs.replace(PLAN, tasks=41), ["off"], tmp_path)
