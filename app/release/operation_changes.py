"""Compares two versions of an API by operation. Pure."""

from collections.abc import Mapping

import msgspec

from app.apis.presentation import OperationTraits


class OperationChanges(msgspec.Struct, frozen=True):
    """Operations by name. All are empty if the difference is invisible to an agent."""

    added: list[str]
    removed: list[str]
    changed: list[str]
    renamed: dict[str, str] = {}  #: name before -> now


def compare(old: Mapping[str, OperationTraits], new: Mapping[str, OperationTraits]) -> OperationChanges:
    """An operation under another name is known by its operationId, or by method and path."""
    gone, come = sorted(old.keys() - new.keys()), sorted(new.keys() - old.keys())
    now = {new[name].place: name for name in come} | {new[name].key: name for name in come}
    renamed = {
        name: after for name in gone if (after := now.get(old[name].key) or now.get(old[name].place)) is not None
    }
    return OperationChanges(
        added=sorted({*come} - {*renamed.values()}),
        removed=[name for name in gone if name not in renamed],
        changed=sorted(name for name in new.keys() & old.keys() if new[name].fingerprint != old[name].fingerprint),
        renamed=renamed,
    )
