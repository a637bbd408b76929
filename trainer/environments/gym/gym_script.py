"""The turns of the gym's expert: it reads the documents, writes a program, and repairs what a service refuses."""

import re
from collections.abc import Generator, Sequence
from random import Random

import msgspec

from app.records import Offer
from trainer.environments.gym.expert_notes import note_apps, note_fields
from trainer.environments.gym.expert_programs import Program, Subject, draw_style, write_program
from trainer.environments.gym.gym_apis import GymApi
from trainer.environments.gym.gym_plans import ScenarioPlan
from trainer.environments.gym.mistakes import mistaken
from trainer.environments.gym.task_forms import ANSWERED

SENTENCES = {
    "apps": ("I see which apps there are.", "First I look for the right app.", "Which apps are there?"),
    "look": (
        "I look at what the answer contains.",
        "What does the list look like?",
        "Check its shape.",
    ),
    "try": ("I try it.", "Let me see whether this works.", "A first attempt."),
    "use": ("A function for this is there already.", "Use the skill.", "The given function fits: I call it."),
    "done": ("Done.", "That is all.", "The task is complete."),
}
_RAISED = re.compile(r"[A-Z]\w*(Error|Exception)(: |$)")  # the last line of a traceback


class GymHabits(msgspec.Struct, frozen=True, kw_only=True):
    """The probability of each variation."""

    inline: float = 0.0  # solves the task without a function
    mistake: float = 0.0  # makes a mistake first, which is noticed and repaired
    trust: float = 0.0  # completes the task in the turn that uses a skill


class GymScript:
    """Works on one task. `knows_apps`: the prompt lists the apps, so the expert need not ask for them."""

    def __init__(
        self,
        plan: ScenarioPlan,
        index: int,
        offers: Sequence[Offer],
        *,
        habits: GymHabits,
        rng: Random,
        knows_apps: bool,
    ) -> None:
        self._plan, self._index = plan, index
        self._subject = subject_of(plan)
        self._values = tuple(repr(value) for value in plan.values[index].values())
        self._style = draw_style(plan.key.random("style"))
        self._rng = rng
        self._knows_apps = knows_apps
        right = self._program(self._subject)
        self._fits = any(each.name == right.name for each in offers)
        self._inline = rng.random() < habits.inline
        self._mistaken = rng.random() < habits.mistake
        self._trusting = rng.random() < habits.trust
        self._turns = self._play(right)
        self._begun = False

    def next_turn(self, observations: Sequence[str]) -> str:
        """The next message: a sentence and a Python block."""
        if not self._begun:
            self._begun = True
            return next(self._turns)
        return self._turns.send(observations[-1])

    def _play(self, right: Program) -> Generator[str, str, None]:
        solved = False
        if self._fits:
            ending = f"\n{self._completion}" if self._trusting else ""
            solved = not raised((yield self._say("use", f"{right.call(self._values)}{ending}")))
        if not solved:
            yield from self._solve(right)
        while True:  # the rollout ends when the task is completed
            yield self._say("done", self._completion)

    def _solve(self, right: Program) -> Generator[str, str, None]:
        if not self._knows_apps:
            yield self._say("apps", "print(apis.api_docs.show_app_descriptions())")
        yield turn_of(note_apps(self._subject), _signatures(self._subject.apis))
        if self._mistaken:
            wrong = self._program(mistaken(self._subject, self._style, self._rng))
            if not raised((yield self._say("try", self._code(wrong)))):
                return
        yield self._say("look", _shapes(self._subject.apis))
        solution = turn_of(note_fields(self._subject, self._plan.values[self._index]), self._code(right))
        if raised((yield solution)):
            yield solution

    @property
    def _completion(self) -> str:
        return f"apis.supervisor.complete_task({'answer=result' if self._plan.form.goal in ANSWERED else ''})"

    def _program(self, subject: Subject) -> Program:
        return write_program(subject, self._style)

    def _code(self, program: Program) -> str:
        if self._inline:
            return program.inline(self._values)
        return f"{program.function}\n\n{program.call(self._values)}"

    def _say(self, kind: str, code: str) -> str:
        return turn_of(self._rng.choice(SENTENCES[kind]), code)


def turn_of(sentence: str, code: str) -> str:
    return f"{sentence}\n```python\n{code}\n```"


def subject_of(plan: ScenarioPlan) -> Subject:
    return Subject(form=plan.form, main=plan.main, joined=plan.joined, verbs=plan.verbs)


def _signatures(apis: Sequence[GymApi]) -> str:
    return "\n".join(f'print(apis.api_docs.show_signatures("{api.name}"))' for api in apis)


def _shapes(apis: Sequence[GymApi]) -> str:
    """Code that shows what lists return: the line of an operation does not tell whether a field is an object."""
    return "\n".join(
        f'print(apis.api_docs.show_api_doc("{api.name}", "{api.route("list").python}")'
        '["response_schemas"]["success"])'
        for api in apis
    )


def raised(observation: str) -> bool:
    return _RAISED.match(observation.rpartition("\n")[2]) is not None
