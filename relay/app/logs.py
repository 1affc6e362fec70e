"""Structured logs: one JSON object a line, with the delivery id, repository and task bound where they are known."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog


def configure(form: str, level: str) -> None:
    """Set up logging for this process.

    Args:
        form: ``json`` for machines, ``text`` for people.
        level: least level that is written.
    """
    number = _LEVELS[level]
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    renderer: Any = (
        structlog.processors.JSONRenderer() if form == "json" else structlog.dev.ConsoleRenderer(colors=False)
    )
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer]
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(number)
    for noisy in ("alembic",):
        logging.getLogger(noisy).setLevel(max(number, logging.WARNING))


_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
