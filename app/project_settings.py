"""The settings of one project. Every field has a default, and only what differs from it is stored."""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from app.approval import ApprovalRules
from app.errors import InvalidError
from app.records import Json
from app.webhook import Webhook

SkillPolicy: TypeAlias = Literal["open", "evidence", "review"]


class ProjectSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one project, changed by `PATCH /v1/projects/{name}`."""

    skills: SkillPolicy = "evidence"
    """How new skills come to be offered: `open` to every task at once, `evidence` as they prove themselves,
    `review` once a person approves them."""

    approvals: ApprovalRules = msgspec.field(default_factory=ApprovalRules)
    """Which API calls wait for a person."""

    webhook: Webhook | None = None
    """Where events are sent, if anywhere."""


def changed(settings: ProjectSettings, patch: Mapping[str, Json]) -> ProjectSettings:
    """Apply a JSON merge patch (RFC 7396): null restores a default. Raises InvalidError that names the field."""
    merged = _merge(msgspec.to_builtins(settings), patch)
    try:
        return msgspec.convert(merged, ProjectSettings)
    except msgspec.ValidationError as error:
        raise InvalidError(f"settings: {error}") from error


def stored(settings: ProjectSettings) -> dict[str, Any]:
    """The fields that differ from their defaults, as JSON."""
    default = msgspec.to_builtins(ProjectSettings())
    return {name: value for name, value in msgspec.to_builtins(settings).items() if value != default[name]}


def _merge(target: Json, patch: Mapping[str, Json]) -> dict[str, Any]:
    merged: dict[str, Any] = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merge(merged.get(name), value) if isinstance(value, Mapping) else value
    return merged
