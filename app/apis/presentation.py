"""How a project presents the operations of a document to its agent. Pure."""

from collections.abc import Mapping
from typing import Final

import msgspec

from app.apis.catalog import App, Operation
from app.apis.naming import Naming, keys_of, known_names, name_operations, place_of
from app.projects.settings import ApprovalMode


class OperationOverride(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a person set for one operation, in place of what its document says. The defaults change nothing."""

    place: str  # by which it is known if its operationId is another one now
    was: str  # its name when it was overridden, to call it by once it is gone
    name: str = ""
    description: str = ""
    hidden: bool = False
    safe: bool | None = None
    approval: ApprovalMode | None = None
    explore: bool | None = None

    @property
    def is_empty(self) -> bool:
        return self == OperationOverride(place=self.place, was=self.was)


class Presentation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Kept with an API, and part of a release as its document is. Operations by key, see `apis.naming`.

    APIs of earlier versions have none, and so keep the names of the document.
    """

    naming: Naming = "operation_id"
    names: dict[str, str] = {}  # of operations that would have other ones in this version of the document
    overrides: dict[str, OperationOverride] = {}


AS_WRITTEN: Final = Presentation()


def present(app: App, presentation: Presentation) -> App:
    """The app under the names that its agent knows, with what people have set for its operations."""
    if presentation == AS_WRITTEN:
        return app
    overrides = overrides_of(app, presentation)
    own = {key: each.name for key, each in overrides.items() if each.name}
    given = name_operations(app, presentation.naming, presentation.names)
    names = name_operations(app, presentation.naming, presentation.names | own) if own else given
    taken, shown, hidden = set(names), dict[str, Operation](), list[Operation]()
    keyed = zip(keys_of(list(app.operations.values())), app.operations.values(), given, names, strict=True)
    for key, operation, before, name in keyed:
        former = tuple(each for each in dict.fromkeys((operation.name, before)) if each not in taken)
        named = msgspec.structs.replace(operation, name=name, former_names=former)
        override = overrides.get(key)
        made = named if override is None else _overridden(named, override)
        if override is not None and override.hidden:
            hidden.append(made)
        else:
            shown[name] = made
    typed = presentation.naming == "readable"
    return msgspec.structs.replace(app, operations=shown, hidden=tuple(hidden), typed=typed)


def keep_names(app: App, presentation: Presentation, names: Mapping[str, str]) -> Presentation:
    """The presentation for a new version of a document, of which an earlier one had `names`, by key or by place. A
    name that a person has given comes before those: it is neither replaced by one nor given twice.

    `app` is as parsed.
    """
    operations = list(app.operations.values())
    keys, known = keys_of(operations), known_names(names, operations)
    own = {key: each.name for key, each in overrides_of(app, presentation).items() if each.name}
    free = {key: name for key, name in known.items() if key not in own and name not in own.values()}
    kept: dict[str, str] = {}
    while True:  # a name that is kept may set another one free
        given = zip(keys, name_operations(app, presentation.naming, kept | own), strict=True)
        differing = {key: free[key] for key, name in given if key not in kept and free.get(key, name) != name}
        if not differing:
            return msgspec.structs.replace(presentation, names=kept)
        kept |= differing


def overrides_of(app: App, presentation: Presentation) -> dict[str, OperationOverride]:
    """Those of the app's operations, by their keys now."""
    operations = [*app.operations.values(), *app.hidden]
    keys = keys_of(operations)
    moved = {each.place: each for key, each in presentation.overrides.items() if key not in keys}
    places = dict(zip(keys, map(place_of, operations), strict=True))
    found = {key: presentation.overrides.get(key) or moved.get(place) for key, place in places.items()}
    return {key: each for key, each in found.items() if each is not None}


def gone(presentation: Presentation, app: App) -> dict[str, OperationOverride]:
    """The overrides of operations that the document, as presented, no longer has, by key."""
    there = overrides_of(app, presentation).values()
    return {key: each for key, each in presentation.overrides.items() if each not in there}


def _overridden(operation: Operation, override: OperationOverride) -> Operation:
    if text := override.description.strip():
        summary = " ".join(text.splitlines()[0].split())
        operation = msgspec.structs.replace(operation, summary=summary, description=text)
    if override.safe is not None:
        operation = msgspec.structs.replace(operation, declared_safe=override.safe)
    return msgspec.structs.replace(operation, approval=override.approval, explore=override.explore)
