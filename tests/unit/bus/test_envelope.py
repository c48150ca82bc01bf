from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from overproof.bus.base import Delivery
from overproof.bus.envelope import MAX_BYTES, SCHEMA_VERSION, Envelope, MessageType
from overproof.bus.topics import Topic
from overproof.core.states import JobKind
from overproof.errors import MalformedMessage

GOLDEN = Path(__file__).parents[2] / "data" / "envelopes"

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=10,
)
ENVELOPES = st.builds(
    Envelope,
    message_id=st.text(min_size=1, max_size=64),
    type=st.sampled_from(MessageType),
    job_id=st.text(max_size=64),
    kind=st.none() | st.sampled_from(JobKind),
    payload=st.dictionaries(st.text(max_size=8), JSON, max_size=4),
    occurred_at=st.datetimes(
        min_value=datetime(2000, 1, 1),
        max_value=datetime(2100, 1, 1),
        timezones=st.just(UTC),
    ),
)


@settings(deadline=None)  # a busy machine is no failure
@given(ENVELOPES)
def test_envelope_comes_back(envelope: Envelope) -> None:
    assert Envelope.decode(envelope.encode()) == envelope


@settings(deadline=None)  # a busy machine is no failure
@given(
    envelope=ENVELOPES,
    extra=st.dictionaries(
        st.text(min_size=1, max_size=8).filter(lambda name: name not in Envelope.model_fields),
        JSON,
        max_size=3,
    ),
)
def test_unknown_fields_are_ignored(envelope: Envelope, extra: dict[str, Any]) -> None:
    newer = json.dumps(extra | json.loads(envelope.encode())).encode()

    assert Envelope.decode(newer) == envelope


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_payload_with_a_number_that_json_does_not_know_is_refused(number: float) -> None:
    envelope = Envelope.new(MessageType.JOB_ENDED, now=0.0, payload={"rows": [{"loss": number}]})

    with pytest.raises(ValueError, match="JOB_ENDED message holds NaN or infinity"):
        envelope.encode()


@settings(deadline=None)  # a busy machine is no failure
@given(st.binary(max_size=200))
def test_any_bytes_are_an_envelope_or_malformed(raw: bytes) -> None:
    delivery = Delivery.of(Topic.JOBS_TRAIN, raw)

    assert delivery.raw == raw
    assert (delivery.envelope is None) != (delivery.fault is None)


def _fields(**change: Any) -> bytes:
    fields: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "message_id": "m",
        "type": "JOB_READY",
        "occurred_at": "2026-01-02T03:04:05Z",
    }
    return json.dumps(fields | change).encode()


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 50_000, "not JSON"),
        (b"1" * 50_000, "not JSON"),
        (b"[]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b"{}", "schema_version None; this is 1"),
        (_fields(schema_version=2), "schema_version 2; this is 1"),
        (_fields(schema_version="1"), "schema_version '1'; this is 1"),
        (_fields(type="JOB_LOST"), "type"),
        (_fields(kind="bake"), "kind"),
        (_fields(message_id=""), "message_id"),
        (_fields(job_id="x" * 65), "job_id"),
        (_fields(payload=[]), "payload"),
        (_fields(occurred_at="2026-01-02T03:04:05"), "occurred_at"),
        (_fields(payload={"text": "x" * MAX_BYTES}), "larger than 65536 bytes"),
    ],
)
def test_bytes_that_are_no_envelope_say_why(raw: bytes, reason: str) -> None:
    with pytest.raises(MalformedMessage, match=reason) as raised:
        Envelope.decode(raw)

    assert raised.value.raw == raw


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(MalformedMessage) as raised:
        Envelope.decode(_fields(type="JOB_LOST", payload=[]))

    assert "type" in raised.value.reason
    assert "payload" in raised.value.reason


def test_largest_envelope_goes_both_ways_and_one_byte_more_goes_nowhere() -> None:
    def envelope(text: str) -> Envelope:
        return Envelope(
            message_id="m",
            type=MessageType.JOB_READY,
            payload={"text": text},
            occurred_at=datetime(2026, 1, 2, tzinfo=UTC),
        )

    room = MAX_BYTES - len(envelope("").encode())

    assert Envelope.decode(envelope("x" * room).encode()) == envelope("x" * room)
    with pytest.raises(ValueError, match="artifact store"):
        envelope("x" * (room + 1)).encode()


def test_new_envelopes_have_their_own_ids_and_the_time_given() -> None:
    first, second = (Envelope.new(MessageType.JOB_ENDED, now=1_700_000_000.5) for _ in range(2))

    assert first.message_id != second.message_id
    assert first.occurred_at == datetime(2023, 11, 14, 22, 13, 20, 500_000, tzinfo=UTC)


def test_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValidationError, match="timezone"):
        Envelope(
            message_id="m",
            type=MessageType.JOB_READY,
            occurred_at=datetime(2026, 1, 2),
        )


def test_one_moment_in_two_zones_is_one_moment() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    elsewhere = moment.astimezone(timezone(timedelta(hours=9)))
    envelope = Envelope(message_id="m", type=MessageType.JOB_READY, occurred_at=elsewhere)

    assert Envelope.decode(envelope.encode()).occurred_at == moment


# ---- golden files: what was once written must be read for as long as its version is known ----

JOB = "job-0123456789abcdef0123456789abcdef"
UNIT = "dst-0123456789abcdef0123456789abcdef"
GOLDEN_ENVELOPES = {
    "job_ready": Envelope(
        message_id="00000000000000000000000000000001",
        type=MessageType.JOB_READY,
        job_id=JOB,
        kind=JobKind.DISTILL,
        payload={"task": "synthesis", "units": [UNIT]},
        occurred_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    ),
    "job_started": Envelope(
        message_id="00000000000000000000000000000002",
        type=MessageType.JOB_STARTED,
        job_id=JOB,
        kind=JobKind.TRAIN,
        payload={"token": 1, "owner": "trainer-0"},
        occurred_at=datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC),
    ),
    "job_ended": Envelope(
        message_id="00000000000000000000000000000003",
        type=MessageType.JOB_ENDED,
        job_id=JOB,
        kind=JobKind.ATTACK,
        payload={"state": "SUCCEEDED", "token": 2, "seconds": 12.5},
        occurred_at=datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC),
    ),
    "artifact_uploaded": Envelope(
        message_id="00000000000000000000000000000004",
        type=MessageType.ARTIFACT_UPLOADED,
        payload={"key": "uploads/set.safetensors", "size_bytes": 1048576, "name": "Größe ≤ 1 MiB"},
        occurred_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    ),
    "dead_letter": Envelope(
        message_id="00000000000000000000000000000005",
        type=MessageType.DEAD_LETTER,
        job_id="",
        kind=None,
        payload={"topic": "jobs.distill", "reason": "not JSON", "sha256": "0" * 64, "retry": None},
        occurred_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    ),
}


def test_every_type_of_message_has_a_golden_file() -> None:
    names = {path.name for path in GOLDEN.glob("*.json")}

    assert names == {f"v1-{kind.value.lower()}.json" for kind in MessageType}


@pytest.mark.parametrize("name", GOLDEN_ENVELOPES)
def test_golden_file_of_version_1_is_read_as_it_was_meant(name: str) -> None:
    raw = (GOLDEN / f"v1-{name}.json").read_bytes()

    assert Envelope.decode(raw) == GOLDEN_ENVELOPES[name]


@pytest.mark.parametrize("name", GOLDEN_ENVELOPES)
def test_what_is_written_today_is_what_version_1_wrote(name: str) -> None:
    golden = json.loads((GOLDEN / f"v1-{name}.json").read_bytes())

    assert json.loads(GOLDEN_ENVELOPES[name].encode()) == golden
