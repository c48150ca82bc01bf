from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
from pydantic import SecretStr

from overproof.runtime.logs import configure_logging
from overproof.runtime.settings import Settings

SECRET = "correct-horse"


@pytest.fixture(autouse=True)
def _root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def lines_of(*, as_json: bool) -> io.StringIO:
    stream = io.StringIO()
    settings = Settings(log_json=as_json, kafka_password=SecretStr(SECRET))
    configure_logging(settings, service="trainer", stream=stream)
    return stream


def fail() -> None:
    raise RuntimeError(f"login with {SECRET} refused by postgresql://user:hunter2@host/db")


@pytest.mark.parametrize("as_json", [True, False])
def test_secrets_appear_nowhere(as_json: bool) -> None:
    stream = lines_of(as_json=as_json)
    log = logging.getLogger("overproof.test")

    log.info("the password is %s", SECRET, extra={"task": SECRET})
    try:
        fail()
    except RuntimeError:
        log.exception("failed")

    text = stream.getvalue()
    assert "the password is ***" in text
    assert "RuntimeError" in text
    assert SECRET not in text
    assert "hunter2" not in text


def test_json_line_has_event_and_fields() -> None:
    stream = lines_of(as_json=True)

    logging.getLogger("overproof.test").warning(
        "job ended", extra={"job_id": "job-1", "seconds": 1.5, "unrelated": "x"}
    )

    (line,) = stream.getvalue().splitlines()
    event = json.loads(line)
    assert event.pop("time").endswith("+00:00")
    assert event == {
        "level": "WARNING",
        "message": "job ended",
        "logger": "overproof.test",
        "service": "trainer",
        "job_id": "job-1",
        "seconds": 1.5,
    }


def test_plain_line_has_event_and_fields() -> None:
    stream = lines_of(as_json=False)

    logging.getLogger("overproof.test").info("job ended", extra={"job_id": "job-1"})

    assert stream.getvalue().endswith(" INFO    job ended job_id=job-1\n")


def test_level_is_that_of_the_settings() -> None:
    stream = io.StringIO()
    configure_logging(Settings(log_level="WARNING"), service="trainer", stream=stream)

    logging.getLogger("overproof.test").info("too much detail")

    assert stream.getvalue() == ""


def test_short_secrets_do_not_star_out_every_text() -> None:
    stream = io.StringIO()
    configure_logging(Settings(kafka_password=SecretStr("a")), service="trainer", stream=stream)

    logging.getLogger("overproof.test").info("a plain text")

    assert "a plain text" in stream.getvalue()
