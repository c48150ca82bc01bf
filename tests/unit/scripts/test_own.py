import socket
import sys
from pathlib import Path

import pytest

from scripts.testservers.native import Launch, Ports, Server
from scripts.testservers.own import own_server
from scripts.testservers.processes import ServerError, is_answering_http


class FileServer(Server):
    """Serves the files of its folder; with `fault` it says so and ends instead."""

    name = "files"
    variable = "OVERPROOF_TEST_FILES_URL"

    def __init__(self, fault: str = "") -> None:
        self.fault = fault

    def url(self, port: int) -> str:
        return f"http://127.0.0.1:{port}"

    def is_installed(self) -> bool:
        return True

    def prepare(self, folder: Path, ports: Ports) -> Launch:
        if self.fault:
            code = f"import sys, time; print({self.fault!r}, flush=True); time.sleep(0.2)"
            return Launch([sys.executable, "-c", code])
        command: list[str | Path] = [sys.executable, "-m", "http.server", "-d", folder]
        return Launch([*command, "--bind", "127.0.0.1", str(ports["main"])])

    def is_ready(self, ports: Ports) -> bool:
        return is_answering_http("/", ports["main"], [200])


def assert_nobody_listens(port: int) -> None:
    # Binding would be too much to ask: connections of the last second may still linger.
    with (
        pytest.raises(ConnectionRefusedError),
        socket.create_connection(("127.0.0.1", port), timeout=1),
    ):
        pass


def test_own_server_comes_back_at_its_address_and_is_gone_in_the_end() -> None:
    with own_server(FileServer()) as server:
        port = server.ports["main"]
        assert server.is_serving()

        server.stop()
        assert not server.is_serving()
        assert_nobody_listens(port)

        server.start()
        assert server.is_serving()

    assert_nobody_listens(port)


def test_own_server_that_does_not_serve_leaves_its_last_words() -> None:
    with pytest.raises(ServerError, match="no such luck"), own_server(FileServer("no such luck")):
        pass
