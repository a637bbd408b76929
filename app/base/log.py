"""Masks the secrets of the task at work in what it logs: errors, and their tracebacks, may quote any value."""

import re
from collections.abc import MutableMapping
from contextvars import ContextVar
from typing import Any, Final

from app.security.secret_values import SecretValues

_OURS = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # an id, in which a PIN may occur by chance
_secrets: Final[ContextVar[SecretValues | None]] = ContextVar("secrets of logs", default=None)


def mask_logs(secrets: SecretValues) -> None:
    """From now on, in this context and those that are copied from it, with all secrets known by then."""
    _secrets.set(secrets)


def mask_fields_of_log(_logger: object, _name: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A processor of structlog, to run once tracebacks are text."""
    secrets = _secrets.get()
    if secrets is not None and secrets.known:
        for name, value in fields.items():
            if name != "event":  # a text of ours
                fields[name] = _masked(value, secrets)
    return fields


def _masked(value: Any, secrets: SecretValues) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | dict):
        return secrets.mask_value(value)
    text = value if isinstance(value, str) else repr(value)
    return text if _OURS.fullmatch(text) else secrets.mask(text)
