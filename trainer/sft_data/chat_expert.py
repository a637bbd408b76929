"""An expert of others plays the policy: told everything in words, recorded in the policy's tokens and format."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.agent.full import Full
from app.agent.limits import RolloutLimits
from app.agent.loop import Agent
from app.agent.prompt import Profile
from app.engine.protocol import Completion, Sampling
from app.engine.retry import RetryingEngine
from app.engine.tokenizer import ChatTokenizer, Message
from app.records import Offer, Policy, Task
from app.sandbox.protocol import Observation, Sandbox
from app.skills.memory import MemoryLibrary
from trainer.environment import Environment, Scenario
from trainer.rollouts.episode import Episode, EpisodeRunner
from trainer.sft_data.answer_tokens import answer_ids
from trainer.sft_data.chat_endpoint import ChatEndpoint

LIMITS = RolloutLimits(turns=20, turn_tokens=100_000, task_tokens=1_000_000, seconds=7200)
"""Only turns are short: the endpoint counts tokens of its own, and may keep us waiting."""


class Interpreter:
    """Fulfils `Engine` and `Profile` for one rollout, in two languages.

    The expert reads the `full` profile, because it was never taught another; the trajectory holds the policy's
    profile, because that is what the policy will be shown.
    """

    def __init__(self, endpoint: ChatEndpoint, tokenizer: ChatTokenizer, profile: Profile) -> None:
        self._endpoint = endpoint
        self._tokenizer = tokenizer
        self._profile = profile
        self._told = Full()
        self._messages: list[Message] = []

    @property
    def name(self) -> str:
        return self._profile.name

    def opening(self, task: Task, offers: Sequence[Offer], apps: Mapping[str, str]) -> list[Message]:
        self._messages = self._told.opening(task, offers, apps)
        return self._profile.opening(task, offers, apps)

    def observation(self, observation: Observation) -> str:
        self._messages.append(Message("user", self._told.observation(observation)))
        return self._profile.observation(observation)

    async def complete(self, prompt_ids: Sequence[int], *, model: str, sampling: Sampling) -> Completion:  # noqa: ARG002
        """Asks the expert with the messages so far. Raises UnsayableError."""
        answer = await self._endpoint.ask(self._messages, sampling.temperature)
        ids = answer_ids(self._tokenizer, answer.text, ended=answer.finish == "stop")
        self._messages.append(Message("assistant", answer.text))
        return Completion(ids, (0.0,) * len(ids), answer.finish)


@dataclass(frozen=True, kw_only=True)
class ChatExpert:
    """Where the expert works, and whom for."""

    endpoint: ChatEndpoint
    environment: Environment
    tokenizer: ChatTokenizer
    profile: Profile
    sandbox: Sandbox
    patience: float = 120.0  # seconds for which an endpoint that is overloaded or away is asked again

    async def play(self, scenario: Scenario, temperature: float) -> list[Episode]:
        """One pass over the tasks of a scenario, each with the skills that the earlier ones left."""
        library, episodes = MemoryLibrary(), []
        for task in scenario.tasks:
            offers = await library.find(task.instruction, scenario.id)
            interpreter = Interpreter(self.endpoint, self.tokenizer, self.profile)
            engine = RetryingEngine(interpreter, seconds=self.patience)
            agent = Agent(engine, self.tokenizer, interpreter, self.sandbox, LIMITS, temperature)
            episode_runner = EpisodeRunner(agent, self.environment, Policy(self.endpoint.model))
            episodes.append(await episode_runner.run_task(scenario, task, library, offers))
        return episodes
