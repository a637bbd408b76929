"""Counts what a skill passes to APIs unexplained: whole numbers, marks and forms, within a budget of bits. Pure.

A small number coincides with what was read too often to be traced to it, so where a manifest has the origin
`number` numbers pass: those that count on, or follow in the order in which they were read, at no cost; others for
the bits that they could tell. Once a skill has met a secret, only counters and numbers that it has read pass, and
no marks.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Set
from typing import NamedTuple

from app.base.secrets import MASK, SecretValues
from app.base.values import Json
from app.gateway.skill_manifest import CONSTANT, NUMBER

SMALL = 10_000  # numbers below coincide by chance
_BITS = 64  # of one skill in one task
_BITS_OF_STEP = 6
_BITS_OF_LETTER = 5  # which is one of some thirty: of blanks, cases and empty values
_FLAGS = "TF"
_VALUES = 100_000  # that are put in order, of one answer
_NAME_CHARS = 100  # of a field, by which it is known


class Place(NamedTuple):
    """An argument of an operation."""

    api: str
    argument: str


class SmallValues:
    """What one skill has passed unexplained so far in a rollout, and what may follow."""

    def __init__(self) -> None:
        self._left = _BITS
        self._secrets = SecretValues()
        self._order: dict[float, tuple[tuple[str, str], int]] = {}  # number -> field, position in it
        self._in_field: Counter[tuple[str, str]] = Counter()
        self._last: dict[Place, float] = {}
        self._steps: dict[Place, float] = {}
        self._forms: dict[Place, bytes] = {}  # their hashes

    def read(self, origin: str, value: Json) -> None:
        """Record an answer, or what the skill was given."""
        self._secrets.note(origin, {}, value)
        for name, number in _numbers(value):
            if number not in self._order and abs(number) < SMALL:
                field = origin, name[:_NAME_CHARS]
                self._order[number] = field, self._in_field[field]
                self._in_field[field] += 1

    def passed(self, place: Place, number: float) -> None:
        """Record a number that may be passed."""
        if place in self._last:
            self._steps[place] = number - self._last[place]
        self._last[place] = number

    def bits_of_number(
        self, place: Place, number: float, allowed: Set[str], is_given: Callable[[float], bool]
    ) -> int | None:
        """What passing a number costs; None if it may not be passed. `is_given` knows the numbers that the skill
        was called with, or has in its source.
        """
        if self._is_secret(int(number)):
            return None
        last = self._last.get(place)
        if last is not None and allowed & {CONSTANT, NUMBER}:
            if (step := number - last) in (0, 1, self._steps.get(place)):
                return 0
            if is_given(step):
                return _BITS_OF_STEP
        if NUMBER not in allowed:
            return None
        bits = int(abs(number)).bit_length() + 1
        if (found := self._order.get(number)) is not None:
            return min(bits, self._bits_of_choice(found, last))
        if is_given(number):
            return min(bits, _BITS_OF_STEP)
        return None if self._secrets.known else bits

    def bits_of_marks(self, marks: str) -> int | None:
        """The same for marks that no value contains."""
        return None if self._secrets.known else 8 * len(marks.encode("utf-8", "surrogatepass"))

    def bits_of_form(self, place: Place, form: str) -> int:
        """The same for an argument's form, see `ValueOrigins.form_of`. That of the last call costs nothing."""
        digest = hashlib.sha256(form.encode("utf-8", "surrogatepass")).digest()
        known, self._forms[place] = self._forms.get(place), digest
        return 0 if digest == known else sum(1 if letter in _FLAGS else _BITS_OF_LETTER for letter in form)

    def spend(self, bits: int) -> bool:
        """Whether there are as many left."""
        self._left -= bits
        return self._left >= 0

    def _is_secret(self, number: int) -> bool:
        masked: object = self._secrets.mask_value(number)
        return masked == MASK

    def _bits_of_choice(self, found: tuple[tuple[str, str], int], last: float | None) -> int:
        field, position = found
        before = None if last is None else self._order.get(last)
        if before is None or before[0] != field:
            return len(self._order).bit_length()
        step = position - before[1]
        return 0 if step == 1 else 1 + abs(step).bit_length()


def _numbers(value: Json) -> Iterator[tuple[str, float]]:
    """Whole numbers, and texts that are one, with the names of their fields, in order."""
    waiting: list[tuple[str, Json]] = [("", value)]
    for _ in range(_VALUES):
        if not waiting:
            return
        name, each = waiting.pop()
        if isinstance(each, dict):
            waiting += reversed([*each.items()])
        elif isinstance(each, (list, tuple)):
            waiting += [(name, one) for one in reversed(each)]
        elif isinstance(each, int) and not isinstance(each, bool):
            yield name, each
        elif isinstance(each, str) and len(each) <= len(str(SMALL)) and each.isdecimal():
            yield name, int(each)
