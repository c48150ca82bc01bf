"""Logs: one line an event, fields beside the text, never a secret."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TextIO

from overproof.errors import redact
from overproof.runtime.settings import Settings

# Fields that log calls may pass by `extra`; anything else there belongs to libraries.
FIELDS = ("service", "job_id", "kind", "task", "attempt", "token", "outcome", "seconds")
_SHORTEST_SECRET = 4


class Redactor:
    """Replaces known secrets, and passwords in URLs, by stars.

    Args:
        secrets: the values themselves. Those of fewer than four characters are not looked for:
            they would turn up by chance in any text.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        longest_first = sorted(set(secrets), key=len, reverse=True)
        self._secrets = [each for each in longest_first if len(each) >= _SHORTEST_SECRET]

    def __call__(self, text: str) -> str:
        """`text` without secrets."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return redact(text)


class LineFormatter(logging.Formatter):
    """`time LEVEL message field=value …` for people."""

    def __init__(self, redactor: Redactor, *, service: str) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s")
        self._redactor = redactor
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        """One line, then the traceback if there is one."""
        text = super().format(record)
        fields = "".join(f" {name}={value}" for name, value in _fields(record).items())
        first, newline, rest = text.partition("\n")
        return self._redactor(f"{first}{fields}{newline}{rest}")


class JsonFormatter(logging.Formatter):
    """One JSON object a line, for machines."""

    def __init__(self, redactor: Redactor, *, service: str) -> None:
        super().__init__()
        self._redactor = redactor
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        """The event as JSON."""
        event = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "message": self._redactor(record.getMessage()),
            "logger": record.name,
            "service": self._service,
            **{name: self._clean(value) for name, value in _fields(record).items()},
        }
        if record.exc_info:
            event["traceback"] = self._redactor(self.formatException(record.exc_info))
        return json.dumps(event, ensure_ascii=False)

    def _clean(self, value: object) -> object:
        return value if isinstance(value, int | float) else self._redactor(str(value))


def configure_logging(settings: Settings, *, service: str, stream: TextIO | None = None) -> None:
    """Send all logs of the process to `stream` (standard error by default)."""
    redactor = Redactor(settings.secrets())
    form = JsonFormatter if settings.log_json else LineFormatter
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(form(redactor, service=service))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level)
    # These speak at INFO of each connection, and at DEBUG of what goes over it.
    for noisy in ("kafka", "urllib3", "alembic", "sqlalchemy"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
