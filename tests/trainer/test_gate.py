"""The gate on a real database and in real worlds of the environment; the policies are scripts."""

from pathlib import Path
from typing import NoReturn

import msgspec
import pytest
import structlog

from app.base.errors import ConflictError, EngineError, StagingError
from app.base.run_settings import MIN_KINDS
from app.db.database import Sessions
from app.db.tables import ReleaseState
from app.releases import manifest_store
from app.releases import store as releases
from app.sandbox.forked_sandbox import ForkedSandbox
from tests.support.evaluated_server import ExpertPolicy
from tests.support.gated_run import (
    NEW,
    RULES,
    SCENARIOS,
    SERVING,
    FixedScenarios,
    GatedRun,
    PartlyKnown,
    lazy,
    wordy,
)
from tests.support.scripted_engine import Answer


@pytest.fixture
async def run(sessions: Sessions, bare_sandbox: ForkedSandbox, tmp_path: Path) -> GatedRun:
    return await GatedRun(sessions, bare_sandbox, tmp_path).open()


async def test_a_better_candidate_passes_and_is_not_active_before_servers_have_proven_it(
    run: GatedRun,
) -> None:
    policies = run.policies(base=lazy, new=run.expert)
    result = await run.evaluate(policies)
    assert (result.number, result.state) == (2, ReleaseState.PASSED)
    assert (await run.active()).number == 1
    assert policies.loaded == {NEW: Path("/adapters") / NEW}
    assert (result.decision, result.evidence["verdict"]) == ("passed", "promote")
    assert result.evidence["difference"]["sgc"]["mean"] == 100
    assert result.evidence["compared_with"] == {"number": 1, "model": "base"}


async def test_a_candidate_of_another_base_model_than_the_active_release_waits(run: GatedRun) -> None:
    await run.serve_since_best()
    async with run.sessions.begin() as session:
        await manifest_store.put(session, SERVING, base="the-base-of-before", rank=1, project_id=run.project_id)
    policies = run.policies(new=run.expert)
    result = await run.evaluate(policies)
    assert (result.decision, result.evidence["verdict"], policies.loaded) == ("waiting", "untested", {})
    assert result.reason.startswith(
        "the active release has an adapter for the-base-of-before, but the-base-model is served. activate it"
    )


async def test_both_are_evaluated_greedily_on_the_validation_split(run: GatedRun) -> None:
    policies = run.policies(base=lazy, new=run.expert)
    await run.evaluate(policies)
    assert run.environment.requests == [("validation", SCENARIOS)]
    samplings = [each for engine in policies.scripts.values() for each in engine.samplings]
    assert {each.temperature for each in samplings} == {0.0}
    assert len(policies.scripts["base"].samplings) == 2 * 3 * SCENARIOS, "each is told once"


@pytest.mark.parametrize("gains", [True, False])
async def test_what_sampling_hides_is_looked_for_greedily_on_the_same_scenarios(
    run: GatedRun, gains: bool
) -> None:
    """As it serves, the candidate solves the same scenario as the active release, in more tokens."""
    run.temperature = 1.0
    one = run.environment.fixed[:1]
    same = run.expert_in(one, otherwise=wordy)
    better = run.expert if gains else same

    def candidate(prompt: str, turn: int) -> Answer:
        greedy = policies.scripts[NEW].samplings[-1].temperature == 0
        return (better if greedy else same)(prompt, turn)

    policies = run.policies(base=run.expert_in(one), new=candidate)
    result = await run.evaluate(policies, rules=msgspec.structs.replace(RULES, margin=100))
    assert result.decision == ("passed" if gains else "rejected")
    assert "greedily, it s" in result.reason
    assert result.evidence["difference"]["gained"] == 0
    assert result.evidence["greedy_difference"]["gained"] == (3 if gains else 0)
    for name in ("base", NEW):
        half = len(policies.scripts[name].samplings) // 2
        assert {each.temperature for each in policies.scripts[name].samplings[:half]} >= {1.0}
        assert policies.scripts[name].samplings[-1].temperature == 0


async def test_where_sampling_shows_a_gain_nothing_is_examined_twice(run: GatedRun) -> None:
    run.temperature = 1.0
    policies = run.policies(base=lazy, new=run.expert)
    result = await run.evaluate(policies)
    assert result.decision == "passed"
    assert {each.temperature for each in policies.scripts[NEW].samplings} == {1.0}
    assert "greedy_difference" not in result.evidence


async def test_how_often_a_gain_is_seen_is_said_before_the_exam_and_in_its_evidence(run: GatedRun) -> None:
    policies, said_before = run.policies(base=lazy, new=run.expert), list[str]()
    power = "4 scenarios: a gain of 5 points is seen 0 times in 100 if no scenario is lost, else more seldom"
    with structlog.testing.capture_logs() as logged:

        async def first() -> None:
            said_before.extend(each["power"] for each in logged)

        policies.before = first
        result = await run.evaluate(policies)
    assert said_before == [power]
    assert result.evidence["evaluation"]["power"] == power


async def test_the_metrics_of_each_are_in_a_row_and_all_results_in_a_file(run: GatedRun) -> None:
    await run.evaluate(run.policies(base=lazy, new=run.expert))
    rows = await run.evaluations(run.run_id)
    assert [(row.model, row.environment) for row in rows] == [(NEW, "office"), ("base", "office")]
    assert [row.figures["sgc"]["mean"] for row in rows] == [100, 0]
    assert rows[0].figures["library_size"]["mean"] == 1
    assert rows[0].settings["scenarios"] == SCENARIOS
    written = msgspec.json.decode((run.directory / "gate.json").read_bytes())
    assert len(written["candidate"]) == len(written["incumbent"]) == 3 * SCENARIOS


async def test_a_worse_candidate_is_rejected_and_the_active_release_stays(run: GatedRun) -> None:
    result = await run.evaluate(run.policies(base=run.expert, new=lazy))
    assert result.state is ReleaseState.REJECTED
    assert result.decision == "rejected"
    assert result.reason.startswith("it solves fewer scenarios: SGC -100.0")
    assert (await run.active()).number == 1


async def test_a_release_that_passed_starts_as_a_canary_by_default(run: GatedRun) -> None:
    await run.open()
    result = await run.evaluate(run.policies(base=lazy, new=run.expert))
    async with run.sessions() as session:
        release = await releases.get(session, result.release_id)
    assert (release.state, release.canary_percent) == (ReleaseState.PASSED, 10.0)


async def test_the_canary_share_of_the_run_is_on_the_release_that_passed(run: GatedRun) -> None:
    await run.open(canary_percent=12.5)
    result = await run.evaluate(run.policies(base=lazy, new=run.expert))
    async with run.sessions() as session:
        release = await releases.get(session, result.release_id)
    assert (release.state, release.canary_percent) == (ReleaseState.PASSED, 12.5)


class NeverReset(FixedScenarios):
    """As if the APIs were those of a staging server that cannot be reset."""

    def open(self, *_: object) -> NoReturn:
        raise StagingError("the staging server of mail cannot be reset: 503")


async def test_a_candidate_whose_staging_server_cannot_be_reset_waits_and_says_why(run: GatedRun) -> None:
    run.environment = NeverReset()
    result = await run.evaluate(run.policies(base=lazy, new=run.expert))
    assert (result.state, result.decision) == (ReleaseState.CANDIDATE, "waiting")
    assert result.reason.startswith("the staging server of mail cannot be reset: 503")
    assert "activate it by hand" in result.evidence["next"]
    assert (await run.active()).number == 1


async def test_a_run_that_does_not_promote_leaves_a_waiting_candidate(run: GatedRun) -> None:
    await run.open(promote=False)
    result = await run.evaluate(run.policies(base=lazy, new=run.expert))
    assert result.state is ReleaseState.CANDIDATE
    assert result.evidence["verdict"] == "promote"
    assert "activate it by hand" in result.evidence["next"]
    assert (await run.active()).number == 1


async def test_without_an_environment_the_candidate_waits_and_says_what_to_do(run: GatedRun) -> None:
    await run.open(environment="")
    result = await run.evaluate(None)
    assert result.state is ReleaseState.CANDIDATE
    assert (result.decision, result.evidence["verdict"]) == ("waiting", "untested")
    assert "names no environment" in result.reason
    assert f"POST /v1/releases/{result.release_id}/activate" in result.reason


async def test_without_an_exam_live_tasks_decide_if_the_run_says_so(run: GatedRun) -> None:
    await run.open(environment="", gate="canary", canary_percent=10)
    result = await run.evaluate(None)
    async with run.sessions() as session:
        release = await releases.get(session, result.release_id)
    assert (release.state, release.canary_percent) == (ReleaseState.PASSED, 10)
    assert result.evidence["verdict"] == "canary"
    assert result.reason.endswith("live tasks decide (gate=canary)")


@pytest.mark.parametrize(
    ("known", "reason"),
    [
        (3, "the results of 75% of the scenarios are known, 80% are needed"),
        (0, "the results of 0% of the scenarios are known, 80% are needed"),
    ],
)
async def test_where_an_exam_knows_too_little_live_tasks_decide_if_the_run_says_so(
    run: GatedRun, known: int, reason: str
) -> None:
    await run.open(gate="canary")
    run.environment = PartlyKnown(NEW, known)
    result = await run.evaluate(run.policies(base=lazy, new=run.expert))
    assert (result.state, result.evidence["verdict"]) == (ReleaseState.PASSED, "canary")
    assert result.reason.startswith(reason)
    assert result.reason.endswith("live tasks decide (gate=canary)")
    assert result.evidence["compared_with"] == {"number": 1, "model": "base"}
    assert result.evidence["evaluation"]["coverage"] == known / SCENARIOS
    assert result.evidence["environment"] == run.settings.environment


async def test_where_an_exam_knows_too_little_a_person_decides_by_default(run: GatedRun) -> None:
    run.environment = PartlyKnown(NEW, 3)
    result = await run.evaluate(run.policies(base=lazy, new=run.expert))
    assert (result.state, result.evidence["verdict"]) == (ReleaseState.CANDIDATE, "untested")
    assert ", or set gate=canary, and train again, or activate it by hand" in result.evidence["next"]


async def test_where_the_run_skips_the_exam_live_tasks_decide_if_it_says_so(run: GatedRun) -> None:
    await run.open(gate="canary", gate_scenarios=0)
    result = await run.evaluate(None)
    assert (result.state, result.evidence["verdict"]) == (ReleaseState.PASSED, "canary")
    assert result.reason == "the run skips the evaluation (gate_scenarios=0): live tasks decide (gate=canary)"


async def test_where_staging_cannot_be_reset_live_tasks_decide_if_the_run_says_so(run: GatedRun) -> None:
    await run.open(gate="canary")
    run.environment = NeverReset()
    result = await run.evaluate(run.policies(base=lazy, new=run.expert))
    assert (result.state, result.evidence["verdict"]) == (ReleaseState.PASSED, "canary")
    assert result.reason.startswith("the staging server of mail cannot be reset: 503: live tasks decide")


async def test_where_there_is_an_exam_it_decides_first(run: GatedRun) -> None:
    await run.open(gate="canary", canary_percent=10)
    result = await run.evaluate(run.policies(base=run.expert, new=lazy))
    assert result.state is ReleaseState.REJECTED


@pytest.mark.parametrize(
    ("on", "gate", "worse", "state", "verdict"),
    [
        ("recorded", "canary", False, ReleaseState.PASSED, "canary"),
        ("recorded", "canary", True, ReleaseState.REJECTED, "reject"),
        ("recorded", "exam", False, ReleaseState.REJECTED, "reject"),
        ("staging", "canary", False, ReleaseState.REJECTED, "reject"),
    ],
)
async def test_live_tasks_decide_where_recorded_calls_show_neither_gain_nor_loss(
    run: GatedRun, on: str, gate: str, worse: bool, state: ReleaseState, verdict: str
) -> None:
    await run.open(gate=gate, gate_scenarios=MIN_KINDS)
    run.environment, run.about = FixedScenarios(MIN_KINDS), {"exam": {"on": on}}
    expert = ExpertPolicy(run.environment.fixed)
    result = await run.evaluate(run.policies(base=expert, new=lazy if worse else expert))
    assert (result.state, result.evidence["verdict"]) == (state, verdict)
    assert result.reason.startswith("it solves fewer" if worse else "it shows no gain")
    assert result.reason.endswith("live tasks decide (gate=canary)") is (verdict == "canary")
    assert result.evidence["compared_with"] == {"number": 1, "model": "base"}


@pytest.mark.parametrize(
    ("scenarios", "reason"), [(0, "the run skips the evaluation"), (SCENARIOS - 1, "3 scenarios are too few")]
)
async def test_with_too_few_scenarios_nothing_is_evaluated(run: GatedRun, scenarios: int, reason: str) -> None:
    await run.open(gate_scenarios=scenarios)
    result = await run.evaluate(run.policies(base=lazy, new=run.expert))
    assert result.state is ReleaseState.CANDIDATE
    assert reason in result.evidence["reason"]
    assert run.environment.requests == []


async def test_the_active_weights_are_rejected_as_a_candidate(run: GatedRun) -> None:
    result = await run.evaluate(None, model="base")
    assert result.state is ReleaseState.REJECTED
    assert result.evidence["reason"] == "its weights are those of the active release, number 1"


async def test_a_release_activated_during_the_evaluation_is_not_replaced(run: GatedRun) -> None:
    async def activate_another() -> None:
        async with run.sessions.begin() as session:
            other = await releases.propose(session, run.project_id, "another")
            await releases.activate(session, other.id)

    policies = run.policies(base=lazy, new=run.expert)
    policies.before = activate_another
    result = await run.evaluate(policies)
    assert result.state is ReleaseState.CANDIDATE
    assert "release 3 was activated during the evaluation" in result.evidence["next"]
    assert (await run.active()).model == "another"


async def test_after_an_engine_error_the_candidate_can_be_evaluated_again(run: GatedRun) -> None:
    async def fail() -> None:
        raise EngineError("the engine is down")

    policies = run.policies(base=lazy, new=run.expert)
    policies.before = fail
    with pytest.raises(EngineError, match="is down"):
        await run.evaluate(policies)
    assert (await run.active()).number == 1
    result = await run.evaluate(policies)
    assert (result.number, result.state) == (2, ReleaseState.PASSED)


async def test_a_later_release_of_the_incumbents_weights_does_not_stop_the_candidate(run: GatedRun) -> None:
    async def activate_the_same() -> None:
        async with run.sessions.begin() as session:
            other = await releases.propose(session, run.project_id, "base")
            await releases.activate(session, other.id)

    policies = run.policies(base=lazy, new=run.expert)
    policies.before = activate_the_same
    assert (await run.evaluate(policies)).state is ReleaseState.PASSED


async def test_a_run_that_was_lost_during_the_evaluation_changes_nothing(run: GatedRun) -> None:
    async def lose() -> None:
        run.run.lost = True

    policies = run.policies(base=lazy, new=run.expert)
    policies.before = lose
    with pytest.raises(ConflictError, match="another process"):
        await run.evaluate(policies)
    assert (await run.active()).number == 1
    assert await run.evaluations(run.run_id) == []


async def test_a_gate_that_has_decided_evaluates_nothing_again(run: GatedRun) -> None:
    first = await run.evaluate(run.policies(base=lazy, new=run.expert))
    again = await run.evaluate(None)
    assert again == first
    assert len(await run.evaluations(run.run_id)) == 2
