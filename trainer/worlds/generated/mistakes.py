"""Mistakes that services refuse, or answers show: the APIs as somebody believes them who read too little."""

from collections.abc import Iterator
from random import Random

import msgspec

from trainer.worlds.generated.domains import with_other_state
from trainer.worlds.generated.expert_programs import ProgramStyle, Subject, lacks_a_field
from trainer.worlds.generated.gym_apis import GymApi, other_words
from trainer.worlds.generated.task_forms import ACTING


def mistaken(subject: Subject, style: ProgramStyle, rng: Random) -> Subject:
    """The subject with one mistake about its main API."""
    api = rng.choice(list(_beliefs(subject, style, rng)))
    return msgspec.structs.replace(subject, main=api)


def _beliefs(subject: Subject, style: ProgramStyle, rng: Random) -> Iterator[GymApi]:
    """The API with another name of its list, and as far as its shape allows: without pages from 1, and so on."""
    api, form, shape = subject.main, subject.form, subject.main.shape
    yield msgspec.structs.replace(api, words={**api.words, "list": other_words("list", api.words["list"], rng)})
    if shape.paging == "page" and api.first_page == 1:
        yield msgspec.structs.replace(api, first_page=0)
    if shape.write == "patch" and form.goal in ACTING:
        yield msgspec.structs.replace(api, domain=with_other_state(api.domain, rng))
    for axis, value in simpler_shapes(subject, style).items():
        yield api.in_shape(axis, value)


def simpler_shapes(subject: Subject, style: ProgramStyle) -> dict[str, str]:
    """Values of axes that would need less code."""
    shape = subject.main.shape
    simpler: dict[str, str] = {}
    if shape.nesting == "grouped":  # an object in place of a name would go unnoticed
        simpler["nesting"] = "flat"
    reads = style.loop != "filter" and not style.asks  # others would take any answer for rows, page by page
    pages = shape.paging in ("page", "offset") and reads
    if shape.envelope != "bare" and (pages or shape.paging == "whole"):
        simpler["envelope"] = "bare"
    if shape.errors == "limited" and shape.paging != "whole":
        simpler["errors"] = "strict"
    if shape.auth != "open":
        simpler["auth"] = "open"
    if lacks_a_field(subject):
        simpler["rows"] = "full"
    return simpler
