"""The records of one kind that an app keeps: what they and their fields are called, and what they lack."""

from collections.abc import Mapping
from functools import cached_property
from random import Random
from typing import Literal, NamedTuple, TypeAlias, get_args

import msgspec

from trainer.worlds.generated.crud_words import QUALIFIERS, SPARE_FIELDS, TAKEN, WORDS
from trainer.worlds.generated.domains import Domain, Verb
from trainer.worlds.generated.spelling import Style, spell

RecordField: TypeAlias = Literal["title", "link", "person", "label", "number", "date", "state"]

RECORD_FIELDS: tuple[RecordField, ...] = get_args(RecordField)
_DESCRIBED, _CALLED = 0.4, 0.15  # of kinds: with a qualifier in the app's description, and in operations' names
_BY_LINK_ALONE = 0.35  # of kinds with links
_FEW = 8  # fields that no task asks for


class Nouns(NamedTuple):
    """What records are called."""

    one: str
    many: str


class Collection(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Records of one kind.

    `has_link`: they have an address on the web. `has_flags`: a boolean for each state, instead of one field.
    """

    domain: Domain
    style: Style
    has_flags: bool
    words: dict[str, str]
    has_link: bool
    required: Literal["title", "link"]  # of a new one
    spare: tuple[str, ...]  # fields that can be written, and that no task asks for
    hidden: RecordField  # that list rows lack, if they are partial
    described_by: str  # before the noun in the description of the app, such as "page", or nothing
    called_by: str  # before the noun in the names of operations

    @cached_property
    def fields(self) -> dict[RecordField, str]:
        """The wire names."""
        lacking = {"link": not self.has_link, "state": self.has_flags}
        return {field: spell(words, self.style) for field, words in self.prose.items() if not lacking.get(field)}

    @property
    def prose(self) -> dict[RecordField, str]:
        """The names of fields in words."""
        domain = self.domain
        return {
            "title": self.words["title"],
            "link": self.words["link"],
            "person": domain.person,
            "label": domain.label,
            "number": domain.number,
            "date": domain.date,
            "state": "flag" if self.has_flags else domain.progress,
        }

    @property
    def is_wide(self) -> bool:
        return len(self.spare) > _FEW

    @property
    def distractors(self) -> list[str]:
        """The wire names of fields that rows show, and that no task asks for."""
        return [spell(words, self.style) for words in self.domain.distractors]

    @property
    def writable_extras(self) -> list[str]:
        return [*self.distractors, *(spell(words, self.style) for words in self.spare)]

    @property
    def verbs(self) -> tuple[Verb, ...]:
        """Without those that mean what every collection can do."""
        return verbs_of(self.domain)

    @property
    def states(self) -> list[str]:
        return [self.domain.initial, *(verb.done for verb in self.verbs)]

    @property
    def described(self) -> "Nouns":
        return self._qualified(self.described_by)

    @property
    def called(self) -> "Nouns":
        return self._qualified(self.called_by)

    def _qualified(self, qualifier: str) -> "Nouns":
        return Nouns(*(f"{qualifier} {noun}".strip() for noun in (self.domain.noun, self.domain.nouns)))

    @property
    def flags(self) -> tuple[str, ...]:
        """The wire names of booleans, each a state."""
        return tuple(verb.done for verb in self.verbs) if self.has_flags else ()

    @property
    def asked_states(self) -> list[str]:
        """Those that a task may ask for: no flag says that nothing was done."""
        return [*self.flags] or self.states

    @property
    def resource(self) -> str:
        return spell(self.domain.nouns, self.style)

    @property
    def singular(self) -> str:
        return spell(self.domain.noun, self.style)


def verbs_of(domain: Domain) -> tuple[Verb, ...]:
    return tuple(verb for verb in domain.verbs if verb.base not in TAKEN)


def words_of(kind: str, collection: Collection) -> list[str]:
    """The names that the makers of the API could have chosen for a field, and that none of its fields has."""
    taken = {*collection.prose.values(), *collection.domain.distractors}
    return [words for words in dict.fromkeys(WORDS[kind]) if words not in taken]


def draw_collection(
    domain: Domain, words: Mapping[str, str], style: Style, rng: Random, *, has_flags: bool
) -> Collection:
    hidden: tuple[RecordField, ...] = ("person", "label", "number", "date", *(() if has_flags else ("state",)))
    return Collection(
        domain=domain,
        style=style,
        has_flags=has_flags,
        words={kind: words[kind] for kind in ("title", "link")},
        has_link=(has_link := rng.random() < 0.6),
        required="link" if has_link and rng.random() < _BY_LINK_ALONE else "title",
        hidden=rng.choice(hidden),
        spare=tuple(rng.sample(SPARE_FIELDS, rng.choice((0, 1, 3, _FEW, 40)))),
        described_by=rng.choice(QUALIFIERS) if rng.random() < _DESCRIBED else "",
        called_by=rng.choice(QUALIFIERS) if rng.random() < _CALLED else "",
    )


def can_have_flags(domain: Domain) -> bool:
    """Whether each state is one word, which is a flag's name in most styles, too."""
    return not any(" " in verb.done for verb in verbs_of(domain))


def field_names(domain: Domain) -> tuple[str, ...]:
    """The names of its fields."""
    return (domain.person, domain.label, domain.number, domain.date, domain.progress, *domain.distractors)
