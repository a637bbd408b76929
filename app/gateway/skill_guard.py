"""Holds offered skills to their manifests while they run: nothing else passes the gateway."""

import ast
from collections.abc import Hashable, Mapping

import msgspec

from app.apis.catalog import Operation
from app.errors import HostError
from app.gateway.skill_manifest import CONSTANT, PARAMETER, RESULT, SkillManifest
from app.gateway.value_origins import ValueOrigins
from app.records import Json


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

    `key` identifies one call of a skill: only what that call itself was given and has read counts.
    """

    def __init__(self, skills: Mapping[str, GuardedSkill]) -> None:
        self._skills = skills
        self._seen: dict[Hashable, ValueOrigins] = {}
        self._refused: list[SkillRefusal] = []

    def check(
        self, key: Hashable, skill: str, given: Json, operation: Operation, arguments: Mapping[str, Json]
    ) -> None:
        """Raises HostError, a PermissionError, for a call outside of the manifest."""
        guarded = self._skills.get(skill)
        if guarded is None:
            return
        reason = refusal(guarded.manifest, operation, arguments, self._origins(key, guarded, given))
        if reason is not None:
            self._refused.append(SkillRefusal(skill, operation.api, reason))
            raise HostError("PermissionError", f"the skill {skill} may not do this: {reason}")

    def returned(self, key: Hashable, api: str, result: Json) -> None:
        """Record what a checked call returned."""
        if key in self._seen:
            self._seen[key].add(RESULT + api, result)

    def leave(self, key: Hashable) -> None:
        """The call of the skill has ended."""
        self._seen.pop(key, None)

    def take_refusals(self) -> list[SkillRefusal]:
        """The refusals since the last time."""
        taken, self._refused = self._refused, []
        return taken

    def _origins(self, key: Hashable, guarded: GuardedSkill, given: Json) -> ValueOrigins:
        seen = self._seen.get(key)
        if seen is None:
            seen = self._seen[key] = ValueOrigins()
            seen.add(PARAMETER, given)
            seen.add(CONSTANT, list(guarded.constants))
        return seen


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
        for trace in seen.trace(value):
            if trace.strict and not trace.origins & allowed:
                found = " or ".join(sorted(trace.origins))
                return f"the argument {name} of {operation.api} came from {found}, unlike when it was kept"
    return None


def constants_of(source: str) -> tuple[Json, ...]:
    """The texts and numbers that a source contains."""
    values = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    return tuple(value for value in values if isinstance(value, (str, int, float)) and not isinstance(value, bool))
