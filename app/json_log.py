"""The log: JSON lines on standard output."""

import logging

import structlog

from app.security.log_masking import mask_fields_of_log


def configure_logging(level: str) -> None:
    """Log one JSON object per line to standard output, without the secrets of the task at work.

    The loggers of libraries are not changed, but for the MCP SDK's: it would log what servers answered.
    """
    logging.getLogger("mcp").setLevel(logging.CRITICAL)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.format_exc_info,
            mask_fields_of_log,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(),
        cache_logger_on_first_use=False,
    )
