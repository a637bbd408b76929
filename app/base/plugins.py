"""Parts that can be added without a change here: entry points by group and name, or any object by
"module:attribute".

A package offers a part by registering it in its own `pyproject.toml`; the built-in parts are registered the same
way:

    [project.entry-points."sage.rewards"]
    brevity = "my_package.rewards:brevity"

Groups, and where their parts are specified:

    sage.commands       a click command
    sage.environments   trainer.environment
    sage.rewards        trainer.sage.reward
    sage.retrieval      app.skills.search
    sage.skill_checks   app.skills.checks; all registered checks are used
    sage.api_protocols  app.apis.documents.protocols; the one that recognizes a document is used
    sage.experts        trainer.rollouts.episode
    sage.judges         app.base.judge

Listing and finding names imports none of the parts.
"""

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any

from app.base.errors import InvalidError


def names(group: str) -> list[str]:
    """The names registered in a group, sorted. Nothing is imported."""
    return sorted(entry_points(group=group).names)


def find(group: str, name: str) -> EntryPoint:
    """The registration of a name, or a reference to the object that `module:attribute` names. Nothing is imported.

    Raises InvalidError for an unknown name, listing the known ones.
    """
    registered = next(iter(entry_points(group=group, name=name)), None)
    if registered is not None:
        return registered
    if ":" in name:
        return EntryPoint(name, name, group)
    raise InvalidError(
        f"{group} has no {name!r}, it has {', '.join(names(group)) or 'none'}: name one of these, or register "
        "yours as an entry point of that group"
    )


def load(group: str, name: str) -> Any:
    """The part registered under a name, or the object that `module:attribute` names.

    Raises InvalidError for an unknown name, listing the known ones, and for a part that cannot be imported.
    """
    found = find(group, name)
    try:
        return found.load()
    except (ImportError, AttributeError) as error:
        raise InvalidError(f"the part {name!r} of {group} cannot be imported: {error}") from error


@cache
def load_all(group: str) -> MappingProxyType[str, Any]:
    """Every part registered in a group, in the order of the names. Read once per process. Raises InvalidError."""
    return MappingProxyType({name: load(group, name) for name in names(group)})
