"""An engine whose answers are written by a program, so that its rollouts are recorded like those of a policy."""

from collections.abc import Sequence
from typing import Protocol

from app.agent.hooks import RolloutHooks
from app.engine.protocol import Completion, Sampling
from app.engine.thoughts import after_thought
from app.engine.tokenizer import ChatTokenizer
from app.records import Turn


class Script(Protocol):
    def next_turn(self, observations: Sequence[str]) -> str:
        """The next message, given all observations so far."""
        ...


class ExpertEngine(RolloutHooks):
    """An engine whose completions are the script's, each token with probability 1. It watches its observations."""

    def __init__(self, script: Script, tokenizer: ChatTokenizer) -> None:
        super().__init__()
        self._script = script
        self._tokenizer = tokenizer
        self._observations: list[str] = []

    async def on_turn_end(self, index: int, turn: Turn) -> None:  # noqa: ARG002
        self._observations.append(turn.observation)

    async def complete(self, prompt_ids: Sequence[int], *, model: str, sampling: Sampling) -> Completion:  # noqa: ARG002
        text = after_thought(self._tokenizer.decode(prompt_ids), self._script.next_turn(self._observations))
        ids = (*self._tokenizer.encode(text), self._tokenizer.stop_ids[0])
        return Completion(ids, (0.0,) * len(ids), "stop")
