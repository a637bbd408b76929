"""The expert `programs`: it demonstrates tasks of worlds that have a program for each, as functions to keep.

It reads the documents, writes the function and calls it, or calls the skill that an earlier task left. Its
mistakes are programs that forget something, which it repairs when it sees the error.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Final

from app.agent.rollout import Agent, RolloutLimits
from app.base.errors import InvalidError
from app.base.values import Policy
from app.skills.in_memory_library import InMemoryLibrary
from trainer.environment import Scenario
from trainer.lessons.experts import ExpertEngine, Part, raised, signatures_of, turn_of
from trainer.rollouts.episode import Episode, EpisodeRunner, ExpertContext
from trainer.worlds.external.environment import ExternalEnvironment, WorldProgram

_LIMITS: Final = RolloutLimits(turns=6, task_tokens=32_768)
_SENTENCES: Final = {
    "read": ("I read the documents.", "Which operations are there?", "First I look at the operations."),
    "write": ("I write a function for it.", "A function does it, and I call it.", "Write a skill."),
    "repair": ("I forgot something: once more.", "That failed: I mend the function.", "I handle this case, too."),
    "use": ("A function for this is there already.", "Use the skill.", "The given function fits: I call it."),
    "done": ("Done.", "That is all.", "The task is complete."),
}


@dataclass(frozen=True)
class ProgramTurns:
    """Implements `Script`: the turns of one task."""

    program: WorldProgram
    offered: bool
    careless: bool
    rng: Random

    def next_turn(self, observations: Sequence[str]) -> str:
        last = observations[-1] if observations else ""
        if not observations:
            if self.offered:
                return self._say("use", self.program.call)
            return self._say("read", signatures_of(self.program.app))
        if raised(last):
            return self._say("repair", f"{self.program.function}\n\n{self.program.call}")
        if len(observations) == 1 and not self.offered:
            function = self.program.careless if self.careless else self.program.function
            return self._say("write", f"{function}\n\n{self.program.call}")
        return self._say("done", "apis.supervisor.complete_task()")

    def _say(self, kind: str, code: str) -> str:
        return turn_of(self.rng.choice(_SENTENCES[kind]), code)


@dataclass(frozen=True)
class ProgramsExpert:
    """Implements `Expert`. The same seed gives the same demonstrations."""

    context: ExpertContext
    environment: ExternalEnvironment
    mistake: float
    withheld: float
    deterministic: bool = True

    async def play(self, scenario: Scenario, temperature: float) -> list[Episode]:  # noqa: ARG002  it has none
        library, episodes = InMemoryLibrary(), []
        rng = Random(f"demonstrate {self.context.seed} {scenario.id}")
        for task in scenario.tasks:
            async with self.environment.open(scenario, task) as world:
                program = await world.program()
            withheld, careless = rng.random() < self.withheld, rng.random() < self.mistake
            offers = [] if withheld else await library.find(task.instruction, scenario.label)
            offered = any(each.name == program.name for each in offers)
            engine = ExpertEngine(ProgramTurns(program, offered, careless, rng), self.context.tokenizer)
            agent = Agent(engine, self.context.tokenizer, self.context.profile, self.context.sandbox, _LIMITS)
            runner = EpisodeRunner(agent, self.environment, Policy("expert"))
            episodes.append(await runner.run_task(scenario, task, library, offers, hooks=engine))
        return episodes


@asynccontextmanager
async def load_expert(
    context: ExpertContext, *, mistake: Part = 0.25, withheld: Part = 0.15
) -> AsyncIterator[ProgramsExpert]:
    """The plug-in `programs`. `mistake` is the share of functions that forget something, `withheld` of tasks that
    are offered no skill. Raises InvalidError for an environment without programs.
    """
    environment = context.environment
    if not isinstance(environment, ExternalEnvironment) or environment.world != "alfworld":
        raise InvalidError("the expert programs knows the environment alfworld only: name that one")
    yield ProgramsExpert(context, environment, mistake, withheld)
