"""Lessons of practice: right, by the document, with skills that serve later tasks, and with mistakes repaired."""

import json
import re
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from app.agent.prompts import PROFILES
from app.engine.tokenizer import ChatTokenizer
from app.sandbox.forked_sandbox import ForkedSandbox
from app.sandbox.protocol import Sandbox
from tests.support import practice_documents
from tests.support.double_documents import DESK
from tests.support.every_row import every_row
from tests.support.tiny_model import write_tokenizer
from trainer.environment import Scenario
from trainer.practice.environments import PracticeEnvironment, practice_on
from trainer.practice.experts import load_expert
from trainer.rollouts.episode import Episode, ExpertContext

DOCUMENTS = {
    "desk": DESK,
    "clients": practice_documents.CLIENTS,
    "sensors": practice_documents.SENSORS,
    "steps": practice_documents.STEPS,
    "press": practice_documents.PRESS,
    "store": practice_documents.STORE,
    "vault": practice_documents.VAULT,
}
SAMPLES = {"vault": practice_documents.VAULT_SAMPLES}
FLAWLESS = {"inline": 0.0, "mistake": 0.0, "trust": 0.0, "crowded": 0.0, "withheld": 0.0}


@pytest.fixture(scope="module")
async def sandbox() -> AsyncIterator[Sandbox]:
    async with ForkedSandbox() as opened:
        yield opened


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    """A policy's, byte by byte, with room for long programs."""
    path = tmp_path_factory.mktemp("policy")
    shape = {"vocab_size": write_tokenizer(path), "max_position_embeddings": 65_536}
    (path / "config.json").write_text(json.dumps(shape))
    return ChatTokenizer.load(path)


class Lessons:
    """Plays lessons on each document."""

    def __init__(self, sandbox: Sandbox, tokenizer: ChatTokenizer) -> None:
        self._sandbox, self._tokenizer = sandbox, tokenizer

    async def __call__(self, name: str, count: int, **habits: float) -> list[tuple[Scenario, list[Episode]]]:
        environment = PracticeEnvironment(practice_on(name, DOCUMENTS[name], SAMPLES.get(name, {})))
        context = ExpertContext(
            environment=environment,
            tokenizer=self._tokenizer,
            profile=PROFILES["brief"],
            sandbox=self._sandbox,
            seed=1,
        )
        scenarios = environment.scenarios("train", count, seed=31)
        async with load_expert(context, **{**FLAWLESS, **habits}) as expert:
            return [(each, await expert.play(each, 0.0)) for each in scenarios]


@pytest.fixture
def play(sandbox: Sandbox, tokenizer: ChatTokenizer) -> Lessons:
    return Lessons(sandbox, tokenizer)


def said(episode: Episode) -> str:
    return "\n".join(turn.text for turn in episode.trajectory.turns)


async def test_a_typed_function_written_for_the_first_task_serves_the_others(play: Lessons) -> None:
    with every_row() as row:
        for name in DOCUMENTS:
            for scenario, episodes in await play(name, 10):
                with row(f"{name} {scenario.template}"):
                    first, *later = episodes
                    assert all(each.verdict.success for each in episodes), said(first)
                    assert re.search(r"def \w+\(.*\) -> \w+:", said(first))
                    assert first.made
                    for each in later:
                        assert len(list(each.trajectory.used())) == 1
                        assert "def " not in said(each)


async def test_every_mistake_is_shown_by_an_error_and_repaired(play: Lessons) -> None:
    erred = 0
    with every_row() as row:
        for name in DOCUMENTS:
            for scenario, episodes in await play(name, 8, mistake=1.0, withheld=1.0):
                with row(f"{name} {scenario.template}"):
                    for each in episodes:
                        failed = [turn for turn in each.trajectory.turns if turn.outcome == "error"]
                        erred += len(failed)
                        assert len(failed) <= 1, said(each)
                        assert each.verdict.success, said(each)
    assert erred > 100


async def test_a_skill_of_a_neighbouring_task_is_left_alone(play: Lessons) -> None:
    for scenario, episodes in await play("desk", 8, crowded=1.0):
        first, *later = episodes
        assert first.trajectory.offered
        assert not list(first.trajectory.used())
        for each in later:
            assert each.verdict.success, (scenario.template, said(each))
            assert len(list(each.trajectory.used())) == 1


async def test_no_operation_is_called_before_its_signature_was_shown(play: Lessons) -> None:
    for name in DOCUMENTS:
        for _, episodes in await play(name, 6, mistake=1.0, withheld=1.0):
            for each in episodes:
                shown = ""
                for turn in each.trajectory.turns:
                    for operation in re.findall(rf"apis\.{name}\.(\w+)", turn.text):
                        assert re.search(rf"\b{operation}\(|'{operation}'", shown), turn.text
                    shown += turn.observation


async def test_no_field_of_an_object_is_written_before_it_was_shown(play: Lessons) -> None:
    written = 0
    for _, episodes in await play("clients", 40, withheld=1.0):
        for each in episodes:
            shown = ""
            for turn in each.trajectory.turns:
                for field in re.findall(r'[{ ]"(\w+)": ', turn.text):
                    assert re.search(rf"\b{field}\b", shown), turn.text
                    written += 1
                shown += turn.observation
    assert written > 20


async def test_the_place_of_records_is_looked_up_where_the_instruction_does_not_tell_it(play: Lessons) -> None:
    told = Counter[bool]()
    with every_row() as row:
        for scenario, episodes in await play("vault", 16):
            place = re.match(r"rooms/(\w+)/shelf_sets/", scenario.template)
            for task, episode in zip(scenario.tasks, episodes, strict=True):
                if place is None:
                    continue
                with row(task.instruction):
                    is_told = place[1] in re.findall(r"\w+", task.instruction)
                    assert ("get_rooms" in said(episode)) is not is_told, said(episode)
                    assert episode.verdict.success
                    told[is_told] += 1
    assert min(told[True], told[False]) > 3
