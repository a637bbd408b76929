"""The turns of the expert for records: it reads the documents, writes a program, and repairs its mistakes."""

from collections.abc import Generator, Iterator, Sequence
from random import Random
from typing import Literal

import msgspec

from app.records import Offer
from trainer.environments.crud.crud_apis import other_words
from trainer.environments.crud.crud_notes import note_app, note_plan
from trainer.environments.crud.crud_plans import ANSWERING, SINGLE, CrudPlan
from trainer.environments.crud.crud_programs import CrudSubject, subject_of, write_program
from trainer.environments.gym.expert_programs import Program
from trainer.environments.gym.gym_script import SENTENCES, GymHabits, raised, turn_of
from trainer.environments.gym.spelling import spell

_AGAIN = ("There is no such name: I look again.", "I use a name that is listed.", "That name was wrong.")
Mistake = Literal["app", "word", "code"]


class CrudScript:
    """Works on one task. `knows_apps`: the prompt lists the apps, so the expert need not ask for them."""

    def __init__(
        self,
        plan: CrudPlan,
        index: int,
        offers: Sequence[Offer],
        *,
        habits: GymHabits,
        rng: Random,
        knows_apps: bool,
    ) -> None:
        self._plan, self._given = plan, plan.values[index]
        self._subject = subject_of(plan)
        self._values = tuple(repr(value) for value in self._given.values())
        self._rng = rng
        self._knows_apps = knows_apps
        right = write_program(self._subject)
        self._fits = any(each.name == right.name for each in offers)
        self._inline = rng.random() < habits.inline
        self._mistake = rng.choice(self._mistakes) if rng.random() < habits.mistake else None
        self._trusting = rng.random() < habits.trust
        self._turns = self._play(right)
        self._begun = False

    def next_turn(self, observations: Sequence[str]) -> str:
        """The next message: a sentence and a Python block."""
        if not self._begun:
            self._begun = True
            return next(self._turns)
        return self._turns.send(observations[-1])

    @property
    def _mistakes(self) -> list[Mistake]:
        """Those that something refuses."""
        looks: list[Mistake] = ["word"] if self._look else []
        code: list[Mistake] = ["code"] if any(_beliefs(self._subject, Random(0))) else []
        return ["app", *looks, *code]

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
        name = self._subject.api.name
        if not self._knows_apps:
            yield self._say("apps", "print(apis.api_docs.show_app_descriptions())")
        if self._mistake == "app":
            yield turn_of(note_app(self._subject), _signatures(self._subject.collection.resource))
            yield turn_of(self._rng.choice(_AGAIN), _signatures(name))
        else:
            yield turn_of(note_app(self._subject), _signatures(name))
        if self._mistake == "code":
            wrong = write_program(self._rng.choice(list(_beliefs(self._subject, self._rng))))
            if not raised((yield self._say("try", self._code(wrong)))):
                return
        if self._mistake == "word":
            yield self._say("look", _look(self._subject, _misnamed(self._subject, self._rng)))
            yield turn_of(self._rng.choice(_AGAIN), self._look)
        elif self._look:
            yield self._say("look", self._look)
        solution = turn_of(note_plan(self._subject, self._given), self._code(right))
        if raised((yield solution)):
            yield solution

    @property
    def _look(self) -> str:
        return _look(self._subject, _looked_up(self._subject))

    @property
    def _completion(self) -> str:
        return f"apis.supervisor.complete_task({'answer=result' if self._plan.form.goal in ANSWERING else ''})"

    def _code(self, program: Program) -> str:
        if self._inline:
            return program.inline(self._values)
        return f"{program.function}\n\n{program.call(self._values)}"

    def _say(self, kind: str, code: str) -> str:
        return turn_of(self._rng.choice(SENTENCES[kind]), code)


def _signatures(app: str) -> str:
    return f'print(apis.api_docs.show_signatures("{app}"))'


def _looked_up(subject: CrudSubject) -> str:
    """The operation whose line among the signatures does not tell enough, if any."""
    if subject.reads_rows:
        return subject.api.route("list", subject.at).python
    wrapped = subject.api.shape.body == "wrapped" and subject.form.goal == "create"
    return subject.api.route("create", subject.at).python if wrapped else ""


def _look(subject: CrudSubject, operation: str) -> str:
    if not operation:
        return ""
    part = '["response_schemas"]["success"]' if subject.reads_rows else '["parameters"]'
    return f'print(apis.api_docs.show_api_doc("{subject.api.name}", "{operation}"){part})'


def _misnamed(subject: CrudSubject, rng: Random) -> str:
    """The operation under a name that others give it."""
    kind = "list" if subject.reads_rows else "create"
    domain = subject.collection.domain
    word = other_words(kind, subject.api.words[kind], rng)
    return spell(f"{word} {domain.nouns if kind == 'list' else domain.noun}", "snake")


def _beliefs(subject: CrudSubject, rng: Random) -> Iterator[CrudSubject]:
    """The subject with one mistake about its API that an exception shows."""
    api, shape = subject.api, subject.api.shape
    if shape.auth == "key":
        yield _believed(subject, auth="open")
    if not subject.reads_rows or subject.form.goal == "count":
        return
    if shape.listing == "bare":
        yield _believed(subject, listing="named")
    elif shape.paging == "whole":
        yield _believed(subject, listing="bare")
    if subject.form.goal in SINGLE and subject.form.by == "title":
        words = {**subject.collection.words, "title": other_words("title", subject.collection.words["title"], rng)}
        other = msgspec.structs.replace(subject.collection, words=words)
        if other.fields["title"] not in subject.collection.fields.values():
            every = tuple(other if at == subject.at else each for at, each in enumerate(api.collections))
            yield msgspec.structs.replace(subject, api=msgspec.structs.replace(api, collections=every))


def _believed(subject: CrudSubject, **axes: str) -> CrudSubject:
    shape = msgspec.structs.replace(subject.api.shape, **axes)
    return msgspec.structs.replace(subject, api=msgspec.structs.replace(subject.api, shape=shape))
