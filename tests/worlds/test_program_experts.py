"""Experts that write programs: right, by documents, with skills that serve later tasks, and with repairs."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from app.agent.prompts import PROFILES
from app.base.errors import InvalidError
from app.engine.tokenizer import ChatTokenizer
from app.sandbox.forked_sandbox import ForkedSandbox
from tests.support.tiny_model import write_tokenizer
from trainer.environment import Environment, Scenario, open_environment
from trainer.rollouts.episode import Episode, ExpertContext, open_expert
from trainer.sft.chats import read_records
from trainer.worlds.generated.crud import CrudEnvironment
from trainer.worlds.generated.gym import GymEnvironment

pytestmark = pytest.mark.slow  # hundreds of whole tasks of the practice world

FLAWLESS = "inline=0&mistake=0&trust=0&crowded=0&withheld=0"
ENVIRONMENTS: dict[type[Environment], str] = {GymEnvironment: "gym", CrudEnvironment: "crud"}


def policy(path: Path) -> Path:
    """A policy's tokenizer, byte by byte, with room for long programs."""
    path.mkdir()
    shape = {"vocab_size": write_tokenizer(path), "max_position_embeddings": 65_536}
    (path / "config.json").write_text(json.dumps(shape))
    return path


@pytest.fixture(params=ENVIRONMENTS.values())
async def context(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ExpertContext]:
    async with ForkedSandbox() as sandbox:
        yield ExpertContext(
            environment=open_environment(request.param),
            tokenizer=ChatTokenizer.load(policy(tmp_path / "policy")),
            profile=PROFILES["brief"],
            sandbox=sandbox,
            seed=1,
        )


async def play(
    context: ExpertContext, options: str, count: int = 16, seed: int = 31
) -> list[tuple[Scenario, list[Episode]]]:
    scenarios: Sequence[Scenario] = context.environment.scenarios("train", count, seed)
    name = ENVIRONMENTS[type(context.environment)]
    async with open_expert(f"{name}?{options}", context) as expert:
        return [(scenario, await expert.play(scenario, 0.0)) for scenario in scenarios]


def answers(episode: Episode) -> list[str]:
    return [turn.text for turn in episode.trajectory.turns]


async def test_a_function_written_for_the_first_task_serves_the_others(context: ExpertContext) -> None:
    for scenario, episodes in await play(context, FLAWLESS):
        first, *later = episodes
        assert all(each.verdict.success for each in episodes), (scenario.id, answers(first), first.verdict)
        assert "def " in "".join(answers(first))
        for each in later:
            assert len(each.trajectory.turns) == 2
            assert [offer.name for offer in each.trajectory.used()] == [each.trajectory.offered[0].name]


async def test_without_skills_every_task_is_solved_by_itself(context: ExpertContext) -> None:
    for scenario, episodes in await play(context, "inline=1&mistake=0&crowded=0", 10):
        for each in episodes:
            assert each.verdict.success, (scenario.id, answers(each), each.verdict)
            assert not each.trajectory.offered
            assert "def " not in "".join(answers(each))


async def test_every_mistake_is_noticed_and_repaired(context: ExpertContext) -> None:
    for scenario, episodes in await play(context, "inline=0&mistake=1&crowded=0&withheld=1", 24):
        for each in episodes:
            failed = [turn.text for turn in each.trajectory.turns if turn.outcome == "error"]
            looked_up = [text for text in failed if "show_api_doc(" in text]
            assert len(failed) == 1 or len(failed) == len(looked_up) == 2, (scenario.id, answers(each))
            assert each.verdict.success, (scenario.id, answers(each), each.verdict)


async def test_crowded_tasks_are_offered_skills_that_do_not_fit_and_use_the_one_that_does(
    context: ExpertContext,
) -> None:
    for scenario, episodes in await play(context, "inline=0&mistake=0&trust=1&crowded=1&withheld=0", 12):
        first, *later = episodes
        assert first.trajectory.offered
        assert not list(first.trajectory.used())
        for each in later:
            assert len(each.trajectory.offered) >= 2
            assert len(list(each.trajectory.used())) == 1
            assert len(each.trajectory.turns) == 1
            assert each.verdict.success, (scenario.id, answers(each), each.verdict)


async def test_the_expert_asks_for_the_apps_only_if_the_prompt_does_not_list_them(context: ExpertContext) -> None:
    for profile in ("compact", "brief", "full"):
        told = ExpertContext(
            environment=context.environment,
            tokenizer=context.tokenizer,
            profile=PROFILES[profile],
            sandbox=context.sandbox,
        )
        for _, episodes in await play(told, FLAWLESS, 3):
            assert ("show_app_descriptions" in answers(episodes[0])[0]) == (profile == "compact")


async def test_the_same_seed_gives_the_same_demonstrations(context: ExpertContext) -> None:
    once, again = [await play(context, "inline=0.2", 6) for _ in range(2)]
    texts = [[answers(each) for _, episodes in run for each in episodes] for run in (once, again)]
    assert texts[0] == texts[1]


async def test_the_expert_refuses_another_environment(context: ExpertContext) -> None:
    office = ExpertContext(
        environment=open_environment("office"),
        tokenizer=context.tokenizer,
        profile=context.profile,
        sandbox=context.sandbox,
    )
    name = ENVIRONMENTS[type(context.environment)]
    with pytest.raises(InvalidError, match=f"knows the environment {name} only"):
        async with open_expert(name, office):
            pass


def test_sage_collect_keeps_what_was_executed_and_right(tmp_path: Path) -> None:
    out = tmp_path / "gym.jsonl"
    command = (
        "-m app.cli collect --environment gym --expert gym --scenarios 12 --seed 3 --keep task --profile brief"
    )
    done = subprocess.run(
        [sys.executable, *command.split(), "--out", str(out)],
        env={**os.environ, "SAGE_MODEL": str(policy(tmp_path / "policy"))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    records = read_records(out)
    assert done.stdout.startswith(f"{out}: kept {len(records)} of 36 tasks")
    assert len(records) >= 34
    assert all(record.about["score"] == 1 and record.about["source"] == "gym" for record in records)
    asked = {scenario.template for scenario in GymEnvironment().scenarios("train", 12, 3)}
    assert {record.about["template"] for record in records} <= asked
