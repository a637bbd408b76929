"""Holds offered skills to their manifests while they run: nothing else passes the gateway."""

import ast
from collections.abc import Mapping, Set

import msgspec

from app.apis.catalog import Operation
from app.base.errors import HostError
from app.base.untrusted import compiled
from app.base.values import Call, Json
from app.gateway.skill_manifest import CONSTANT, NUMBER, PARAMETER, RESULT, SkillManifest
from app.gateway.small_values import Place
from app.gateway.value_origins import Trace, ValueOrigins
from app.sandbox.protocol import EnteredSkill

_PASSED_ON = ("link", "location", "etag", "operation-location", "x-")


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
    if not trace.is_permitted(allowed - {NUMBER}):
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
