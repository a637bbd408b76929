"""Rollouts are offered skills that do not fit beside those that do: real sandbox and office, scripted policies."""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from uuid import uuid4

import msgspec
import pytest

from app.apis.calls.skill_guard import SkillManifest
from app.base.run_settings import RunKind, RunSettings
from app.base.values import Offer
from app.skills.in_memory_library import InMemoryLibrary
from tests.support.evaluated_server import ExpertPolicy
from tests.trainer.rollouts.test_chain_rollouts import ScriptedRunner, sandbox, scenarios
from trainer.environment import Scenario
from trainer.rollouts.episode import scenario_chain
from trainer.rollouts.groups import ChainRollout, Crowd, CrowdSkill, GroupCollector, crowded

__all__ = ["sandbox", "scenarios"]


def skill(name: str, scenario: str | None = "other") -> CrowdSkill:
    signature = f"{name}() -> int"
    source = f"def {signature}:\n    return 1"
    return CrowdSkill(
        scenario,
        Offer(skill_id=uuid4(), name=name, version=1, signature=signature, source=source, instruction=name),
    )


CROWD = [skill("pay"), skill("book", "third"), skill("lend", None)]


async def collect(
    scripted: ScriptedRunner, scenarios: Sequence[Scenario], crowd: Crowd | None, *, limit: int = 3
) -> list[ChainRollout]:
    settings = RunSettings(kind=RunKind.ROLLOUT, group=2, pairs=2)
    collector = GroupCollector(
        scripted.episode_runner, settings, lambda: InMemoryLibrary(limit=limit), crowd=crowd
    )
    return (await collector.collect([scenario_chain(each) for each in scenarios[:2]], seed=1)).rollouts


@pytest.fixture
def scripted(sandbox: object, tmp_path: Path, scenarios: Sequence[Scenario]) -> ScriptedRunner:
    return ScriptedRunner(sandbox, tmp_path, ExpertPolicy(scenarios))  # type: ignore[arg-type]


def names(rollout: ChainRollout) -> list[list[str]]:
    return [[offer.name for offer in episode.trajectory.offered] for episode in rollout.episodes]


async def test_a_crowd_is_offered_beside_what_fits_and_is_the_same_in_a_group(
    scripted: ScriptedRunner, scenarios: Sequence[Scenario]
) -> None:
    rollouts = await collect(scripted, scenarios, Crowd(CROWD))
    crowd = {each.offer.name for each in CROWD}
    drawn = [[set(each) & crowd for each in names(rollout)] for rollout in rollouts]
    assert drawn[0] == drawn[1]
    assert drawn[2] == drawn[3]
    assert any(each for group in drawn for each in group)
    assert all(len(each) <= 2 for group in drawn for each in group)
    for rollout in rollouts:
        made = {offer.name for episode in rollout.episodes for offer in episode.made}
        assert made
        assert made <= set(names(rollout)[2]), "what fits is always among the offers"
        assert all(episode.verdict.success for episode in rollout.episodes)
        credited = [each for episode in rollout.episodes for each in episode.creditable]
        assert not {each.offer.skill_id for each in CROWD} & set(credited)


async def test_the_crowd_takes_only_the_room_that_is_left(
    scripted: ScriptedRunner, scenarios: Sequence[Scenario]
) -> None:
    rollouts = await collect(scripted, scenarios, Crowd(CROWD), limit=1)
    for rollout in rollouts:
        assert all(len(each) <= 1 for each in names(rollout))
        assert names(rollout)[1] == [rollout.episodes[0].made[0].name]


async def test_without_a_crowd_only_what_fits_is_offered(
    scripted: ScriptedRunner, scenarios: Sequence[Scenario]
) -> None:
    rollouts = await collect(scripted, scenarios, None)
    assert [len(each) for rollout in rollouts for each in names(rollout)] == [0, 1, 1] * 4


def test_a_scenario_never_meets_its_own_skills_in_the_crowd() -> None:
    crowd = Crowd([skill("a", "own"), skill("b", "other")])
    drawn = [crowd.draw("own", 5, Random(seed)) for seed in range(40)]
    assert {offer.name for each in drawn for offer in each} == {"b"}
    assert [] in drawn, "sometimes there is no crowd"


def test_a_name_is_offered_once() -> None:
    fitting, same = skill("pay", "own").offer, skill("pay").offer
    assert crowded([fitting], [same], 3, Random(1)) == [fitting]
    crowd = Crowd([skill("pay", "a"), skill("pay", "b")])
    assert max(len(crowd.draw("own", 5, Random(seed))) for seed in range(20)) == 1


def test_the_newest_version_is_drawn_and_the_crowd_survives_an_interruption(tmp_path: Path) -> None:
    crowd = Crowd([skill("pay")])
    newer = skill("pay")
    crowd.add([newer, *(skill(f"s{number}") for number in range(600))])
    assert len(crowd) == 500, "bounded"
    crowd = Crowd([skill("pay"), newer])
    manifest = SkillManifest.unrestricted(["bank.pay"])
    crowd.add([msgspec.structs.replace(newer, manifest=manifest)])
    crowd.save(tmp_path / "run" / "crowd")
    again = Crowd.restore(tmp_path / "run" / "crowd", CROWD)
    assert again.draw("own", 1, Random(5)) in ([], [newer.offer])
    assert len(again) == 1
    assert again.manifests == {newer.offer.skill_id: manifest}
    assert len(Crowd.restore(tmp_path / "none", CROWD)) == 3
