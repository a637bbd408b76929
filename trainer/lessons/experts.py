"""Experts that know a program for each task: they read the documents, write it, and repair what a service refuses.

Their rollouts are in the real sandbox, with skills kept, crowded and withheld as in serving. They use a skill
that fits, or solve the task and complete it. Their engine answers what they say, so rollouts are recorded as a
policy's.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Annotated, Any, ClassVar, Protocol
from uuid import UUID

import msgspec

from app.agent.rollout import Agent, RolloutHooks, RolloutLimits
from app.apis.catalog import Catalog, with_builtins
from app.apis.listing import listed_apps
from app.base.errors import InvalidError
from app.base.values import Offer, Policy, Task, Turn
from app.engine.protocol import Completion, Sampling
from app.engine.tokenizer import ChatTokenizer, after_thought
from app.skills.in_memory_library import InMemoryLibrary
from trainer.environment import Environment, Scenario
from trainer.rollouts.episode import Episode, EpisodeRunner, ExpertContext

_SENTENCES = {
    "apps": ("I see which apps there are.", "First I look for the right app.", "Which apps are there?"),
    "look": ("I look at what the answer contains.", "What does the list look like?", "Check its shape."),
    "try": ("I try it.", "Let me see whether this works.", "A first attempt."),
    "rows": ("Nothing matches: I look at some rows.", "What do rows look like?", "I check what the rows have."),
    "again": ("There is no such name: I look again.", "I use a name that is listed.", "That name was wrong."),
    "more": ("There are more operations: I read on.", "I look at the next page.", "What else is there?"),
    "use": ("A function for this is there already.", "Use the skill.", "The given function fits: I call it."),
    "done": ("Done.", "That is all.", "The task is complete."),
}
_CALLED = re.compile(r"\bapis\.(\w+)\.(\w+)\(")
_PAGE = re.compile(r"^\[\d+ more: (apis\.api_docs\.show_signatures\(.+\))\]$", re.MULTILINE)
_RAISED = re.compile(r"[A-Z]\w*(Error|Exception)(: |$)")  # the last line of a traceback
_LIMITS = RolloutLimits(turns=8, task_tokens=32_768)
_OFFERED = 3


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


Part = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """Code for one form of task: a typed function, and a call of it. `values` are expressions, one a parameter."""

    name: str
    parameters: tuple[tuple[str, str], ...]  # name and type
    returns: str
    body: tuple[str, ...]
    result: str  # an expression

    @property
    def signature(self) -> str:
        given = ", ".join(f"{name}: {kind}" for name, kind in self.parameters)
        return f"{self.name}({given}) -> {self.returns}"

    @property
    def function(self) -> str:
        """A skill."""
        lines = [f"def {self.signature}:", *indent([*self.body, f"return {self.result}"])]
        return "\n".join([*self._imports, *lines])

    def call(self, values: tuple[str, ...]) -> str:
        return f"result = {self.name}({', '.join(values)})\nprint(result)"

    def inline(self, values: tuple[str, ...]) -> str:
        """The same without a function: it solves one task and leaves no skill."""
        given = [f"{name} = {value}" for (name, _), value in zip(self.parameters, values, strict=True)]
        return "\n".join([*self._imports, *given, *self.body, f"result = {self.result}", "print(result)"])

    @property
    def _imports(self) -> list[str]:
        return ["import time", ""] if any("time.sleep" in line for line in self.body) else []


def indent(lines: list[str], levels: int = 1) -> list[str]:
    return ["    " * levels + line for line in lines]


class Habits(msgspec.Struct, frozen=True, kw_only=True):
    """The probability of each variation."""

    inline: Part = 0.0  # solves the task without a function
    mistake: Part = 0.0  # makes a mistake first, which is noticed and repaired
    trust: Part = 0.0  # completes the task in the turn that uses a skill


class Form(Protocol):
    """What all tasks of a scenario ask; their values differ."""

    @property
    def is_answered(self) -> bool:
        """Whether they ask for an answer."""
        ...


class Plan(Protocol):
    """The tasks of a scenario: the values of each, in the order of the parameters of the program."""

    @property
    def values(self) -> Sequence[dict[str, Any]]: ...
    @property
    def form(self) -> Form: ...
    def instruction(self, index: int) -> str: ...


class PlannedEnvironment(Environment, Protocol):
    """An environment whose tasks are those of plans: the variable `world` of a task says which."""

    def place(self, world: str) -> tuple[Any, int]:
        """The plan, and the position of the task in it. Raises NotFoundError."""
        ...

    def catalog(self, plan: Any) -> Catalog: ...


class ProgramScript(ABC):
    """Works on one task of a plan. It calls no operation that it was not shown.

    `right` is the program that solves it. `knows_apps`: the prompt says which apps there are, or which has
    what the task is about, so the expert need not ask.
    """

    def __init__(
        self,
        plan: Plan,
        index: int,
        right: Program,
        offers: Sequence[Offer],
        *,
        habits: Habits,
        rng: Random,
        knows_apps: bool,
    ) -> None:
        self._given = plan.values[index]
        self._right, self._rng, self._knows_apps = right, rng, knows_apps
        self._values = tuple(repr(value) for value in self._given.values())
        self._completion = f"apis.supervisor.complete_task({'answer=result' if plan.form.is_answered else ''})"
        self._fits = any(each.name == right.name for each in offers)
        self._inline = rng.random() < habits.inline
        self._mistaken = rng.random() < habits.mistake
        self._trusting = rng.random() < habits.trust
        self._turns = self._play()
        self._begun = False
        self._observations: Sequence[str] = ()

    def next_turn(self, observations: Sequence[str]) -> str:
        """The next message: a sentence and a Python block."""
        self._observations = observations
        if not self._begun:
            self._begun = True
            return next(self._turns)
        return self._turns.send(observations[-1])

    @abstractmethod
    def solve(self) -> Generator[str, str, None]:
        """The turns that solve the task without a skill; each is sent what it printed."""

    def _play(self) -> Generator[str, str, None]:
        solved = False
        if self._fits:
            ending = f"\n{self._completion}" if self._trusting else ""
            solved = not raised((yield self.say("use", f"{self._right.call(self._values)}{ending}")))
        if not solved:
            yield from self.solve()
        while True:  # the rollout ends when the task is completed
            yield self.say("done", self._completion)

    def ask_for_apps(self) -> Generator[str, str, None]:
        if not self._knows_apps:
            yield self.say("apps", "print(apis.api_docs.show_app_descriptions())")

    def read(self, sentence: str, *apps: str) -> Generator[str, str, None]:
        """Look at the operations of these apps, and read on until it has seen those that the program needs."""
        observation = yield turn_of(sentence, signatures_of(*apps))
        while self._unshown(self._right) and (calls := _PAGE.findall(observation)):
            observation = yield self.say("more", "\n".join(f"print({call})" for call in calls))

    def attempt(self, program: Program) -> str:
        """Code that runs a program, or `look_ups` if it has any."""
        return self.look_ups(program) or self.code(program)

    def look_ups(self, program: Program) -> str:
        """Of what it calls of operations that were not shown."""
        return "\n".join(
            f"print(apis.api_docs.show_api_doc({app!r}, {name!r}))" for app, name in self._unshown(program)
        )

    def _unshown(self, program: Program) -> list[tuple[str, str]]:
        seen = "\n".join(self._observations)
        return [call for call in _CALLED.findall(program.function) if not re.search(rf"\b{call[1]}\(", seen)]

    def code(self, program: Program) -> str:
        if self._inline:
            return program.inline(self._values)
        return f"{program.function}\n\n{program.call(self._values)}"

    def say(self, kind: str, code: str) -> str:
        return turn_of(self._rng.choice(_SENTENCES[kind]), code)


def turn_of(sentence: str, code: str) -> str:
    return f"{sentence}\n```python\n{code}\n```"


def raised(observation: str) -> bool:
    return _RAISED.match(observation.rpartition("\n")[2]) is not None


def signatures_of(*apps: str) -> str:
    """Code that shows the operations of these apps."""
    return "\n".join(f'print(apis.api_docs.show_signatures("{app}"))' for app in apps)


@dataclass(frozen=True)
class ProgramExpert(ABC):
    """Implements `Expert`. The same seed gives the same demonstrations.

    `crowded` is the share of tasks that are offered skills that do not fit, `withheld` of those that are offered
    none.
    """

    scripts: ClassVar[Callable[..., ProgramScript]]

    context: ExpertContext
    environment: PlannedEnvironment
    crowded: float
    withheld: float
    habits: Habits
    deterministic: bool = True

    @abstractmethod
    def app_words(self, plan: Any) -> str:
        """What the prompt has if it tells which apps there are."""

    @abstractmethod
    def unfitting_skills(self, plan: Any, count: int, rng: Random) -> Sequence[Offer]:
        """Right solutions of other tasks with the same apps, as a grown library offers them."""

    def script(self, task: Task, offers: Sequence[Offer], rng: Random) -> ProgramScript:
        """The turns of one task."""
        plan, index = self.environment.place(task.variables["world"])
        knows_apps = self._says(self.app_words(plan), plan, task)
        return type(self).scripts(plan, index, offers, habits=self.habits, rng=rng, knows_apps=knows_apps)

    async def play(self, scenario: Scenario, temperature: float) -> list[Episode]:  # noqa: ARG002  it has none
        library, episodes = InMemoryLibrary(), []
        rng = Random(f"demonstrate {self.context.seed} {scenario.id}")
        for task in scenario.tasks:
            offers = await self._offers(library, scenario, task, rng)
            engine = ExpertEngine(self.script(task, offers, rng), self.context.tokenizer)
            agent = Agent(engine, self.context.tokenizer, self.context.profile, self.context.sandbox, _LIMITS)
            runner = EpisodeRunner(agent, self.environment, Policy("expert"))
            episodes.append(await runner.run_task(scenario, task, library, offers, hooks=engine))
        return episodes

    def _says(self, words: str, plan: Plan, task: Task) -> bool:
        """Whether the prompt has these words, such as the name of an app, before the task."""
        apps = listed_apps(with_builtins(self.environment.catalog(plan)))
        blank = msgspec.structs.replace(task, instruction="")
        text = "\n".join(message.content for message in self.context.profile.opening(blank, [], apps))
        return words in text

    async def _offers(self, library: InMemoryLibrary, scenario: Scenario, task: Task, rng: Random) -> list[Offer]:
        crowded, withheld = rng.random() < self.crowded, rng.random() < self.withheld
        found = [] if withheld else await library.find(task.instruction, scenario.id)
        if not crowded:
            return found
        plan, count = self.environment.place(task.variables["world"])[0], rng.randint(1, _OFFERED - len(found[:2]))
        offers = [*found, *self.unfitting_skills(plan, count, rng)][:_OFFERED]
        rng.shuffle(offers)
        return offers


def skill_of(plan: Plan, program: Program, rng: Random) -> Offer:
    """The program as a skill that a library offers, of any task of the plan."""
    return Offer(
        skill_id=UUID(int=rng.getrandbits(128)),
        name=program.name,
        version=1,
        signature=program.signature,
        source=program.function,
        instruction=plan.instruction(rng.randrange(len(plan.values))),
    )


def plug_in(name: str, expert: type[ProgramExpert], environment: type[PlannedEnvironment]) -> Any:
    """The `load_expert` of an expert and the environment that it knows, which have the same name."""

    @asynccontextmanager
    async def load_expert(
        context: ExpertContext,
        *,
        inline: Part = 0.2,
        mistake: Part = 0.3,
        trust: Part = 0.3,
        crowded: Part = 0.3,
        withheld: Part = 0.15,
    ) -> AsyncIterator[ProgramExpert]:
        """`crowded` and `withheld` as in `ProgramExpert`; the others are the probabilities in `Habits`.

        Raises InvalidError for another environment than the one that the expert knows.
        """
        if not isinstance(context.environment, environment):
            raise InvalidError(
                f"the expert {name} knows the environment {name} only: name that one, or another expert"
            )
        habits = Habits(inline=inline, mistake=mistake, trust=trust)
        yield expert(context, context.environment, crowded, withheld, habits)

    return load_expert
