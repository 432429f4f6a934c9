"""Messages that are joined from their parts: the same as protobuf makes of them."""

from __future__ import annotations

from minimq_common.wire.rpc import field_head
from minimq_proto.v1 import broker_pb2
from support.cases import for_each

NUMBER = broker_pb2.StoredBatch.BATCH_FIELD_NUMBER


@for_each("size", [0, 1, 127, 128, 16_383, 16_384, 1 << 20, (1 << 21) - 1, 1 << 21])
def test_a_field_is_read_as_protobuf_would_have_written_it(size: int) -> None:
    data = bytes(size)
    around = broker_pb2.StoredBatch(base_offset=7, count=3).SerializeToString()
    expected = broker_pb2.StoredBatch(base_offset=7, count=3, batch=data)
    assert broker_pb2.StoredBatch.FromString(around + field_head(NUMBER, size) + data) == expected


def test_a_large_number_of_a_field() -> None:
    assert field_head(16, 0) == b"\x82\x01\x00"
