"""Experts, which demonstrate tasks for a policy to imitate.

An expert is a plug-in: a function `load_expert(context, *, option: type = default, ...)` that returns an async
context manager of an `Expert`, registered in the entry-point group `sage.experts` or named "module:attribute".
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from app.agent.prompt_profiles import Profile
from app.engine.hosted.chat_model import ChatModel
from app.engine.tokenizer import ChatTokenizer
from app.plugins import registry
from app.plugins.plugin_options import PluginSpec, load_options
from app.sandbox.protocol import Sandbox
from trainer.environment import Environment, Scenario
from trainer.rollouts.episode import Episode

GROUP = "sage.experts"
OpenModel: TypeAlias = Callable[[], AbstractAsyncContextManager[ChatModel]]


@dataclass(frozen=True, kw_only=True)
class ExpertContext:
    """Where an expert works, and for which policy its turns are recorded."""

    environment: Environment
    tokenizer: ChatTokenizer  # of the policy that will imitate
    profile: Profile  # of the same policy
    sandbox: Sandbox
    seed: int = 0
    key: str = ""  # secret of an expert behind an API
    timeout: float = 120.0  # seconds per answer
    patience: float = 360.0  # seconds of retries while an expert is overloaded, slow or unreachable
    open_model: OpenModel | None = None  # of an expert behind an API, instead of by its options


class Expert(Protocol):
    """Works through whole scenarios. Its trajectories hold the policy's tokens and prompts, as if it had acted."""

    @property
    def deterministic(self) -> bool:
        """Whether every pass over a scenario is the same, regardless of the temperature."""
        ...

    async def play(self, scenario: Scenario, temperature: float) -> list[Episode]:
        """One pass over the tasks of a scenario in order, each with the skills that the earlier ones left.

        Raises EngineError where the expert does not answer, UntokenizableError for an answer that the policy's
        tokenizer cannot represent.
        """
        ...


def open_expert(text: str, context: ExpertContext) -> AbstractAsyncContextManager[Expert]:
    """The expert that a setting names, such as "scripted?inline=0.1".

    Raises InvalidError for an unknown name, and for an option that is unknown, missing or does not fit.
    """
    spec = PluginSpec.parse(text)
    load = registry.load(GROUP, spec.name)
    opened: AbstractAsyncContextManager[Expert] = load(context, **load_options(load, spec))
    return opened
