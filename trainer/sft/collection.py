"""A model behind a chat endpoint as the expert: prompted in words, recorded in the policy's tokens and profile."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Annotated

import msgspec

from app.agent.limits import RolloutLimits
from app.agent.prompt_full import Full
from app.agent.prompt_profiles import Profile
from app.agent.rollout_loop import Agent
from app.apis.listed_app import ListedApp
from app.engine.hosted.chat_model import ChatModel
from app.engine.hosted.client import OpenAiChatModel, Remedies, WithheldError
from app.engine.protocol import Completion, Sampling
from app.engine.thoughts import after_thought
from app.engine.tokenizer import ChatTokenizer, Message
from app.records import Offer, Policy, Task
from app.sandbox.protocol import Observation
from app.skills.in_memory_library import InMemoryLibrary
from trainer.environment import Scenario
from trainer.rollouts.episode import Episode, EpisodeRunner
from trainer.rollouts.expert import ExpertContext
from trainer.sft_data.answer_tokens import UntokenizableError, answer_ids

LIMITS = RolloutLimits(turns=20, turn_tokens=100_000, task_tokens=1_000_000, seconds=7200)
"""Only turns are limited tightly: the endpoint counts tokens of its own, and may be slow."""

REMEDIES = Remedies(
    key="name the variable that holds a good one, of an expert with --api-key-env",
    model="correct the option model or url",
    slow="raise --timeout, or lower --at-once",
)


@asynccontextmanager
async def load_expert(
    context: ExpertContext, *, url: str, model: str, max_tokens: Annotated[int, msgspec.Meta(ge=0)] = 1500
) -> AsyncIterator["ChatExpert"]:
    """The plug-in `chat`: an OpenAI-compatible endpoint, and the name of a model there.

    `max_tokens` is per turn; 0 leaves it to the endpoint.
    """
    opened: AbstractAsyncContextManager[ChatModel] = (
        OpenAiChatModel(
            url,
            model,
            key=context.key,
            timeout=context.timeout,
            patience=context.patience,
            remedies=REMEDIES,
        )
        if context.open_model is None
        else context.open_model()
    )
    async with opened as chat_model:
        yield ChatExpert(chat_model, model, context, max_tokens)


class DualFormatEngine:
    """An `Engine` and a `Profile` for one rollout, in two formats.

    The expert reads the `full` profile, because it was trained on no other; the trajectory holds the policy's
    profile, because that is what the policy will read.
    """

    def __init__(self, chat_model: ChatModel, tokenizer: ChatTokenizer, profile: Profile, max_tokens: int) -> None:
        self._chat_model = chat_model
        self._max_tokens = max_tokens
        self._tokenizer = tokenizer
        self._profile = profile
        self._full = Full()
        self._messages: list[Message] = []

    @property
    def name(self) -> str:
        return self._profile.name

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return self._profile.stop_strings

    @property
    def look_up_chars(self) -> int:
        return self._profile.look_up_chars

    def opening(self, task: Task, offers: Sequence[Offer], apps: Sequence[ListedApp]) -> list[Message]:
        self._messages = self._full.opening(task, offers, apps)
        return self._profile.opening(task, offers, apps)

    def observation(self, observation: Observation) -> str:
        self._messages.append(Message("user", self._full.observation(observation)))
        return self._profile.observation(observation)

    async def complete(self, prompt_ids: Sequence[int], *, model: str, sampling: Sampling) -> Completion:  # noqa: ARG002
        """Send the messages so far to the expert. Raises UntokenizableError, also for what a filter withholds."""
        try:
            answer = await self._chat_model.answer(
                self._messages, max_tokens=self._max_tokens, temperature=sampling.temperature
            )
        except WithheldError as error:
            raise UntokenizableError(str(error)) from error
        text = after_thought(self._tokenizer.decode(prompt_ids), answer.text)
        ids = answer_ids(self._tokenizer, text, ended=answer.finish == "stop")
        self._messages.append(Message("assistant", answer.text))
        return Completion(ids, (0.0,) * len(ids), answer.finish)


@dataclass(frozen=True)
class ChatExpert:
    """Implements `Expert`."""

    chat_model: ChatModel
    model: str  # its name
    context: ExpertContext
    max_tokens: int = 0  # of a turn; 0 leaves it to the endpoint
    deterministic: bool = False

    async def play(self, scenario: Scenario, temperature: float) -> list[Episode]:
        context, library, episodes = self.context, InMemoryLibrary(), []
        for task in scenario.tasks:
            offers = await library.find(task.instruction, scenario.id)
            dual = DualFormatEngine(self.chat_model, context.tokenizer, context.profile, self.max_tokens)
            agent = Agent(dual, context.tokenizer, dual, context.sandbox, LIMITS, temperature)
            episode_runner = EpisodeRunner(agent, context.environment, Policy(self.model))
            episodes.append(await episode_runner.run_task(scenario, task, library, offers))
        return episodes
