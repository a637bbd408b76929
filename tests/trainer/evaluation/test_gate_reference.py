"""The gate's reference, the last release that has proven a gain: a candidate must hold against it, too."""

from pathlib import Path

import msgspec
import pytest

from app.base.errors import EngineError
from app.db.database import Sessions
from app.db.tables import ReleaseState
from app.sandbox.forked_sandbox import ForkedSandbox
from tests.support.evaluated_server import ExpertPolicy
from tests.support.gated_run import BASE_MODEL, BEST, NEW, SCENARIOS, SERVING, GatedRun, PartlyKnown, lazy, wordy
from tests.support.scripted_engine import Script
from trainer.evaluation.gate_decision import GateRules

TOLERANT = GateRules(min_scenarios=SCENARIOS, margin=60)
"""On four scenarios, nothing less rules a loss out."""


def little(run: GatedRun, otherwise: Script) -> Script:
    """Solves one scenario of four."""
    return run.expert_in(run.environment.fixed[:1], otherwise)


@pytest.fixture
async def run(sessions: Sessions, bare_sandbox: ForkedSandbox, tmp_path: Path) -> GatedRun:
    return await GatedRun(sessions, bare_sandbox, tmp_path).open()


async def test_an_equal_candidate_with_fewer_tokens_must_hold_against_the_reference(run: GatedRun) -> None:
    await run.serve_since_best()
    result = await run.evaluate(
        run.policies(serving=little(run, wordy), new=little(run, lazy), best=run.expert), rules=TOLERANT
    )
    assert result.state is ReleaseState.REJECTED
    assert result.reason.startswith("a loss of over 60 points to the reference is not ruled out")
    assert result.evidence["compared_with"] == {"number": 3, "model": SERVING}
    assert result.evidence["reference_release"] == {"number": 2, "model": BEST}
    assert result.evidence["reference_difference"]["sgc"]["mean"] == -75
    assert [row.model for row in await run.evaluations(run.run_id)] == [NEW, SERVING, BEST]
    written = msgspec.json.decode((run.directory / "gate.json").read_bytes())
    assert len(written["reference"]) == 3 * SCENARIOS


async def test_it_passes_if_the_reference_does_no_better(run: GatedRun) -> None:
    await run.serve_since_best()
    result = await run.evaluate(
        run.policies(serving=little(run, wordy), new=little(run, lazy), best=little(run, wordy)), rules=TOLERANT
    )
    assert result.state is ReleaseState.PASSED
    assert result.evidence["reference_release"]["number"] == 2


async def test_a_candidate_that_gains_must_hold_against_the_reference_as_well(run: GatedRun) -> None:
    await run.serve_since_best()
    partly = run.expert_in(run.environment.fixed[:-1])
    result = await run.evaluate(run.policies(serving=lazy, new=partly, best=run.expert))
    assert result.evidence["difference"]["sgc"]["low"] > 0
    assert result.state is ReleaseState.REJECTED
    assert "to the active one: it solves more scenarios: SGC +75.0" in result.reason


async def test_where_the_active_release_is_the_reference_the_evidence_says_so(run: GatedRun) -> None:
    result = await run.evaluate(run.policies(base=lazy, new=run.expert))
    assert result.evidence["reference_release"] == {"number": 1, "model": "base"}
    assert "reference_difference" not in result.evidence


async def test_the_reference_is_the_same_in_another_environment(run: GatedRun) -> None:
    await run.open(environment="office?site=0")
    await run.serve_since_best()
    result = await run.evaluate(
        run.policies(serving=little(run, wordy), new=little(run, lazy), best=run.expert), rules=TOLERANT
    )
    assert result.evidence["reference_release"] == {"number": 2, "model": BEST}


@pytest.mark.parametrize(("gone", "base"), [({BEST}, BASE_MODEL), (set(), "another-base-model")])
async def test_where_its_adapter_cannot_be_loaded_the_next_release_is_the_reference(
    run: GatedRun, gone: set[str], base: str
) -> None:
    await run.serve_since_best(base=base)
    run.gone = gone
    result = await run.evaluate(
        run.policies(serving=little(run, wordy), new=little(run, lazy), best=run.expert), rules=TOLERANT
    )
    assert result.state is ReleaseState.PASSED
    assert result.evidence["reference_release"] == {"number": 3, "model": SERVING}
    assert result.reason.endswith("the reference is not release 2: the adapter is gone, or of another base model")


async def test_a_server_without_room_for_its_adapter_does_not_make_another_release_the_reference(
    run: GatedRun,
) -> None:
    await run.serve_since_best()
    policies = run.policies(serving=little(run, wordy), new=little(run, lazy), best=run.expert)
    policies.refused = {BEST: 409}
    with pytest.raises(EngineError, match=f"{BEST} is refused"):
        await run.evaluate(policies, rules=TOLERANT)
    policies.refused = {}
    assert (await run.evaluate(policies, rules=TOLERANT)).state is ReleaseState.REJECTED


async def test_a_candidate_with_the_weights_of_the_reference_is_not_compared_with_itself(run: GatedRun) -> None:
    await run.serve_since_best()
    result = await run.evaluate(run.policies(serving=lazy, new=lazy, best=run.expert), model=BEST)
    assert result.state is ReleaseState.PASSED
    assert result.evidence["reference_release"] == {"number": 2, "model": BEST}
    assert len(await run.evaluations(run.run_id)) == 2


@pytest.mark.parametrize("known", [3, 0])
async def test_unknown_results_of_the_reference_leave_the_candidate_undecided(run: GatedRun, known: int) -> None:
    await run.serve_since_best()
    run.environment = PartlyKnown(BEST, known)
    result = await run.evaluate(run.policies(serving=little(run, wordy), new=little(run, lazy)), rules=TOLERANT)
    assert (result.state, result.evidence["verdict"]) == (ReleaseState.CANDIDATE, "untested")
    assert result.reason.startswith(
        f"the results of {known / SCENARIOS:.0%} of the scenarios are known, also of the reference, 80% are needed"
    )


async def test_too_few_scenarios_that_are_known_of_the_reference_decide_nothing(run: GatedRun) -> None:
    await run.open(gate_scenarios=5)
    await run.serve_since_best()
    run.environment = PartlyKnown(BEST, 4, count=5)
    run.expert = ExpertPolicy(run.environment.fixed)
    rules = msgspec.structs.replace(TOLERANT, min_scenarios=5)
    result = await run.evaluate(run.policies(serving=little(run, wordy), new=little(run, lazy)), rules=rules)
    assert (result.state, result.evidence["verdict"]) == (ReleaseState.CANDIDATE, "untested")
    assert result.reason.startswith("the exam has 4 scenarios to examine on, also of the reference, 5 are needed")
