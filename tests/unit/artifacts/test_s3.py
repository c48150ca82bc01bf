"""What real S3 servers cannot be made to show: lost answers, refusals, silence."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from overproof.artifacts.s3 import S3Store
from overproof.core.clock import ManualClock
from overproof.errors import SettingsError, StoreUnavailable

SECRET = "very-secret-key"


class Server(ThreadingHTTPServer):
    """One object; answers to conditional writes follow `script`, then the rules of S3.

    It plays the platform too, which hands out the keys of `role`; `signed_by` are those that come.
    A step is a status, or "lost": the object is stored and the connection closed without a word.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script: list[int | str] = []
        self.stored: bytes | None = None
        self.role: dict[str, str] | None = None
        self.signed_by: set[str] = set()
        self.lock = threading.Lock()

    def handle_error(self, *_: object) -> None:
        """Clients that go away are part of the tests."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_HEAD(self) -> None:
        self._note_key()
        self._answer(200)

    def do_GET(self) -> None:
        if self.path == "/role":
            self._answer(200 if self.server.role else 404, json.dumps(self.server.role).encode())
            return
        self._note_key()
        self._answer(200, self.server.stored or b"")

    def _note_key(self) -> None:
        found = re.search("Credential=(\\w+)", self.headers["Authorization"] or "")
        self.server.signed_by.add(found[1] if found else "nobody")

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.headers["If-None-Match"] == "*"
        with self.server.lock:
            step = self.server.script.pop(0) if self.server.script else 200
            if step in {200, "lost"} and self.server.stored is not None:
                step = 412
            if step in {200, "lost"}:
                self.server.stored = data
        if isinstance(step, int):
            self._answer(step, b"<Error><Code>SomeCode</Code></Error>" if step > 200 else b"")

    def log_message(self, *_: object) -> None:
        """Silent."""

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def store(server: Server) -> S3Store:
    endpoint = f"127.0.0.1:{server.server_port}"
    return S3Store(endpoint, "bucket", "access", SECRET, secure=False, clock=ManualClock())


def test_put_once_whose_answer_was_lost_still_knows_that_it_won(
    server: Server, store: S3Store
) -> None:
    server.script = ["lost"]

    assert store.put_once("manifest", b"mine") is True
    assert server.stored == b"mine"


def test_put_once_whose_answer_was_lost_does_not_claim_the_object_of_another(
    server: Server, store: S3Store
) -> None:
    server.stored = b"of another"
    server.script = [503]

    assert store.put_once("manifest", b"mine") is False


def test_equal_bytes_of_another_are_not_claimed_without_a_lost_answer(
    server: Server, store: S3Store
) -> None:
    server.stored = b"same"

    assert store.put_once("manifest", b"same") is False


def test_conflict_of_two_conditional_writes_is_tried_again(server: Server, store: S3Store) -> None:
    server.script = [409, 409]

    assert store.put_once("manifest", b"mine") is True
    assert server.script == []


@pytest.mark.parametrize("status", [400, 403, 501])
def test_refused_write_is_not_tried_again_and_names_the_reason(
    server: Server, store: S3Store, status: int
) -> None:
    server.script = [status, 200]

    with pytest.raises(StoreUnavailable, match="SomeCode"):
        store.put_once("manifest", b"mine")

    assert server.script == [200]


def test_server_that_always_fails_ends_as_unavailable(server: Server, store: S3Store) -> None:
    server.script = [500] * 100

    with pytest.raises(StoreUnavailable, match="manifest"):
        store.put_once("manifest", b"mine")


def test_server_that_is_down_is_unavailable_and_no_secret_is_told(tmp_path: Path) -> None:
    store = S3Store("127.0.0.1:1", "bucket", "access", SECRET, secure=False, clock=ManualClock())

    with pytest.raises(StoreUnavailable, match=r"s3://bucket at 127\.0\.0\.1:1") as raised:
        store.read("key")

    assert SECRET not in str(raised.value)
    assert "Signature" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_constructor_sends_nothing() -> None:
    S3Store("127.0.0.1:1", "bucket", "access", SECRET, secure=False)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("s3://?endpoint=h:1", "does not name a bucket"),
        ("http://bucket?endpoint=h:1", "does not name a bucket"),
        ("s3://bucket/folder?endpoint=h:1", "does not name a bucket"),
        ("s3://bucket", "no endpoint"),
        ("s3://bucket?endpoint=", "no endpoint"),
        ("s3://bucket?endpoint=h:1&secure=perhaps", "true or false"),
        ("s3://bucket?endpoint=h:1&sekure=true", "unknown options sekure"),
        ("s3://B?endpoint=h:1", "correct its URL"),
        ("s3://bucket?endpoint=h:port", "correct its URL"),
        ("s3://bucket?endpoint=h:1&cafile=/no/such/file", "PEM"),
    ],
)
def test_unusable_url_says_what_is_wrong(url: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        S3Store.from_url(url, access_key="access", secret_key=SECRET)


def test_credentials_in_the_url_are_refused_and_not_repeated() -> None:
    with pytest.raises(SettingsError) as raised:
        S3Store.from_url(f"s3://me:{SECRET}@bucket?endpoint=h:1", access_key="", secret_key="")

    assert SECRET not in str(raised.value)


@pytest.fixture
def role_store(server: Server, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    endpoint = f"127.0.0.1:{server.server_port}"
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://{endpoint}/role")
    url = f"s3://bucket?endpoint={endpoint}&secure=false&credentials=role"
    return S3Store.from_url(url, access_key="", secret_key="")


def keys_of_a_role(name: str, lifetime: timedelta) -> dict[str, str]:
    until = (datetime.now(UTC) + lifetime).strftime("%Y-%m-%dT%H:%M:%SZ")
    keys = {"AccessKeyId": name, "SecretAccessKey": SECRET, "Token": "token"}
    return {**keys, "Expiration": until}


def test_keys_of_a_role_are_those_that_the_platform_gives_and_are_renewed(
    server: Server, role_store: S3Store
) -> None:
    server.role = keys_of_a_role("FIRST", timedelta(seconds=1))
    role_store.read("key")
    server.role = keys_of_a_role("SECOND", timedelta(hours=1))
    role_store.read("key")

    assert server.signed_by == {"FIRST", "SECOND"}


def test_platform_without_a_role_is_an_outage(role_store: S3Store) -> None:
    with pytest.raises(StoreUnavailable, match="no credentials of a role"):
        role_store.read("key")


@pytest.mark.parametrize(
    ("option", "key", "message"),
    [("credentials=guess", "", "keys or role"), ("credentials=role", "access", "unset one")],
)
def test_credentials_that_contradict_themselves_are_refused(
    option: str, key: str, message: str
) -> None:
    url = f"s3://bucket?endpoint=127.0.0.1:1&{option}"

    with pytest.raises(SettingsError, match=message):
        S3Store.from_url(url, access_key=key, secret_key="")
