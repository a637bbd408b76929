"""Fingerprints of operations: equal if an agent cannot tell two versions of an operation apart."""

import hashlib

import msgspec

from app.apis.catalog import App
from app.records import Json


def fingerprints(app: App) -> dict[str, str]:
    """By operation. The URL of the app's server does not count, nor do credentials, which the gateway adds."""
    unseen = {"security": None, "operation_id": "", "former_names": ()}
    seen = {name: msgspec.structs.replace(each, **unseen) for name, each in app.operations.items()}
    known: dict[int, str] = {}
    return {name: _fingerprint(operation, known) for name, operation in seen.items()}


def _fingerprint(value: Json, known: dict[int, str]) -> str:
    """Schemas share parts, so each is hashed once. `known` is keyed by identity, so all values must live on."""
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
