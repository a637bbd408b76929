"""Many agents at one small cache: whose turn is next, and how much is computed again."""

import heapq
from pathlib import Path
from random import Random

import pytest
import torch

from app.engine.protocol import Sampling
from app.model_server import scheduler
from app.model_server.decoder import Decoder, load_model
from app.model_server.generation import Generation, GenerationChunk
from app.model_server.kv_cache import as_ids
from app.model_server.lora import AdapterSet
from app.model_server.scheduler import EngineMetrics, Scheduler
from tests.support.tiny_model import make_model_dir

TURNS, PROMPT, ANSWER, OBSERVATION = 4, 100, 10, 40
PAUSE = 2  # steps of the others while an agent's code runs
KV_MB = 1  # 41 blocks of 32 tokens: some five agents


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return make_model_dir(tmp_path_factory.mktemp("model"))


class CountingMetrics(EngineMetrics):
    """Counts the tokens of prompts that were computed."""

    computed = 0

    def count_prompt(self, tokens: int, reused: int) -> None:
        self.computed += tokens - reused


class Agents:
    """Each asks, runs its code for a while, and asks again with the answer and an observation added."""

    def __init__(self, model_dir: Path, count: int) -> None:
        decoder = Decoder(load_model(model_dir, "cpu", torch.float32), KV_MB)
        self.metrics, self.steps = CountingMetrics(), 0
        self._scheduler = Scheduler(decoder, AdapterSet(decoder.model), self.metrics, on_death=lambda: None)
        self._pauses: list[tuple[int, int, list[int], int]] = []  # until which step, whose, prompt, turn
        self.lengths = [0] * count  # of each one's last prompt
        for number in range(count):
            self._ask(number, _words(number, 0, PROMPT), 0)

    def play(self) -> int:
        """The tokens of prompts that were computed until all have finished."""
        while not all(self.lengths):
            while self._pauses and (self._pauses[0][0] <= self.steps or not self._scheduler._rows):
                _, number, prompt, turn = heapq.heappop(self._pauses)
                self._ask(number, prompt, turn)
            self._scheduler._admit()
            if self._scheduler._decoding():
                self._scheduler._step()
            self.steps += 1
        return self.metrics.computed

    def _ask(self, number: int, prompt: list[int], turn: int) -> None:
        def report(chunk: GenerationChunk) -> None:
            if turn + 1 == TURNS:
                self.lengths[number] = len(prompt)
                return
            following = [*prompt, *chunk.ids, *_words(number, turn + 1, OBSERVATION)]
            heapq.heappush(self._pauses, (self.steps + PAUSE, number, following, turn + 1))

        sampling = Sampling(max_tokens=ANSWER, seed=number)
        generation = Generation(as_ids(prompt), adapter=0, sampling=sampling, stops=frozenset(), report=report)
        self._scheduler._waiting.append(generation)


def _words(number: int, turn: int, count: int) -> list[int]:
    """All begin as the others do, as with one system prompt."""
    rng = Random(TURNS * number + turn)
    shared = [*range(20)] if turn == 0 else []
    return [*shared, *(rng.randrange(250) for _ in range(count - len(shared)))]


def test_the_prompts_of_many_agents_are_not_computed_again_each_turn(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents = Agents(model_dir, 16)
    computed = agents.play()
    monkeypatch.setattr(scheduler, "_PASSED_OVER", 0)
    in_order = Agents(model_dir, 16).play()
    assert computed < 1.6 * sum(agents.lengths)
    assert in_order > 1.5 * computed


def test_agents_that_fit_are_served_in_the_order_in_which_they_came(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for passed_over in (128, 0):
        monkeypatch.setattr(scheduler, "_PASSED_OVER", passed_over)
        agents = Agents(model_dir, 3)
        found.append((agents.play(), agents.steps))
    assert found[0] == found[1]
