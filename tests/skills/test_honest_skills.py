"""Manifests refuse nothing that honest skills do with other details, in real rollouts of the office."""

from pathlib import Path
from random import Random

import msgspec

from app.apis.calls.skill_guard import GuardedSkill, SkillGuard, widenings
from app.apis.catalog import Catalog
from app.base.values import SkillCall, Trajectory
from app.sandbox.forked_sandbox import ForkedSandbox
from app.sandbox.protocol import EnteredSkill
from app.skills.checks import validate_drafts
from app.skills.provenance import manifest_of
from tests.support.scripted_engine import byte_tokenizer
from trainer.worlds.office.environment import OfficeEnvironment
from trainer.worlds.office.expert import Faults
from trainer.worlds.office.rollouts import ScriptRunner


async def test_no_call_of_an_honest_skill_is_refused(bare_sandbox: ForkedSandbox, tmp_path: Path) -> None:
    environment = OfficeEnvironment()
    runner = ScriptRunner(environment=environment, tokenizer=byte_tokenizer(tmp_path), sandbox=bare_sandbox)
    checked = 0
    for scenario in environment.scenarios("validation", 16, 7):
        episodes = await runner.play(scenario, Faults(), Random(scenario.id))
        async with environment.open(scenario, scenario.tasks[0]) as world:
            catalog = world.catalog
        first = episodes[0].trajectory
        guarded = {
            draft.name: GuardedSkill.of(manifest_of(draft, first, catalog), draft.source)
            for draft in validate_drafts(first, catalog).kept
        }
        for trajectory in (each.trajectory for each in episodes[1:]):
            for call in (call for turn in trajectory.turns for call in turn.skill_calls):
                assert call.name in guarded
                repeat(SkillGuard(guarded), call, trajectory, catalog)
                checked += 1
    assert checked == 32


async def test_writing_an_honest_skill_again_for_other_details_makes_it_no_wider(
    bare_sandbox: ForkedSandbox, tmp_path: Path
) -> None:
    environment = OfficeEnvironment()
    runner = ScriptRunner(environment=environment, tokenizer=byte_tokenizer(tmp_path), sandbox=bare_sandbox)
    compared = 0
    for scenario in environment.scenarios("validation", 16, 7):
        async with environment.open(scenario, scenario.tasks[0]) as world:
            catalog = world.catalog
        manifests = []
        for task in scenario.tasks:  # alone, so that each writes the function anew
            alone = msgspec.structs.replace(scenario, tasks=(task,))
            [episode] = await runner.play(alone, Faults(), Random(scenario.id))
            [draft] = validate_drafts(episode.trajectory, catalog).kept
            manifests.append(manifest_of(draft, episode.trajectory, catalog))
        assert [widenings(each, manifests[0]) for each in manifests[1:]] == [[], []]
        compared += 2
    assert compared == 32


def repeat(guard: SkillGuard, call: SkillCall, trajectory: Trajectory, catalog: Catalog) -> None:
    """Check the API calls of one call of a skill, in order. Raises HostError if one is refused."""
    entered = EnteredSkill(call.name, call.arguments)
    first = call.first_call or 0
    for made in trajectory.calls[first : first + call.calls]:
        app, _, name = made.api.partition(".")
        guard.check(entered, catalog.apps[app].operations[name], made.arguments)
        guard.returned(entered, made)
