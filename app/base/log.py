"""The log: JSON lines on standard output, in which the secrets of the task at work are masked."""

import logging
import re
from collections.abc import MutableMapping
from contextvars import ContextVar
from typing import Any, Final

import structlog

from app.base.secrets import SecretValues

_OURS = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # an id, in which a PIN may occur by chance
_secrets: Final[ContextVar[SecretValues | None]] = ContextVar("secrets of logs", default=None)


def configure_logging(level: str) -> None:
    """Log one JSON object per line to standard output, without the secrets of the task at work.

    The loggers of libraries are not changed, but for the MCP SDK's: it would log what servers answered.
    """
    logging.getLogger("mcp").setLevel(logging.CRITICAL)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.format_exc_info,
            _mask_fields_of_log,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(),
        cache_logger_on_first_use=False,
    )


def mask_logs(secrets: SecretValues) -> None:
    """From now on, in this context and those that are copied from it, with all secrets known by then."""
    _secrets.set(secrets)


def _mask_fields_of_log(_logger: object, _name: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
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
