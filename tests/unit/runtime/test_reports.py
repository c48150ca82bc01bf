from __future__ import annotations

import pytest

from overproof.core.failure import FailureReport
from overproof.core.ids import JobId
from overproof.core.spec import JobSpec
from overproof.core.states import StopReason
from overproof.errors import ArtifactCorrupt
from overproof.runtime.reports import (
    COMMANDS,
    REPORTS,
    Advanced,
    Done,
    Failed,
    JobRequest,
    Report,
    Setup,
    Stop,
    UnusableInput,
)
from overproof.runtime.settings import Settings
from tests.builders import a_cell, a_network

NETWORK = a_network()
REQUEST = JobRequest(
    job=JobSpec.of((a_cell(NETWORK),)),
    token=3,
    attempt=2,
    inputs={NETWORK.id: JobId("job-" + "0" * 32)},
)
FAILURE = FailureReport.of(ArtifactCorrupt("damaged\nin two lines"))


@pytest.mark.parametrize("command", [REQUEST, Stop(reason=StopReason.SHUTDOWN)])
def test_command_crosses_as_one_line(command: JobRequest | Stop) -> None:
    line = command.line()

    assert line.count(b"\n") == 1
    assert COMMANDS.validate_json(line) == command


@pytest.mark.parametrize(
    "report",
    [
        Advanced(step=1, total=3, scalars={"loss": 0.1}),
        Done(results={NETWORK.id: {"correct": 3, "curve": [0.1, 0.2]}}, facts={"device": "cpu"}),
        Failed(failure=FAILURE),
        Failed(
            failure=FAILURE,
            unusable=UnusableInput(job_id=JobId("job-1"), manifest_token=None),
            reusable=True,
        ),
    ],
)
def test_report_crosses_as_one_line(report: Report) -> None:
    line = report.line()

    assert line.count(b"\n") == 1
    assert REPORTS.validate_json(line) == report


def test_setup_crosses_with_its_secrets() -> None:
    settings = Settings(s3_secret_key="hunter2").for_child()

    crossed = COMMANDS.validate_json(Setup(settings=settings).line())

    assert isinstance(crossed, Setup)
    assert crossed.settings == settings
    assert crossed.settings.s3_secret_key.get_secret_value() == "hunter2"
