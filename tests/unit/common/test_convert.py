"""The conversion between values and messages: every kind of field goes both ways."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from minimq_common.errors import InvalidArgument
from minimq_common.model import Permission, QueueData
from minimq_common.replicas.replica_set import ReplicaReport, ReplicaSet
from minimq_common.wire.convert import from_wire, to_wire
from minimq_proto.v1 import broker_pb2, controller_pb2, nameserver_pb2

RECORD = ReplicaSet(
    cluster="c",
    broker_name="b",
    term=3,
    master_id=7,
    master_run=9,
    in_sync=frozenset({7, 1, 4}),
    version=2,
    sync=True,
    min_in_sync=2,
    lease_s=1.5,
    addresses={1: "x:1", 4: "x:4", 7: "x:7"},
    successor=4,
    wait_s=0.25,
)
REPORT = ReplicaReport(
    cluster="c", broker_name="b", replica_id=7, run=9, address="x:7", common_end=0, known=RECORD, log_id="log"
)


@pytest.mark.parametrize("value", [RECORD, REPORT, replace(REPORT, known=None)], ids=["set", "report", "bare"])
def test_a_value_comes_back_as_it_went(value: ReplicaSet | ReplicaReport) -> None:
    kind = controller_pb2.ReplicaSet if isinstance(value, ReplicaSet) else controller_pb2.ReportRequest
    message = kind.FromString(to_wire(kind, value).SerializeToString())
    assert from_wire(type(value), message) == value


def test_unknown_bits_and_numbers_of_later_versions_do_not_matter() -> None:
    data = nameserver_pb2.QueueData(permission=0xFF)
    assert from_wire(QueueData, data).permission is Permission.READ_WRITE

    @dataclass
    class Disk:
        disk_level: str

    for number, text in ((broker_pb2.DISK_LEVEL_DELETE_EARLY, "delete-early"), (99, "unknown")):
        status = broker_pb2.GetStatusResponse.FromString(
            broker_pb2.GetStatusResponse(disk_level=cast("Any", number)).SerializeToString()
        )
        assert from_wire(Disk, status) == Disk(text)


def test_a_wrong_value_is_rejected_with_its_name() -> None:
    message = to_wire(controller_pb2.ReportRequest, REPORT)
    message.known.addresses[7] = "no address"
    with pytest.raises(InvalidArgument, match="no address"):
        from_wire(ReplicaReport, message)
