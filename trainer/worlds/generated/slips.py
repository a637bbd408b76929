"""Slips: what a small model notes wrongly although it has read the documents, and how it goes on after the error.

They are those that policies make in exams. Each says in one clause what is right, which stands before the program
that is.
"""

from collections.abc import Iterator, Mapping
from random import Random

import msgspec

from trainer.worlds.generated.api_calls import first_rows, where_rows_are
from trainer.worlds.generated.domains import Domain
from trainer.worlds.generated.expert_notes import token_of
from trainer.worlds.generated.expert_programs import ProgramStyle, Subject, needed_fields, write_program
from trainer.worlds.generated.gym_apis import GymApi, ItemField
from trainer.worlds.generated.mistakes import simpler_shapes
from trainer.worlds.generated.task_forms import ACTING, Parameter

_GUESSES: dict[ItemField, tuple[str, ...]] = {
    "person": ("name", "owner", "user"),
    "label": ("label", "type", "category"),
    "number": ("number", "value", "amount"),
    "date": ("date", "day", "time"),
}
_READ_ONLY: tuple[ItemField, ...] = ("person", "number", "date")  # updates do not take them
_RANKED = ("peak", "who", "act_top")  # without a match their programs raise
_Found = Iterator[tuple[GymApi, str, str]]  # the API as it is believed to be, then as in `Slip`


class Slip(msgspec.Struct, frozen=True, kw_only=True):
    subject: Subject  # as it is noted and programmed first
    correction: str  # a clause
    look: str = ""  # code that shows what is wrong, where the error does not


def slips(subject: Subject, values: Mapping[Parameter, str | int], style: ProgramStyle, rng: Random) -> list[Slip]:
    """All that an exception shows, where this API allows them."""
    found = [
        *_shapes(subject, style),
        *_names(subject, rng),
        *_states(subject, rng),
        *_labels(subject, values, style),
    ]
    right = write_program(subject, style)
    believed = [(msgspec.structs.replace(subject, main=api), correction, look) for api, correction, look in found]
    return [
        Slip(subject=wrong, correction=correction, look=look)
        for wrong, correction, look in believed
        if write_program(wrong, style) != right
    ]


def _shapes(subject: Subject, style: ProgramStyle) -> _Found:
    """Rows that are taken for whole, flat or bare, and a token that is forgotten."""
    api = subject.main
    corrections = {
        "rows": f"only {api.route('show').python} has {api.fields[api.hidden]}",
        "nesting": f"the fields of a row are in {api.wire('group')}",
        "envelope": f"the rows are in {'.'.join(where_rows_are(api))}",
        "auth": f"a token is needed: {token_of(api)}",
    }
    for axis, value in simpler_shapes(subject, style).items():
        if axis in corrections:
            yield api.in_shape(axis, value), corrections[axis], ""


def _names(subject: Subject, rng: Random) -> _Found:
    """A field under a name that nobody gave it."""
    api = subject.main
    for field in sorted(needed_fields(subject.form) & _GUESSES.keys()):
        words = _prose(api.domain, field)
        known = {_prose(api.domain, each) for each in (*_GUESSES, "progress")} | {*api.domain.distractors, "id"}
        guess = rng.choice([each for each in (words.split()[-1], *_GUESSES[field]) if each not in known])
        yield _called(api, field, guess), f"the field is {api.fields[field]}", ""


def _states(subject: Subject, rng: Random) -> _Found:
    """A state that is set in another field."""
    api, goal = subject.main, subject.form.goal
    if api.shape.write == "patch" and goal in ACTING:
        done = " or ".join(verb.done for verb in subject.verbs[: 2 if goal == "branch" else 1])
        wrong = _called(api, "progress", _prose(api.domain, rng.choice(_READ_ONLY)))
        yield wrong, f"{done} is a value of {api.fields['progress']}", ""


def _labels(subject: Subject, values: Mapping[Parameter, str | int], style: ProgramStyle) -> _Found:
    """A label that is looked for in a field which never has it."""
    api, form = subject.main, subject.form
    asked = style.asks and api.shape.filters == "equal"
    is_hidden = api.shape.rows == "partial" and api.hidden == "label"
    if "label" in form.selection and form.goal in _RANKED and not asked and not is_hidden:
        wrong = _called(api, "label", next(iter(api.domain.distractors), api.domain.progress))
        yield wrong, f"{values['label']} is {api.fields['label']}", "\n".join(first_rows(api))


def _called(api: GymApi, field: ItemField, words: str) -> GymApi:
    return msgspec.structs.replace(api, domain=msgspec.structs.replace(api.domain, **{field: words}))


def _prose(domain: Domain, field: ItemField) -> str:
    words: str = getattr(domain, field)
    return words
