"""What an app is about: its nouns, fields and verbs, drawn from one theme of a pool of words."""

from functools import cache
from random import Random

import msgspec

from trainer.environments.gym.person_names import projects
from trainer.environments.gym.pools import Pool, part
from trainer.environments.gym.word_lists import DISTRACTORS, THEMES

_LABELS = 5  # values of a label that are names of projects
_PROGRESS = "state, progress, current state, work state, handling state"
_INITIAL = "pending, new, untouched, raw, unprocessed"
_DIRECTORY = """
    nouns: member, employee, contact, colleague, teammate
    persons: name, full name, known as, display name, nickname
    labels: team = *; department = *; division = *; crew = *; guild = *
    numbers: desk number, extension, staff number, badge number, seat
    dates: joined on, hired on, start day, joining date, first day
    verbs: invite/invited, promote/promoted, notify/notified, retire/retired, greet/greeted
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
    theme = _theme(rng.choice(THEMES))
    return _domain(theme, pool, rng, besides)


def draw_directory(pool: Pool, rng: Random) -> Domain:
    """The domain of an app that knows who is in which team."""
    return _domain(_theme(_DIRECTORY), pool, rng, None)


def with_other_state(domain: Domain, rng: Random) -> Domain:
    """The domain, with a name for the field of the state that its makers did not choose."""
    others = [words for words in part(_PROGRESS, "train") if words != domain.progress]
    return msgspec.structs.replace(domain, progress=rng.choice(others))


def _domain(theme: dict[str, str], pool: Pool, rng: Random, besides: Domain | None) -> Domain:
    nouns = [noun for noun in part(theme["nouns"], pool) if besides is None or noun != besides.noun]
    label, _, values = rng.choice(_kinds(theme["labels"], pool)).partition(" = ")
    names = tuple(projects(pool, _LABELS, rng))
    verbs = rng.sample(part(theme["verbs"], pool), min(3, len(part(theme["verbs"], pool))))
    return Domain(
        noun=rng.choice(nouns),
        person=rng.choice(part(theme["persons"], pool)),
        label=label,
        values=names if values == "*" else tuple(values.split(", ")),
        number=rng.choice(part(theme["numbers"], pool)),
        date=rng.choice(part(theme["dates"], pool)),
        progress=rng.choice(part(_PROGRESS, pool)),
        initial=rng.choice(part(_INITIAL, pool)),
        verbs=tuple(Verb(*verb.split("/")) for verb in verbs),
        distractors=tuple(rng.sample(part(DISTRACTORS, pool), rng.randint(0, 2))),
    )


def _kinds(labels: str, pool: Pool) -> tuple[str, ...]:
    return part(labels, pool, ";")


@cache
def _theme(text: str) -> dict[str, str]:
    """The lists of a theme; those of several lines are joined."""
    lists: dict[str, list[str]] = {}
    for line in text.strip().splitlines():
        kind, _, words = line.strip().partition(": ")
        lists.setdefault(kind, []).append(words)
    return {kind: ("; " if kind == "labels" else ", ").join(words) for kind, words in lists.items()}
