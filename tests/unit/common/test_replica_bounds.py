"""No report makes a record that cannot be led any more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minimq_common.errors import InvalidArgument
from minimq_common.model import first_epoch
from minimq_common.replicas.election import elect, found
from minimq_common.replicas.replica_set import (
    MAX_REPLICAS,
    MAX_TERM,
    MAX_TERM_GAP,
    ReplicaReport,
    ReplicaSet,
    check_record,
    repaired,
)
from minimq_common.wire.convert import replica_set_from_wire, to_wire
from minimq_proto.v1 import controller_pb2
from support.cases import for_each
from support.reports import report

LARGEST = (1 << 63) - 1


def record(**other: Any) -> ReplicaSet:
    """Return the record of replica 0 as the master in term 5."""
    first = found(report(last_term=4), 3.0)
    assert first is not None
    return replace(first, **other)


@for_each("term", [1 << 31, LARGEST])
@for_each("recorded", [None, record()])
def test_a_copy_of_the_record_with_a_term_that_leases_cannot_count_is_rejected(
    term: int, recorded: ReplicaSet | None
) -> None:
    with pytest.raises(InvalidArgument, match="term"):
        repaired(recorded, report(1, known=record(term=term)))


@pytest.mark.parametrize("recorded", [None, record()], ids=["emptied", "recorded"])
def test_a_term_grows_by_what_a_controller_may_have_given(recorded: ReplicaSet | None) -> None:
    most = MAX_TERM_GAP + (recorded.term if recorded else 0)
    for claim in ({"known": record(term=most + 1)}, {"last_term": most + 1}):
        with pytest.raises(InvalidArgument, match=r"claims term \d+, but its controller has given"):
            repaired(recorded, report(1, **claim))
    told = repaired(recorded, report(1, known=record(term=most)))
    assert told is not None
    assert told.term == most
    assert repaired(recorded, report(1, last_term=most)) is recorded

    elected = elect(told, [report(0, last_term=most)])
    assert elected is not None
    assert first_epoch(elected.term) < LARGEST


RECORDS: list[dict[str, Any]] = [
    {"term": 0},
    {"term": MAX_TERM + 1},
    {"log_term": MAX_TERM + 1},
    {"version": 0},
    {"version": LARGEST},
    {"master_id": 1 << 31, "addresses": {1 << 31: "127.0.0.1:1"}},
    {"master_id": 7},
    {"successor": 7},
    {"master_run": -1},
    {"min_in_sync": 0},
    {"min_in_sync": 1 << 31},
    {"common_end": -1},
    {"lease_s": 0.0},
    {"lease_s": -1.0},
    {"lease_s": 1e9},
    {"log_id": "x" * 65},
    {"log_id": "a\nb"},
    {"in_sync": frozenset(range(MAX_REPLICAS + 1))},
    {"in_sync": frozenset({-1})},
    {"addresses": {0: "nowhere"}},
    {"addresses": {0: "h" * 1000 + ":1"}},
    {"addresses": dict.fromkeys(range(MAX_REPLICAS + 1), "127.0.0.1:1")},
]


@for_each("wrong", RECORDS)
def test_every_value_of_a_record_has_a_bound(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        check_record(record(**wrong))
    with pytest.raises(InvalidArgument):
        report(known=record(**wrong))


REPORTS: list[dict[str, Any]] = [
    {"replica_id": 1 << 31},
    {"run": 1 << 63},
    {"min_in_sync": MAX_REPLICAS + 1},
    {"last_term": MAX_TERM + 1},
    {"last_term": -1},
    {"log_end": -1},
    {"common_end": -1},
    {"log_id": "x" * 65},
    {"address": "h" * 1000 + ":1"},
    {"known": record(cluster="other")},
]


@for_each("wrong", REPORTS)
def test_every_value_of_a_report_has_a_bound(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        report(**wrong)


def test_a_record_from_the_wire_is_checked() -> None:
    honest = record(in_sync=frozenset({0}))
    assert replica_set_from_wire(to_wire(controller_pb2.ReplicaSet, honest)) == honest
    message = to_wire(controller_pb2.ReplicaSet, honest)
    message.term = LARGEST
    with pytest.raises(InvalidArgument, match="term"):
        replica_set_from_wire(message)


numbers = st.integers(-(1 << 63), LARGEST) | st.sampled_from([0, 1, 5, 6, MAX_TERM, MAX_TERM + 1, MAX_TERM_GAP])


@given(numbers, numbers, numbers, numbers, numbers)
def test_after_any_report_a_set_can_be_led(term: int, version: int, run: int, last_term: int, log_end: int) -> None:
    present = record()
    try:
        claimed: ReplicaReport = report(
            1, known=record(term=term, version=version, master_run=run), last_term=last_term, log_end=log_end
        )
        present = repaired(present, claimed) or present
    except InvalidArgument:
        assert present == record()
    led = elect(present, [report(0, last_term=present.term, log_id=present.log_id)])
    assert led is not None
    check_record(led)
