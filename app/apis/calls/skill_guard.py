"""Holds offered skills to their manifests while they run: nothing else passes the gateway.

A manifest says which operations a skill may call, and where each of their arguments may come from. Values are
traced back to what the skill was given and to what it read; what is unexplained is counted within a budget of
bits.
"""

import ast
import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from itertools import groupby
from typing import Final, NamedTuple

import msgspec

from app.apis.catalog import Catalog, Operation
from app.apis.presentation import OperationTraits
from app.base.errors import HostError
from app.base.secrets import MASK, SecretValues
from app.base.untrusted import compiled
from app.base.values import Call, Json
from app.sandbox.protocol import EnteredSkill

PARAMETER, CONSTANT, NUMBER, COMPUTED = "parameter", "constant", "number", "computed"
RESULT = "result:"

SMALL = 10_000  # numbers below coincide by chance
_BITS = 64  # of one skill in one task
_BITS_OF_STEP = 6
_BITS_OF_LETTER = 5  # which is one of some thirty: of blanks, cases and empty values
_FLAGS = "TF"
_VALUES = 100_000  # that are put in order, of one answer
_NAME_CHARS = 100  # of a field, by which it is known

_SHORT = 4  # texts with fewer characters coincide by chance
_FEW = 8  # values of one argument, each of which says little: more of them spell something
_INDEXED_CHARS = 1 << 20
_INDEXED_VALUES = 100_000
_SEARCHED_CHARS = 20_000  # of one text
_SEARCH = 1 << 31  # characters compared, which takes about a second
_STEP = 250  # as many characters take as long as one comparison of Python
_VALUE = 10_000  # or as one value
_WORD = re.compile(r"\w+")
_BLANKS = re.compile(r"\s+")
_MARKS = re.compile(r"[^\w\s]+|\s{4,}")
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[t ]\d\d:\d\d[\d:.z+-]*)?")
_YEAR = re.compile(r"\d{1,4}")
_EMPTY, _SEEN = "e", "s"
_NOTHING: Final = frozenset[str]()

_PASSED_ON = ("link", "location", "etag", "operation-location", "x-")


class AllowedOperation(msgspec.Struct, frozen=True):
    """An operation of a manifest. None and "" permit anything: skills of earlier versions recorded no more."""

    method: str = ""  #: upper case; "" for a built-in operation too
    safe: bool = False
    arguments: dict[str, list[str]] | None = None  #: the origins of each argument, sorted

    def fits(self, operation: Operation | OperationTraits) -> bool:
        """Whether the operation still is what it was, and takes the same arguments."""
        if self.arguments is None or not self.is_same(operation):
            return self.is_same(operation)
        return set(operation.required) <= self.arguments.keys() <= set(operation.arguments)

    def is_same(self, operation: Operation | OperationTraits) -> bool:
        """Whether the operation still does the same, as far as its method shows."""
        return not self.method or (self.method, self.safe) == (operation.method, operation.safe)


class SkillManifest(msgspec.Struct, frozen=True):
    """All that a skill may do, by "app.operation"."""

    operations: dict[str, AllowedOperation]

    @classmethod
    def unrestricted(cls, apis: Iterable[str]) -> "SkillManifest":
        """Permits these operations with any arguments."""
        return cls({api: AllowedOperation() for api in sorted(apis)})

    def permits(self, operation: Operation) -> bool:
        """Whether the operation is in the manifest, and is still what it was."""
        allowed = self.operations.get(operation.api)
        return allowed is not None and allowed.is_same(operation)

    def not_in(self, catalog: Catalog) -> list[str]:
        """The operations that the catalog lacks, has as something else, or with other arguments."""
        return [api for api in self.operations if not self._has(catalog, api)]

    def _has(self, catalog: Catalog, api: str) -> bool:
        operation = catalog.find(api)
        return operation is not None and self.operations[api].fits(operation)

    def origins(self, api: str, argument: str) -> frozenset[str] | None:
        """The origins that the argument may have; None: any."""
        arguments = self.operations[api].arguments
        return None if arguments is None else frozenset(arguments.get(argument, ()))


def widenings(new: SkillManifest, old: SkillManifest) -> list[str]:
    """What the new manifest permits and the old one does not; empty if it is not wider."""
    return [reason for api, allowed in new.operations.items() for reason in _beyond(api, allowed, old)]


def _beyond(api: str, new: AllowedOperation, manifest: SkillManifest) -> Iterator[str]:
    old = manifest.operations.get(api)
    if old is None:
        yield f"it calls {api}"
        return
    if old.arguments is None:
        return
    if new.arguments is None:
        yield f"it calls {api} with any arguments"
        return
    if (old.method, old.safe) != (new.method, new.safe):
        yield f"it calls {api} as another operation than before"
    for name, origins in new.arguments.items():
        known = set(old.arguments.get(name, ()))
        known |= {NUMBER} if CONSTANT in known else set()  # a counter starts with a constant
        if more := sorted(set(origins) - known):
            yield f"it gives {api} the argument {name} from {', '.join(more)}"


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
        masked: object = self._secrets.mask_value(int(number))
        if masked == MASK:
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


class Trace(NamedTuple):
    """The possible origins of a part of an argument. `also` are those that a small number coincides with.

    A number, or a few marks, may pass whatever they are, see `small_values`.
    """

    origins: frozenset[str]
    also: frozenset[str] = frozenset()
    number: float | None = None
    marks: str = ""


class _SearchSpentError(Exception):
    """Too much has been searched."""


class ValueOrigins:
    """The values that a skill has met in a rollout, by origin."""

    def __init__(self) -> None:
        self._whole: defaultdict[str, set[str]] = defaultdict(set)  # text -> origins
        self._words: defaultdict[str, set[str]] = defaultdict(set)
        self._numbers: defaultdict[float, set[str]] = defaultdict(set)
        self._texts: defaultdict[str, list[str]] = defaultdict(list)  # origin -> its texts
        self._joined: dict[str, str] = {}
        self._lengths: set[int] = set()  # of the texts
        self._oversized: set[str] = set()  # origins of which texts were not indexed
        self._uncounted: set[str] = set()  # origins of which numbers were not
        self._blanks: set[str] = set()  # as `_blanks_in` finds them
        self._spelled: set[str] = set()  # words, with their case
        self._chars_left = _INDEXED_CHARS
        self._values_left = _INDEXED_VALUES
        self._search_left = _SEARCH
        self.small = SmallValues()

    def add(self, origin: str, value: Json) -> None:
        """Record a value that came from `origin`."""
        self._joined.pop(origin, None)
        if origin != CONSTANT:
            self.small.read(origin, value)
        for leaf in _leaves(value):
            self._values_left -= 1
            if self._values_left < 0:
                self._oversized.add(origin)
                self._uncounted.add(origin)
                return
            if not isinstance(leaf, str):
                self._numbers[_float(str(leaf))].add(origin)
            elif len(leaf) > self._chars_left:
                self._oversized.add(origin)
            else:
                self._chars_left -= len(leaf)
                self._blanks.update(_blanks_in(leaf), (each for _, each in _margins_of(leaf)))
                self._spelled.update(_WORD.findall(leaf))
                self._add_text(origin, leaf.casefold().strip())

    def trace(self, value: Json) -> list[Trace]:
        """One entry for each part of an argument: a number, a text, or a word of a text that was put together."""
        try:
            found = [each for leaf in _leaves(value) for each in self._trace(leaf)]
        except _SearchSpentError:
            return list(self._all_read())
        if len(self.form_of(value)) > _FEW:
            found.append(Trace(frozenset({COMPUTED})))
        return found

    def form_of(self, value: Json) -> str:
        """What a value could tell beside its words and numbers: a letter for each flag, null and empty value, the
        blanks that no value has that was seen, and where words change from the case in which they were seen.
        """
        texts = [each for each in _leaves(value) if isinstance(each, str)]
        found = [flags_of(value)]
        found += (margins for margins, _ in groupby(map(self._margins_of, texts)))
        for text in texts:
            found += [] if text else [_EMPTY]
            found += (each for each in _blanks_in(text) if each not in self._blanks)
            found += (case for case, _ in groupby(map(self._case_of, _WORD.findall(text))))
        return "".join(found)

    def is_given(self, number: float) -> bool:
        """Whether the skill was given a number, or has it in its source."""
        return not self._numbers.get(number, _NOTHING).isdisjoint({PARAMETER, CONSTANT})

    def _margins_of(self, text: str) -> str:
        """The blanks before and after a text, with a letter in place of those that were seen."""
        return "".join(place + (_SEEN if each in self._blanks else each) for place, each in _margins_of(text))

    def _case_of(self, word: str) -> str:
        """Nothing for a word as it was seen, a letter for a case that all words can have, or else the word."""
        if word in self._spelled or word.lower() == word.upper():
            return ""
        cases = {word.lower(): "l", word.upper(): "u", word.capitalize(): "c"}
        return cases.get(word, word)

    def _add_text(self, origin: str, text: str) -> None:
        self._whole[text].add(origin)
        self._lengths.add(len(text))
        self._texts[origin].append(text)
        for word in _WORD.findall(text):
            self._words[word].add(origin)
        for number in _numbers_in(text, whole=origin.startswith(RESULT)):
            self._numbers[_float(number)].add(origin)

    def _trace(self, leaf: str | float) -> Iterator[Trace]:
        self._spend(_VALUE)
        if not isinstance(leaf, str):
            yield from self._trace_number(_float(str(leaf)))
            return
        text = leaf.casefold().strip()
        if not text:
            return
        if whole := self._containing(text):
            coincidence = len(text) < _SHORT or _DATE.fullmatch(text)
            given = whole & {PARAMETER, CONSTANT}
            yield Trace(frozenset(whole | {COMPUTED} if coincidence and not given else whole))
        elif len(text) > _SEARCHED_CHARS:
            yield from self._all_read()
        else:
            yield from self._trace_parts(text)

    def _all_read(self) -> Iterator[Trace]:
        """What is too large to be searched may have come from anything that was read."""
        return _each({*self._texts, *self._oversized, *self._uncounted, COMPUTED} - {PARAMETER, CONSTANT})

    def _trace_number(self, number: float) -> Iterator[Trace]:
        """A small number coincides with some result too often to be traced to one."""
        found = frozenset(self._numbers.get(number, _NOTHING))
        if number.is_integer() and abs(number) < SMALL:
            given = found & {PARAMETER, CONSTANT}
            unexplained = {NUMBER} if found > given or not given else set()
            yield Trace(given | unexplained, found | {COMPUTED}, number)
        elif found:
            yield Trace(found, number=number)
        else:
            number_of = number if number.is_integer() else None
            yield from (each._replace(number=number_of) for each in _each({COMPUTED, *self._uncounted}))

    def _containing(self, text: str) -> set[str]:
        """The origins of which a text equals this one, or has it as a part."""
        found = set(self._whole.get(text, ()))
        if len(text) >= _SHORT:
            found |= {origin for origin in self._texts if self._holds(origin, text)}
        return found

    def _trace_parts(self, text: str) -> Iterator[Trace]:
        """A text that was put together: the results in it, and its other words."""
        rest = text
        for part in self._results_in(text):
            if part in rest:
                rest = rest.replace(part, " ")
                yield Trace(frozenset(self._whole[part]))
        for word in set(_WORD.findall(rest)):
            found = self._words.get(word, set())
            coincidence = len(word) < _SHORT or _YEAR.fullmatch(word)
            if not found:
                yield from _each({COMPUTED, *self._oversized})
            elif coincidence and not found & {PARAMETER, CONSTANT}:
                yield Trace(frozenset({COMPUTED, *found}))
            else:
                yield Trace(frozenset(found))
        yield from self._trace_marks(rest)

    def _trace_marks(self, text: str) -> Iterator[Trace]:
        """Punctuation and blanks, unless the values that were seen contain them."""
        marks = _MARKS.findall(text)
        seen = set()
        if _WORD.search(text):
            seen = {each for each in set(marks) if any(self._holds(origin, each) for origin in self._texts)}
        if unseen := [each for each in marks if each not in seen]:
            together = "".join(unseen)
            yield Trace(frozenset({COMPUTED}), marks=together if len(together) < _SHORT else "")

    def _results_in(self, text: str) -> list[str]:
        """The longest first; not those that the skill was given as well."""
        steps = len(text) * len(self._lengths)
        self._spend(min(len(self._whole), steps) * (_STEP + len(text)))
        if len(self._whole) <= steps:
            candidates = {known for known in self._whole if known in text}
        else:
            pieces = (text[at : at + size] for size in self._lengths for at in range(len(text) - size + 1))
            candidates = {piece for piece in pieces if piece in self._whole}
        parts = [each for each in candidates if len(each) >= _SHORT and not _DATE.fullmatch(each)]
        unknown = [each for each in parts if not (self._holds(PARAMETER, each) or self._holds(CONSTANT, each))]
        return sorted(unknown, key=len, reverse=True)

    def _holds(self, origin: str, text: str) -> bool:
        """Whether a text of this origin contains this one."""
        if origin not in self._joined:
            self._joined[origin] = "\0".join(self._texts.get(origin, ()))
        self._spend(_STEP + len(self._joined[origin]))
        return text in self._joined[origin]

    def _spend(self, chars: int) -> None:
        self._search_left -= chars
        if self._search_left < 0:
            raise _SearchSpentError


def _each(origins: Iterable[str]) -> Iterator[Trace]:
    """A part that may have come from all of these."""
    return (Trace(frozenset({origin})) for origin in sorted(origins))


def _margins_of(text: str) -> list[tuple[str, str]]:
    """The blanks at the start of a text, and at its end."""
    start = text[: len(text) - len(text.lstrip())]
    end = text[len(text.rstrip()) :] if len(start) < len(text) else ""
    return [(place, each) for place, each in (("<", start), (">", end)) if each]


def _blanks_in(text: str) -> list[str]:
    """All but single spaces between words."""
    return [each for each in _BLANKS.findall(text.strip()) if each != " "]


def flags_of(value: Json) -> str:
    """One letter for each of the values in a value that is a flag, null, or an empty list or mapping."""
    found, waiting = [], [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, bool) or each in (None, [], {}):
            found.append(str(each)[:1])
        elif isinstance(each, (list, tuple, dict)):
            waiting += each.values() if isinstance(each, dict) else each
    return "".join(found)


def _leaves(value: Json) -> Iterator[str | float]:
    """The texts and numbers of a value, in order, the names in it included; no booleans."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            waiting += reversed([*each.values(), *each])
        elif isinstance(each, (list, tuple)):
            waiting += reversed(each)
        elif isinstance(each, str) or (isinstance(each, (int, float)) and not isinstance(each, bool)):
            yield each


def _numbers_in(text: str, *, whole: bool) -> list[str]:
    """The numbers in a text, or only the text itself: the digits of tokens and dates would explain any number."""
    if whole:
        return [text] if _NUMBER.fullmatch(text) else []
    return _NUMBER.findall(text)


def _float(number: str) -> float:
    return float(number.replace(",", ""))


class GuardedSkill(msgspec.Struct, frozen=True):
    """A skill of a rollout, with the constants of its source, which it may have the right to pass on."""

    manifest: SkillManifest
    constants: tuple[Json, ...]

    @classmethod
    def of(cls, manifest: SkillManifest, source: str) -> "GuardedSkill":
        return cls(manifest, constants_of(source))


class SkillRefusal(msgspec.Struct, frozen=True):
    """A call that a skill attempted outside of its manifest."""

    skill: str
    api: str
    reason: str


class SkillGuard:
    """Checks the calls of a rollout's skills. A skill without a manifest is not restricted.

    A skill may remember what it met from one call to the next, so everything that it was given and has read in the
    rollout counts.
    """

    def __init__(self, skills: Mapping[str, GuardedSkill]) -> None:
        self._skills = skills
        self._seen: dict[str, ValueOrigins] = {}
        self._entered: EnteredSkill | None = None
        self._refused: dict[SkillRefusal, None] = {}
        self._reported: set[SkillRefusal] = set()

    def check(self, skill: EnteredSkill, operation: Operation, arguments: Mapping[str, Json]) -> None:
        """Raises HostError, a PermissionError, for a call outside of the manifest."""
        guarded = self._skills.get(skill.name)
        if guarded is None:
            return
        reason = refusal(guarded.manifest, operation, arguments, self._origins(skill, guarded))
        if reason is not None:
            self._refused[SkillRefusal(skill.name, operation.api, reason)] = None
            raise HostError("PermissionError", f"the skill {skill.name} may not do this: {reason}")

    def returned(self, skill: EnteredSkill, call: Call) -> None:
        """Record what a checked call returned or raised."""
        if skill.name in self._seen:
            for value in (call.error, *read_values(call)):
                self._seen[skill.name].add(RESULT + call.api, value)

    def take_refusals(self) -> list[SkillRefusal]:
        """The refusals since the last time; equal ones once per rollout."""
        new = [each for each in self._refused if each not in self._reported]
        self._reported.update(new)
        self._refused.clear()
        return new

    def _origins(self, skill: EnteredSkill, guarded: GuardedSkill) -> ValueOrigins:
        seen = self._seen.get(skill.name)
        if seen is None:
            seen = self._seen[skill.name] = ValueOrigins()
            seen.add(CONSTANT, list(guarded.constants))
        if self._entered is not skill:
            self._entered = skill
            seen.add(PARAMETER, skill.arguments)
        return seen


def read_values(call: Call) -> list[Json]:
    """What code can read of an answer and pass on: not the headers about the message itself, such as its date."""
    if call.response is None:
        return [call.result]
    headers = {name: text for name, text in call.response.headers.items() if name.startswith(_PASSED_ON)}
    return [call.result, headers, call.response.body]


def refusal(
    manifest: SkillManifest, operation: Operation, arguments: Mapping[str, Json], seen: ValueOrigins
) -> str | None:
    """Why a skill may not make a call; None if it may. Look-ups in the documents are always permitted."""
    if not operation.method and operation.app == "api_docs":
        return None
    if not manifest.permits(operation):
        return f"{operation.api} is not among the operations that it was kept for"
    for name, value in arguments.items():
        allowed = manifest.origins(operation.api, name)
        if allowed is None:
            continue
        bits = seen.small.bits_of_form(place := Place(operation.api, name), seen.form_of(value))
        for trace in seen.trace(value):
            cost = _cost(trace, place, allowed, seen)
            if cost is None:
                found = " or ".join(sorted(trace.origins))
                return f"the argument {name} of {operation.api} came from {found}, unlike when it was kept"
            bits += cost
        if not seen.small.spend(bits):
            return f"the argument {name} of {operation.api} tells too much by values that nothing explains"
    return None


def _cost(trace: Trace, place: Place, allowed: Set[str], seen: ValueOrigins) -> int | None:
    """The bits that a part of an argument costs; None if it may not be passed."""
    small, number = seen.small, trace.number
    cost: int | None = 0
    if not (trace.origins | trace.also) & (allowed - {NUMBER}):
        if number is not None:
            cost = small.bits_of_number(place, number, allowed, seen.is_given)
        elif trace.marks:
            return small.bits_of_marks(trace.marks)
        else:
            return None
    if cost is not None and number is not None:
        small.passed(place, number)
    return cost


def constants_of(source: str) -> tuple[Json, ...]:
    """The texts and numbers that a source contains; none of one that does not compile, and so never runs."""
    tree = compiled(source)
    values = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)) if tree else ()
    return tuple(value for value in values if isinstance(value, (str, int, float)) and not isinstance(value, bool))
