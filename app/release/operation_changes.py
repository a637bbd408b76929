"""Compares two versions of an API by operation. Pure."""

from collections.abc import Mapping

import msgspec

from app.apis.app_view import OperationTraits


class OperationChanges(msgspec.Struct, frozen=True):
    """Operations by name. All are empty if the difference is invisible to an agent."""

    added: list[str]
    removed: list[str]
    changed: list[str]


def compare(old: Mapping[str, OperationTraits], new: Mapping[str, OperationTraits]) -> OperationChanges:
    return OperationChanges(
        added=sorted(new.keys() - old.keys()),
        removed=sorted(old.keys() - new.keys()),
        changed=sorted(name for name in new.keys() & old.keys() if new[name].fingerprint != old[name].fingerprint),
    )
