"""The turns of experts that write programs: they use a skill that fits, or solve the task and complete it."""

import re
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from random import Random
from typing import Annotated

import msgspec

from app.records import Offer
from trainer.worlds.generated.expert_programs import Program

Part = Annotated[float, msgspec.Meta(ge=0, le=1)]

_SENTENCES = {
    "apps": ("I see which apps there are.", "First I look for the right app.", "Which apps are there?"),
    "look": (
        "I look at what the answer contains.",
        "What does the list look like?",
        "Check its shape.",
    ),
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


class Habits(msgspec.Struct, frozen=True, kw_only=True):
    """The probability of each variation."""

    inline: Part = 0.0  # solves the task without a function
    mistake: Part = 0.0  # makes a mistake first, which is noticed and repaired
    trust: Part = 0.0  # completes the task in the turn that uses a skill


class ProgramScript(ABC):
    """Works on one task. `right` is the program that solves it, `values` its arguments as Python; `answers`: the
    task wants its result. It calls no operation that it was not shown.
    """

    def __init__(
        self,
        right: Program,
        values: Sequence[str],
        offers: Sequence[Offer],
        *,
        answers: bool,
        habits: Habits,
        rng: Random,
    ) -> None:
        self._right, self._values, self._rng = right, tuple(values), rng
        self._completion = f"apis.supervisor.complete_task({'answer=result' if answers else ''})"
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
        looked_up = [
            f"print(apis.api_docs.show_api_doc({app!r}, {name!r}))" for app, name in self._unshown(program)
        ]
        return "\n".join(looked_up)

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
