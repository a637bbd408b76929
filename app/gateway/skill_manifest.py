"""The manifest of a skill: the operations it may call, and where each of their arguments may come from. Pure.

An origin is `parameter` (a value that the skill was called with), `constant` (of its source), `result:<api>` (of
a call that it made), `number` (a small whole number that is not surely one of the first two: a counter, or an id)
or `computed` (none of these).
"""

from collections.abc import Iterable, Iterator
from typing import Protocol

import msgspec

from app.apis.catalog import Catalog, Operation

PARAMETER, CONSTANT, NUMBER, COMPUTED = "parameter", "constant", "number", "computed"
RESULT = "result:"


class CallableOperation(Protocol):
    """An operation, as far as a manifest is concerned."""

    @property
    def method(self) -> str: ...
    @property
    def safe(self) -> bool: ...
    @property
    def arguments(self) -> Iterable[str]: ...
    @property
    def required(self) -> Iterable[str]: ...


class AllowedOperation(msgspec.Struct, frozen=True):
    """An operation of a manifest. None and "" permit anything: skills of earlier versions recorded no more."""

    method: str = ""  #: upper case; "" for a built-in operation too
    safe: bool = False
    arguments: dict[str, list[str]] | None = None  #: the origins of each argument, sorted

    def fits(self, operation: CallableOperation) -> bool:
        """Whether the operation still is what it was, and takes the same arguments."""
        if self.arguments is None or not self.is_same(operation):
            return self.is_same(operation)
        return set(operation.required) <= self.arguments.keys() <= set(operation.arguments)

    def is_same(self, operation: CallableOperation) -> bool:
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
        app, _, name = api.partition(".")
        operation = catalog.apps[app].operations.get(name) if app in catalog.apps else None
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
