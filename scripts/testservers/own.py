"""A server of one test's own, beside those of scripts/servers: for outages and other settings."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from . import places
from .native import Server
from .processes import (
    Process,
    ServerError,
    choose_free_ports,
    end,
    is_alive,
    spawn,
    wait_until,
)

START_TIMEOUT_S = 90


class OwnServer:
    """One server process with ports and a folder of its own; it keeps both when it is stopped.

    Args:
        server: what runs.
        folder: for its data and its log.
    """

    def __init__(self, server: Server, folder: Path) -> None:
        new_ports = choose_free_ports()
        self.ports = {name: next(new_ports) for name in server.port_names}
        self.url = server.url(self.ports["main"])
        self._server = server
        self._folder = folder
        self._process: Process | None = None

    def start(self) -> None:
        """Start it, with the data that it had, and return once it serves.

        Raises:
            ServerError: it does not serve; with its last words.
        """
        plan = self._server.prepare(self._folder, self.ports)
        log = self._folder / "server.log"
        process = self._process = spawn(
            plan.command,
            log=log,
            folder=self._folder,
            environment=places.environment(**plan.environment),
            user=plan.user,
        )
        wait_until(lambda: self.is_serving() or not is_alive(process), timeout_s=START_TIMEOUT_S)
        if not self.is_serving():
            last_words = log.read_text(errors="replace")[-1000:]
            raise ServerError(f"{self._server.name} does not serve; its last words:\n{last_words}")

    def is_serving(self) -> bool:
        """Whether it runs and answers."""
        return is_alive(self._process) and self._server.is_ready(self.ports)

    def stop(self) -> None:
        """Stop it; without a process nothing happens."""
        if self._process is not None:
            end(self._process, stop_signal=self._server.stop_signal)


@contextmanager
def own_server(server: Server) -> Iterator[OwnServer]:
    """The server, serving; stopped and deleted afterwards."""
    base = Path(tempfile.gettempdir())
    if os.geteuid() == 0 and not places.reachable_by_others(base / "any"):
        base = places.OPEN_DATA
        base.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=base, prefix=f"overproof-{server.name}-") as folder:
        Path(folder).chmod(0o711)  # Postgres runs as another user
        own = OwnServer(server, Path(folder))
        try:
            own.start()
            yield own
        finally:
            own.stop()
