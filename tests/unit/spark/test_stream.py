"""The answers to Spark that the limits and options of a stream decide."""

from __future__ import annotations

from minimq_common.model import MessageQueue, TopicId
from pyspark_minimq.columns import MESSAGE_SCHEMA
from pyspark_minimq.options import parse_stream_options
from pyspark_minimq.planning import place_of
from pyspark_minimq.readers import MinimqStreamReader
from pyspark_minimq.reading import RangePartition
from pyspark_minimq.stream_planning import StreamOffset

T0, T1 = MessageQueue("t", "a", 0), MessageQueue("t", "a", 1)
IDS = {place_of(T0): TopicId(1, 10)}


def reader(**options: str) -> MinimqStreamReader:
    return MinimqStreamReader(parse_stream_options({"topic": "t", "tag": "paid", **options}), MESSAGE_SCHEMA)


def partitions(start: StreamOffset, end: StreamOffset, **options: str) -> list[RangePartition]:
    planner = reader(**options)
    try:
        return planner.partitions(start.to_json(), end.to_json())
    finally:
        planner.stop()


def test_a_micro_batch_is_cut_into_partitions_as_the_options_say() -> None:
    def sizes(**options: str) -> list[int]:
        start, end = StreamOffset({T0: 0, T1: 5}, topic_ids=IDS), StreamOffset({T0: 100, T1: 5}, {T0: 0, T1: 5}, IDS)
        planned = partitions(start, end, **options)
        return [len(part) for partition in planned for part in partition.ranges]

    assert sizes() == [100]
    assert sizes(minPartitions="4") == [25] * 4
    assert sizes(maxRecordsPerPartition="20") == [20] * 5


def test_small_queues_share_a_task_unless_more_tasks_are_wanted() -> None:
    def sizes(**options: str) -> list[list[int]]:
        start, end = StreamOffset({T0: 0, T1: 5}, topic_ids=IDS), StreamOffset({T0: 100, T1: 9}, {T0: 0, T1: 5}, IDS)
        planned = partitions(start, end, **options)
        return [list(map(len, partition.ranges)) for partition in planned]

    assert sizes() == [[100, 4]]
    assert sizes(minPartitions="2") == [[100], [4]]
    assert sizes(minRecordsPerPartition="1") == [[100], [4]]
    assert sizes(minRecordsPerPartition="50") == [[100], [4]]
    assert sizes(maxRecordsPerPartition="103") == [[100], [4]]
