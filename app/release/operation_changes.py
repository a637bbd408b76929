"""Compares two versions of an API document by operation. Pure."""

import hashlib

import msgspec

from app.apis.api_documents import parse_document
from app.records import Json

_ANYWHERE = "http://localhost"  # the server's URL is not compared


class OperationChanges(msgspec.Struct, frozen=True):
    """Operations by name. All are empty if the difference is invisible to an agent."""

    added: list[str]
    removed: list[str]
    changed: list[str]


def compare(name: str, before: dict[str, Json], after: dict[str, Json]) -> OperationChanges:
    """Raises ApiDocumentError for a document that cannot be parsed."""
    old, new = _fingerprints(name, before), _fingerprints(name, after)
    return OperationChanges(
        added=sorted(new.keys() - old.keys()),
        removed=sorted(old.keys() - new.keys()),
        changed=sorted(each for each in new.keys() & old.keys() if new[each] != old[each]),
    )


def _fingerprints(name: str, document: dict[str, Json]) -> dict[str, str]:
    app = parse_document(name, document, server=_ANYWHERE)
    known: dict[int, str] = {}
    return {each: _fingerprint(operation, known) for each, operation in app.operations.items()}


def _fingerprint(value: Json, known: dict[int, str]) -> str:
    """Schemas share parts, so each is hashed once. `known` is keyed by identity."""
    if id(value) in known:
        return known[id(value)]
    if isinstance(value, msgspec.Struct):
        parts = [f"{name}={_fingerprint(getattr(value, name), known)}" for name in value.__struct_fields__]
    elif isinstance(value, dict):
        parts = [f"{key!r}:{_fingerprint(value[key], known)}" for key in sorted(value, key=str)]
    elif isinstance(value, list | tuple):
        parts = [_fingerprint(each, known) for each in value]
    else:
        return repr(value)
    digest = hashlib.sha256(f"{type(value).__name__}({','.join(parts)})".encode()).hexdigest()
    known[id(value)] = digest
    return digest
