"""The turns of the expert for records: it reads the documents, writes a program, and repairs its mistakes."""

from collections.abc import Generator, Iterator, Sequence
from random import Random
from typing import Literal

import msgspec

from app.records import Offer
from trainer.worlds.generated.crud_apis import other_words
from trainer.worlds.generated.crud_collections import words_of
from trainer.worlds.generated.crud_notes import note_app, note_plan
from trainer.worlds.generated.crud_plans import ANSWERING, SINGLE, CrudPlan
from trainer.worlds.generated.crud_programs import CrudSubject, subject_of, write_program
from trainer.worlds.generated.gym_documents import SUPERVISOR
from trainer.worlds.generated.program_script import Habits, ProgramScript, raised, signatures_of, turn_of
from trainer.worlds.generated.spelling import spell

Mistake = Literal["app", "word", "code", "slip"]  # the last one although it has read the document


class CrudScript(ProgramScript):
    """`knows_apps`: the prompt says which app has the records, so the expert need not ask for it."""

    def __init__(
        self,
        plan: CrudPlan,
        index: int,
        offers: Sequence[Offer],
        *,
        habits: Habits,
        rng: Random,
        knows_apps: bool,
    ) -> None:
        self._given = plan.values[index]
        self._subject = subject_of(plan)
        self._has_passwords = any(api.shape.auth == "key" for api in plan.apis)
        self._knows_apps = knows_apps
        super().__init__(
            write_program(self._subject),
            [repr(value) for value in self._given.values()],
            offers,
            answers=plan.form.goal in ANSWERING,
            habits=habits,
            rng=rng,
        )

    def solve(self) -> Generator[str, str, None]:
        beliefs = list(_beliefs(self._subject))
        mistake = self._mistake(beliefs)
        yield from self._find_app(mistake)
        if mistake == "code":
            wrong = self.say("try", self.attempt(write_program(self._rng.choice(beliefs))))
            if not raised((yield wrong)):
                return
        yield from self._look_up(mistake)
        if mistake == "slip" and not raised((yield self._solution(self._rng.choice(beliefs)))):
            return
        if self._is_surprised and not raised((yield self._solution(_believed(self._subject, rows="full")))):
            return
        solution = self._solution(self._subject)
        if raised((yield solution)):
            yield solution

    def _find_app(self, mistake: Mistake | None) -> Generator[str, str, None]:
        if not self._knows_apps:
            yield self.say("apps", "print(apis.api_docs.show_app_descriptions())")
        if mistake == "app":
            yield self.say("try", signatures_of(self._subject.collection.resource))
        apps = [*([SUPERVISOR] if self._has_passwords else []), self._subject.api.name]
        yield from self.read(note_app(self._subject), *apps)

    def _look_up(self, mistake: Mistake | None) -> Generator[str, str, None]:
        if mistake == "word":
            for name in _misnamed(self._subject, self._rng):
                yield self.say("look", _look(self._subject, name))
            yield self.say("again", self._look)
        elif self._look:
            yield self.say("look", self._look)

    def _solution(self, subject: CrudSubject) -> str:
        if looked_up := self.look_ups(write_program(subject)):
            return self.say("look", looked_up)
        return turn_of(note_plan(subject, self._given), self.code(write_program(subject)))

    def _mistake(self, beliefs: Sequence[CrudSubject]) -> Mistake | None:
        """One that something refuses."""
        possible: list[Mistake] = []
        if self._subject.form.goal != "info":
            possible.append("app")
        if self._look:
            possible += ["word", "word"]  # what is wrong most often
        if beliefs:
            possible += ["code", "slip"]
        wants = self._mistaken and not self._is_surprised  # one mistake is enough
        return self._rng.choice(possible) if wants and possible else None

    @property
    def _is_surprised(self) -> bool:
        """Whether rows lack what the documents promise."""
        return self._subject.is_hidden and self._subject.api.shape.rows == "undocumented"

    @property
    def _look(self) -> str:
        return _look(self._subject, _looked_up(self._subject))


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


def _misnamed(subject: CrudSubject, rng: Random) -> list[str]:
    """The operation under one or two names that others give it, or that the description of the app suggests."""
    collection, words = subject.collection, subject.api.words
    if subject.reads_rows:
        kind, called, described = "list", collection.called.many, collection.described.many
    else:
        kind, called, described = "create", collection.called.one, collection.described.one
    known = {route.python for route in subject.api.routes}
    verbs = [spell(f"{word} {called}", "snake") for word in other_words(kind, words[kind])]
    wrong = [rng.choice([name for name in verbs if name not in known])]
    suggested = spell(f"{words[kind]} {described}", "snake")
    if suggested not in known:
        wrong.append(suggested)
    return rng.sample(wrong, rng.randint(1, len(wrong)))


def _beliefs(subject: CrudSubject) -> Iterator[CrudSubject]:
    """The subject with one mistake about its API that an exception shows."""
    shape = subject.api.shape
    if shape.auth == "key":
        yield _believed(subject, auth="open")
    yield from _other_names(subject)
    if not subject.reads_rows or subject.form.goal == "count":
        return
    if shape.listing == "bare":
        yield _believed(subject, listing="named")
    elif shape.paging == "whole":
        yield _believed(subject, listing="bare")
    if subject.form.goal in SINGLE and subject.form.by == "title":
        yield from map(subject.with_title, words_of("title", subject.collection))


def _other_names(subject: CrudSubject) -> Iterator[CrudSubject]:
    """Of the operation that tells about the server, if it is called."""
    for name in words_of("info", subject.collection) if subject.form.goal == "info" else ():
        if name != subject.api.words["info"]:
            yield msgspec.structs.replace(subject, api=subject.api.with_word("info", name))


def _believed(subject: CrudSubject, **axes: str) -> CrudSubject:
    shape = msgspec.structs.replace(subject.api.shape, **axes)
    return msgspec.structs.replace(subject, api=msgspec.structs.replace(subject.api, shape=shape))
