"""The turns of the gym's expert: it reads the documents, writes a program, and repairs what a service refuses."""

import re
from collections.abc import Generator, Sequence
from random import Random

from app.records import Offer
from trainer.worlds.generated.expert_notes import note_apps, note_fields
from trainer.worlds.generated.expert_programs import Subject, draw_style, write_program
from trainer.worlds.generated.gym_apis import GymApi
from trainer.worlds.generated.gym_documents import SUPERVISOR
from trainer.worlds.generated.gym_plans import ScenarioPlan
from trainer.worlds.generated.mistakes import mistaken
from trainer.worlds.generated.program_script import Habits, ProgramScript, raised, turn_of
from trainer.worlds.generated.slips import Slip, slips
from trainer.worlds.generated.task_forms import ANSWERED

_KEYS = re.compile(r"\bkeys are (.+)\Z")
_UNREAD = 0.3  # of its mistakes: programs written before it reads how lists look


class GymScript(ProgramScript):
    """`knows_apps`: the prompt lists the apps, so the expert need not ask for them."""

    def __init__(
        self,
        plan: ScenarioPlan,
        index: int,
        offers: Sequence[Offer],
        *,
        habits: Habits,
        rng: Random,
        knows_apps: bool,
    ) -> None:
        self._plan, self._index = plan, index
        self._subject = subject_of(plan)
        self._style = draw_style(plan.key.random("style"))
        self._knows_apps = knows_apps
        super().__init__(
            write_program(self._subject, self._style),
            [repr(value) for value in plan.values[index].values()],
            offers,
            answers=plan.form.goal in ANSWERED,
            habits=habits,
            rng=rng,
        )

    def solve(self) -> Generator[str, str, None]:
        if not self._knows_apps:
            yield self.say("apps", "print(apis.api_docs.show_app_descriptions())")
        names = [api.name for api in self._subject.apis]
        yield from self.read(note_apps(self._subject), SUPERVISOR, *names)
        slip = self._slip() if self._mistaken else None
        if self._mistaken and slip is None:
            wrong = write_program(mistaken(self._subject, self._style, self._rng), self._style)
            if not raised((yield self.say("try", self.attempt(wrong)))):
                return
        noted = self._subject if slip is None else slip.subject
        yield self.say("look", "\n".join(_shape(api) for api in noted.apis))
        solution = self._solution(noted)
        if slip is not None:
            error = yield solution
            if not raised(error):
                return
            if slip.look:
                yield self.say("rows", slip.look)
            solution = turn_of(_corrected(slip, error), self.code(self._right))
        if raised((yield solution)):
            yield solution

    def _solution(self, subject: Subject) -> str:
        note = note_fields(subject, self._plan.values[self._index])
        return turn_of(note, self.code(write_program(subject, self._style)))

    def _slip(self) -> Slip | None:
        if self._rng.random() < _UNREAD:
            return None
        found = slips(self._subject, self._plan.values[self._index], self._style, self._rng)
        return self._rng.choice(found) if found else None


def _corrected(slip: Slip, error: str) -> str:
    """The sentence after the error: it lists the keys that its hint has, since what is absent decides."""
    keys = _KEYS.search(error)
    return f"The keys are {keys[1]}: {slip.correction}." if keys else f"So {slip.correction}."


def subject_of(plan: ScenarioPlan) -> Subject:
    return Subject(form=plan.form, main=plan.main, joined=plan.joined, verbs=plan.verbs)


def _shape(api: GymApi) -> str:
    """Code that shows what a list returns: its line does not tell whether a field is an object."""
    answer = '["response_schemas"]["success"]'
    return f'print(apis.api_docs.show_api_doc("{api.name}", "{api.route("list").python}"){answer})'
