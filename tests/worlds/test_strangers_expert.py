"""Lessons on strangers' APIs: solved, by what was shown, with skills that fit or not, and mistakes repaired."""

import re

import pytest

from app.agent.prompts import PROFILES
from app.engine.tokenizer import ChatTokenizer
from app.sandbox.protocol import Sandbox
from tests.support.every_row import every_row
from tests.support.scripted_engine import byte_tokenizer
from trainer.environment import Scenario
from trainer.rollouts.episode import Episode, ExpertContext
from trainer.worlds.strangers.environment import load_environment, load_expert

READ = re.compile(r'\["([^"]+)"\]|\.get\("([^"]+)"')


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    """With room for long programs."""
    return byte_tokenizer(tmp_path_factory.mktemp("policy"), max_length=65_536)


class Lessons:
    def __init__(self, sandbox: Sandbox, tokenizer: ChatTokenizer) -> None:
        self._sandbox, self._tokenizer = sandbox, tokenizer

    async def __call__(self, count: int, seed: int, **habits: float) -> list[tuple[Scenario, list[Episode]]]:
        environment = load_environment()
        context = ExpertContext(
            environment=environment,
            tokenizer=self._tokenizer,
            profile=PROFILES["brief"],
            sandbox=self._sandbox,
            seed=1,
        )
        async with load_expert(context, **habits) as expert:
            return [(each, await expert.play(each, 0.0)) for each in environment.scenarios("train", count, seed)]


@pytest.fixture
def play(sandbox: Sandbox, tokenizer: ChatTokenizer) -> Lessons:
    return Lessons(sandbox, tokenizer)


def said(episode: Episode) -> str:
    return "\n".join(turn.text for turn in episode.trajectory.turns)


async def test_every_lesson_ends_well_and_three_in_ten_of_those_without_a_skill_repair_a_mistake(
    play: Lessons,
) -> None:
    written, erred = 0, 0
    with every_row() as row:
        for scenario, episodes in await play(60, 77):
            with row(f"{scenario.id} {scenario.template}"):
                for each in episodes:
                    failed = sum(turn.outcome == "error" for turn in each.trajectory.turns)
                    assert failed <= 1, said(each)
                    assert each.verdict.success, said(each)
                    is_written = not list(each.trajectory.used())
                    written += is_written
                    erred += bool(failed) and is_written
    assert 0.2 < erred / written < 0.45


async def test_nothing_is_read_of_records_that_was_not_shown(play: Lessons) -> None:
    looked = 0
    with every_row() as row:
        for scenario, episodes in await play(40, 12, mistake=0.0, withheld=1.0):
            with row(f"{scenario.id} {scenario.template}"):
                for each in episodes:
                    shown = "success response_schemas"
                    for turn in each.trajectory.turns:
                        read = {name for found in READ.findall(turn.text) for name in found if name}
                        missing = [
                            name for name in read if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", shown)
                        ]
                        assert not missing, (missing, turn.text, shown)
                        shown += f"\n{turn.observation}"
                        looked += "response_schemas" in turn.text
    assert looked > 5


async def test_skills_that_fit_are_used_and_neighbours_are_left_alone(play: Lessons) -> None:
    neighbours = 0
    for scenario, episodes in await play(20, 5, crowded=1.0, withheld=0.0, mistake=0.0, inline=0.0):
        first, *later = episodes
        neighbours += len(first.trajectory.offered)
        assert not list(first.trajectory.used()), scenario.template
        for each in later:
            assert len(list(each.trajectory.used())) == 1, (scenario.template, said(each))
    assert neighbours > 20
