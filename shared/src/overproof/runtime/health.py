"""Whether the process is alive and of use: a file for probes that run inside, HTTP for others."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from overproof.core.clock import Clock
from overproof.errors import SettingsError
from overproof.runtime.hooks import Hooks

_log = logging.getLogger(__name__)

# Longer than the longest wait for an answer of a back-end (60 s), so that an outage is no death.
STALLED_AFTER_S = 120.0
_TOUCH_EVERY_S = 1.0

_Routes = Mapping[str, Callable[[], tuple[int, bytes]]]


class HealthHooks(Hooks):
    """Live while the main loop goes round; ready while the database answers it too.

    Args:
        clock: measures ages.
        file: touched by the loop, at most once a second; its age is what a probe looks at.
    """

    def __init__(self, *, clock: Clock, file: Path | None = None) -> None:
        self._clock = clock
        self._file = file
        self._turned_at = clock.monotonic()
        self._touched_at = -_TOUCH_EVERY_S
        self._answered_at: float | None = None

    @property
    def is_live(self) -> bool:
        """Whether the main loop went round lately."""
        return self._clock.monotonic() - self._turned_at < STALLED_AFTER_S

    @property
    def is_ready(self) -> bool:
        """Whether the database answered lately."""
        answered = self._answered_at
        return answered is not None and self._clock.monotonic() - answered < STALLED_AFTER_S

    def after_turn(self) -> None:
        """Note the time, touch the file."""
        self._turned_at = now = self._clock.monotonic()
        if self._file is not None and now - self._touched_at >= _TOUCH_EVERY_S:
            self._touched_at = now
            self._file.touch()

    def after_answer(self) -> None:
        """Note the time."""
        self._answered_at = self._clock.monotonic()


class HealthServer:
    """Serves /live, /ready and /metrics on a thread of its own. A context manager.

    Args:
        health: answers the first two, with 200 or 503.
        exposition: answers the third.
        host: address to bind.
        port: 0 takes a free one; see `port`.

    Raises:
        SettingsError: the port is taken.
    """

    def __init__(
        self, health: HealthHooks, exposition: Callable[[], bytes], *, host: str, port: int
    ) -> None:
        routes: _Routes = {
            "/live": lambda: _verdict(health.is_live),
            "/ready": lambda: _verdict(health.is_live and health.is_ready),
            "/metrics": lambda: (200, exposition()),
        }
        try:
            self._server = ThreadingHTTPServer((host, port), partial(_Handler, routes))
        except OSError as error:
            raise SettingsError(
                f"OVERPROOF_METRICS_PORT: cannot listen on {host}:{port}: {error.strerror}; "
                "take another port"
            ) from None
        self._server.daemon_threads = True
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True, name="health").start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    timeout = 10

    def __init__(self, routes: _Routes, *arguments: Any) -> None:
        self._routes = routes
        super().__init__(*arguments)  # handles the request

    def do_GET(self) -> None:
        answer = self._routes.get(self.path.partition("?")[0], lambda: (404, b"not found\n"))
        code, body = answer()
        self.send_response(code)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        _log.debug(format, *args)


def _verdict(good: bool) -> tuple[int, bytes]:
    return (200, b"yes\n") if good else (503, b"no\n")
