"""Lessons and exams teach to read, not to guess: the expert calls no operation that it was not shown."""

import json
import re
from pathlib import Path

import pytest

from app.agent.prompts import PROFILES
from app.base.values import Trajectory
from app.engine.tokenizer import ChatTokenizer
from app.sandbox.forked_sandbox import ForkedSandbox
from tests.support.every_row import every_row
from tests.support.tiny_model import write_tokenizer
from trainer.environment import Split, open_environment
from trainer.rollouts.episode import Episode, ExpertContext, open_expert

_CALLED = re.compile(r"\bapis\.(?!api_docs\b)(\w+)\.(\w+)\(")


def tokenizer(path: Path) -> ChatTokenizer:
    path.mkdir()
    shape = {"vocab_size": write_tokenizer(path), "max_position_embeddings": 65_536}
    (path / "config.json").write_text(json.dumps(shape))
    return ChatTokenizer.load(path)


async def played(name: str, path: Path, split: Split, count: int) -> list[Episode]:
    async with ForkedSandbox() as sandbox:
        context = ExpertContext(
            environment=open_environment(name),
            tokenizer=tokenizer(path),
            profile=PROFILES["brief"],
            sandbox=sandbox,
            seed=1,
        )
        async with open_expert(name, context) as expert:
            scenarios = context.environment.scenarios(split, count, 31)
            return [episode for each in scenarios for episode in await expert.play(each, 0.0)]


def guessed(trajectory: Trajectory) -> set[str]:
    """The operations that code of a turn calls, and that nothing before it showed with their arguments."""
    shown, found = "", set[str]()
    for turn in trajectory.turns:
        called = {f"{app}.{name}": name for app, name in _CALLED.findall(turn.text) if name != "complete_task"}
        found |= {api for api, name in called.items() if not re.search(rf"\b{name}\(", shown)}
        shown += f"\n{turn.observation}"
    return found


async def check(path: Path, train: int, exam: int) -> int:
    """Of so many scenarios of each world. Returns the number of lessons."""
    seen = 0
    with every_row() as row:
        for name in ("crud", "gym", "strangers"):
            splits: list[tuple[Split, int]] = [("train", train), ("validation", exam), ("test", exam)]
            for split, count in splits:
                for episode in await played(name, path / f"{name}-{split}", split, count):
                    seen += split == "train"
                    with row(name, split, episode.trajectory.task.instruction):
                        assert episode.verdict.success, [turn.text for turn in episode.trajectory.turns]
                        assert guessed(episode.trajectory) == set()
    return seen


async def test_no_lesson_calls_an_operation_that_was_not_shown(tmp_path: Path) -> None:
    assert await check(tmp_path, train=10, exam=2) == 90


@pytest.mark.slow
async def test_none_of_450_lessons_and_of_the_exams_calls_an_operation_that_was_not_shown(tmp_path: Path) -> None:
    assert await check(tmp_path, train=50, exam=20) == 450
