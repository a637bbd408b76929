"""What an app is about: its nouns, fields and verbs, drawn from one theme of a pool of words."""

from functools import cache
from random import Random

import msgspec

from trainer.worlds.generated.person_names import projects
from trainer.worlds.generated.pools import Pool, part, split
from trainer.worlds.generated.word_lists import DISTRACTORS, MORE_DISTRACTORS, THEMES

_COMPOSED = 0.8
_LABELS = 5  # values of a label that are names of projects
_PROGRESS = "state, progress, current state, work state, handling state"
_INITIAL = "pending, new, untouched, raw, unprocessed"
_STAGES = "state, status, stage, phase, step, level, standing, position"
_QUALIFIERS = """
review, order, record, process, item, internal, overall, flow, case, job, entry, desk, request, service, office,
team, queue, filing, main, last known
"""
_MORE_INITIAL = """
fresh, received, unread, unhandled, idle, todo, queued, incoming, logged, outstanding, unassigned, registered,
entered, not started, unchecked, to be seen, undecided
"""
_DIRECTORY = """
    nouns: member, employee, contact, colleague, teammate
    persons: name, full name, known as, display name, nickname
    labels: team = *; department = *; division = *; crew = *; guild = *
    numbers: desk number, extension, staff number, badge number, seat
    dates: joined on, hired on, start day, joining date, first day
    verbs: invite/invited, promote/promoted, notify/notified, retire/retired, greet/greeted
"""
_MORE_DIRECTORY = """
    nouns: person, staff member, coworker, associate, representative, volunteer, technician, consultant, worker
    nouns: specialist, delegate, crew member, profile, user, account, resident, trainee, partner, analyst, clerk
    persons: legal name, real name, complete name, contact name, listed as, profile name, preferred name, person
    labels: unit = *; chapter = *; cohort = *; group = *; section = *; cell = *; pod = *; tribe = *
    labels: wing = *; corps = *; bureau = *; workgroup = *; committee = *; business unit = *; home base = *
    numbers: locker number, room number, seniority, years of service, payroll number, vacation days, grade level
    dates: employed since, contract start, entry date, member since, last review, account opened
"""


class Verb(msgspec.Struct, frozen=True):
    base: str
    done: str  # past participle: also the state of an item to which it was done


class Domain(msgspec.Struct, frozen=True, kw_only=True):
    """A collection of items, each with a person, a label, a number, a date and a state. Words as in prose."""

    noun: str
    person: str
    label: str
    values: tuple[str, ...]  # of the label
    number: str
    date: str
    progress: str  # the field that holds the state
    initial: str  # the state of an item to which nothing was done
    verbs: tuple[Verb, ...]
    distractors: tuple[str, ...]  # fields that no task asks for

    @property
    def nouns(self) -> str:
        return plural(self.noun)


def plural(noun: str) -> str:
    """
    >>> [plural(noun) for noun in ("ticket", "warranty", "survey", "price list", "mailbox", "crash", "diagnosis")]
    ['tickets', 'warranties', 'surveys', 'price lists', 'mailboxes', 'crashes', 'diagnoses']
    """
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{noun[:-1]}ies"
    if noun.endswith("sis"):
        return f"{noun[:-2]}es"
    return f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s"


def draw_domain(pool: Pool, rng: Random, besides: Domain | None = None) -> Domain:
    """A domain of one theme; its nouns are not those of `besides`."""
    return _domain(_theme(rng.choice(THEMES)), pool, rng, besides=besides)


def draw_directory(pool: Pool, rng: Random) -> Domain:
    """The domain of an app that knows who is in which team."""
    return _domain(_theme(_DIRECTORY), pool, rng, more=_theme(_MORE_DIRECTORY))


def with_other_state(domain: Domain, rng: Random) -> Domain:
    """The domain, with a name for the field of the state that its makers did not choose."""
    while (other := _progress("train", rng)) in (domain.progress, domain.label, domain.number):
        pass
    return msgspec.structs.replace(domain, progress=other)


def _domain(
    theme: dict[str, str],
    pool: Pool,
    rng: Random,
    *,
    besides: Domain | None = None,
    more: dict[str, str] | None = None,
) -> Domain:
    """`more` has words for training alone."""

    def words(kind: str, separator: str = ",") -> tuple[str, ...]:
        return part(theme[kind], pool, separator, (more or {}).get(kind, ""))

    nouns = [noun for noun in words("nouns") if besides is None or noun != besides.noun]
    label, _, values = rng.choice(words("labels", ";")).partition(" = ")
    names = tuple(projects(pool, _LABELS, rng))
    verbs = rng.sample(words("verbs"), min(3, len(words("verbs"))))
    distractors = part(DISTRACTORS, pool, more=MORE_DISTRACTORS)
    return Domain(
        noun=rng.choice(nouns),
        person=rng.choice(words("persons")),
        label=label,
        values=names if values == "*" else tuple(values.split(", ")),
        number=rng.choice(words("numbers")),
        date=rng.choice(words("dates")),
        progress=_progress(pool, rng),
        initial=rng.choice(part(_INITIAL, pool, more=_MORE_INITIAL)),
        verbs=tuple(Verb(*verb.split("/")) for verb in verbs),
        distractors=tuple(rng.sample(distractors, rng.randint(0, 2))),
    )


def _progress(pool: Pool, rng: Random) -> str:
    """In training one of hundreds of names: which field has the state is to be read from its values."""
    if pool == "train" and rng.random() < _COMPOSED:
        return f"{rng.choice(split(_QUALIFIERS))} {rng.choice(split(_STAGES))}"
    return rng.choice(part(_PROGRESS, pool))


@cache
def _theme(text: str) -> dict[str, str]:
    """The lists of a theme; those of several lines are joined."""
    lists: dict[str, list[str]] = {}
    for line in text.strip().splitlines():
        kind, _, words = line.strip().partition(": ")
        lists.setdefault(kind, []).append(words)
    return {kind: ("; " if kind == "labels" else ", ").join(words) for kind, words in lists.items()}
