"""The gate on a real database and in real practice worlds; the policies are scripts."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from app.db import releases
from app.db.database import Sessions
from app.db.models import ReleaseState
from app.errors import ConflictError, EngineError
from app.sandbox.forked_sandbox import ForkedSandbox
from tests.hearing import NEW, SCENARIOS, Hearing, lazy


@pytest.fixture(scope="module")
async def sandbox() -> AsyncIterator[ForkedSandbox]:
    async with ForkedSandbox() as opened:
        yield opened


@pytest.fixture
async def hearing(sessions: Sessions, sandbox: ForkedSandbox, tmp_path: Path) -> Hearing:
    return await Hearing(sessions, sandbox, tmp_path).open()


async def test_a_better_candidate_passes_and_serves_no_sooner_than_servers_have_proven_it(
    hearing: Hearing,
) -> None:
    policies = hearing.policies(base=lazy, new=hearing.expert)
    held = await hearing.hold(policies)
    assert (held.number, held.state) == (2, ReleaseState.PASSED)
    assert (await hearing.active()).number == 1
    assert policies.loaded == {NEW: Path("/adapters") / NEW}
    assert (held.decision, held.evidence["verdict"]) == ("passed", "promote")
    assert held.evidence["difference"]["sgc"]["mean"] == 100
    assert held.evidence["compared_with"] == {"number": 1, "model": "base"}


async def test_both_sit_the_validation_split_greedily(hearing: Hearing) -> None:
    policies = hearing.policies(base=lazy, new=hearing.expert)
    await hearing.hold(policies)
    assert hearing.environment.asked == [("validation", SCENARIOS)]
    samplings = [each for engine in policies.scripts.values() for each in engine.samplings]
    assert {each.temperature for each in samplings} == {0.0}
    assert len(policies.scripts["base"].samplings) == 3 * SCENARIOS


async def test_what_each_could_do_is_in_a_row_and_every_result_in_a_file(hearing: Hearing) -> None:
    await hearing.hold(hearing.policies(base=lazy, new=hearing.expert))
    rows = await hearing.evaluations(hearing.run_id)
    assert [(row.model, row.environment) for row in rows] == [(NEW, "office"), ("base", "office")]
    assert [row.figures["sgc"]["mean"] for row in rows] == [100, 0]
    assert rows[0].figures["library_size"]["mean"] == 1
    assert rows[0].settings["scenarios"] == SCENARIOS
    written = msgspec.json.decode((hearing.directory / "gate.json").read_bytes())
    assert len(written["candidate"]) == len(written["incumbent"]) == 3 * SCENARIOS


async def test_a_worse_candidate_is_rejected_and_nothing_that_serves_changes(hearing: Hearing) -> None:
    held = await hearing.hold(hearing.policies(base=hearing.expert, new=lazy))
    assert held.state is ReleaseState.REJECTED
    assert held.decision == "rejected"
    assert held.reason.startswith("it solves fewer scenarios: SGC -100.0")
    assert (await hearing.active()).number == 1


async def test_a_run_that_wants_a_canary_says_so_on_the_release_that_passed(hearing: Hearing) -> None:
    await hearing.open(canary_percent=12.5)
    held = await hearing.hold(hearing.policies(base=lazy, new=hearing.expert))
    async with hearing.sessions() as session:
        release = await releases.get(session, held.release_id)
    assert (release.state, release.canary_percent) == (ReleaseState.PASSED, 12.5)


async def test_a_run_that_may_not_promote_leaves_a_candidate_that_passed(hearing: Hearing) -> None:
    await hearing.open(promote=False)
    held = await hearing.hold(hearing.policies(base=lazy, new=hearing.expert))
    assert held.state is ReleaseState.CANDIDATE
    assert held.evidence["verdict"] == "promote"
    assert "activate it by hand" in held.evidence["next"]
    assert (await hearing.active()).number == 1


async def test_without_an_environment_the_candidate_waits_and_says_what_to_do(hearing: Hearing) -> None:
    await hearing.open(environment="")
    held = await hearing.hold(None)
    assert held.state is ReleaseState.CANDIDATE
    assert (held.decision, held.evidence["verdict"]) == ("waiting", "untested")
    assert "names no environment" in held.reason
    assert f"POST /v1/releases/{held.release_id}/activate" in held.reason


@pytest.mark.parametrize(
    ("scenarios", "reason"), [(0, "to hold no gate"), (SCENARIOS - 1, "3 scenarios are too few to tell")]
)
async def test_an_exam_that_could_tell_nothing_is_not_held(hearing: Hearing, scenarios: int, reason: str) -> None:
    await hearing.open(gate_scenarios=scenarios)
    held = await hearing.hold(hearing.policies(base=lazy, new=hearing.expert))
    assert held.state is ReleaseState.CANDIDATE
    assert reason in held.evidence["reason"]
    assert hearing.environment.asked == []


async def test_the_weights_that_serve_already_are_no_candidate(hearing: Hearing) -> None:
    held = await hearing.hold(None, model="base")
    assert held.state is ReleaseState.REJECTED
    assert held.evidence["reason"] == "these are the very weights of release 1, which serves"


async def test_a_release_activated_during_the_exam_is_not_replaced(hearing: Hearing) -> None:
    async def activate_another() -> None:
        async with hearing.sessions.begin() as session:
            other = await releases.propose(session, hearing.project_id, "another")
            await releases.activate(session, other.id)

    policies = hearing.policies(base=lazy, new=hearing.expert)
    policies.before = activate_another
    held = await hearing.hold(policies)
    assert held.state is ReleaseState.CANDIDATE
    assert "release 3 was activated during the exam" in held.evidence["next"]
    assert (await hearing.active()).model == "another"


async def test_an_engine_that_fails_leaves_a_candidate_that_can_be_examined_again(hearing: Hearing) -> None:
    async def fail() -> None:
        raise EngineError("the engine is down")

    policies = hearing.policies(base=lazy, new=hearing.expert)
    policies.before = fail
    with pytest.raises(EngineError, match="is down"):
        await hearing.hold(policies)
    assert (await hearing.active()).number == 1
    held = await hearing.hold(policies)
    assert (held.number, held.state) == (2, ReleaseState.PASSED)


async def test_the_same_weights_in_a_later_release_are_still_what_it_was_compared_with(hearing: Hearing) -> None:
    async def activate_the_same() -> None:
        async with hearing.sessions.begin() as session:
            other = await releases.propose(session, hearing.project_id, "base")
            await releases.activate(session, other.id)

    policies = hearing.policies(base=lazy, new=hearing.expert)
    policies.before = activate_the_same
    assert (await hearing.hold(policies)).state is ReleaseState.PASSED


async def test_a_run_that_was_lost_during_the_exam_changes_nothing(hearing: Hearing) -> None:
    async def lose() -> None:
        hearing.run.lost = True

    policies = hearing.policies(base=lazy, new=hearing.expert)
    policies.before = lose
    with pytest.raises(ConflictError, match="somebody else"):
        await hearing.hold(policies)
    assert (await hearing.active()).number == 1
    assert await hearing.evaluations(hearing.run_id) == []


async def test_a_gate_that_has_decided_asks_nobody_again(hearing: Hearing) -> None:
    first = await hearing.hold(hearing.policies(base=lazy, new=hearing.expert))
    again = await hearing.hold(None)
    assert again == first
    assert len(await hearing.evaluations(hearing.run_id)) == 2
