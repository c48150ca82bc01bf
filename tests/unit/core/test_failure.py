from __future__ import annotations

import inspect

import pytest

from overproof import errors
from overproof.core.failure import FailureReport
from overproof.errors import (
    InvalidSpec,
    MalformedMessage,
    OverproofError,
    PermanentError,
    StopSignal,
)


def instance_of(cls: type[OverproofError]) -> OverproofError:
    if cls is InvalidSpec:
        return InvalidSpec(["seed: is missing"])
    if cls is MalformedMessage:
        return MalformedMessage(b"raw", "not JSON")
    return cls("what happened; what to do")


ALL = [
    cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, OverproofError)
]


@pytest.mark.parametrize("cls", ALL)
def test_every_error_crosses_as_json(cls: type[OverproofError]) -> None:
    error = instance_of(cls)
    report = FailureReport.of(error)

    crossed = FailureReport.model_validate_json(report.model_dump_json())

    assert crossed == report
    assert (crossed.type_name, crossed.message) == (cls.__name__, str(error))
    assert crossed.retryable == (not issubclass(cls, PermanentError | StopSignal))
    assert crossed.is_stop == issubclass(cls, StopSignal)


def test_unlisted_exceptions_are_retryable() -> None:
    report = FailureReport.of(KeyError("label"))

    assert report.retryable
    assert not report.is_stop
    assert report.summary == "KeyError: 'label'"


def test_exception_without_text_still_says_something() -> None:
    assert FailureReport.of(RuntimeError()).message == "RuntimeError()"


def test_traceback_names_the_place_and_keeps_its_end_when_long() -> None:
    def fail(depth: int) -> None:
        if depth == 0:
            raise ValueError("x" * 20_000)
        fail(depth - 1)

    try:
        fail(3)
    except ValueError as error:
        report = FailureReport.of(error)

    assert len(report.message) == 4_000
    assert len(report.traceback) == 16_000
    assert report.traceback.endswith("x\n")


def test_passwords_in_urls_are_left_out() -> None:
    try:
        raise RuntimeError("cannot reach postgresql://user:hunter2@host/db")
    except RuntimeError as error:
        report = FailureReport.of(error)

    assert "hunter2" not in report.model_dump_json()
    assert "postgresql://user:***@host/db" in report.message


def test_summary_is_the_first_line() -> None:
    assert FailureReport.of(ValueError("first\nsecond")).summary == "ValueError: first"
