"""The options of a read, checked before any server is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from pyspark_minimq import option_values
from pyspark_minimq.connections import ConnectionOptions, connection_of
from pyspark_minimq.errors import MinimqSparkError
from pyspark_minimq.option_table import Mode, Option, OptionTable, Values, of_table
from pyspark_minimq.planning import EARLIEST, LATEST, Offsets, Subscription, TimesByQueue
from pyspark_minimq.stream_planning import BatchLimits

#: Where a read begins or ends: offsets, or a time (for all queues, or for each), which means the first message stored
#: at or after it.
Position = Offsets | datetime | TimesByQueue


OPTIONS = (
    Option("nameserver"),
    Option("credentials"),
    Option("credentialsSecret"),
    Option("topic"),
    Option("subscribe"),
    Option("subscribePattern"),
    Option("assign"),
    Option("tag"),
    Option("startingOffsets", "earliest", "latest"),
    Option("startingOffsetsByTimestamp"),
    Option("startingTimestamp"),
    Option("endingOffsets", "latest", None),
    Option("endingOffsetsByTimestamp", "", None),
    Option("endingTimestamp", "", None),
    Option("newest", "false", None),
    Option("failOnDataLoss", "true", "true"),
    Option("readTimeout", "60s", "60s"),
    Option("minPartitions"),
    Option("minRecordsPerPartition", "100000", "100000"),
    Option("maxRecordsPerPartition", "1000000", "1000000"),
    Option("maxOffsetsPerTrigger", None, ""),
    Option("maxBytesPerTrigger", None, ""),
    Option("minOffsetsPerTrigger", None, ""),
    Option("maxTriggerDelay", None, "15m"),
    Option("consumerGroup", None, ""),
)

_TABLE = OptionTable(OPTIONS, "spark.read", "spark.readStream")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read: the queues, and their division into partitions."""

    connection: ConnectionOptions
    subscription: Subscription
    tags: frozenset[str] | None
    starting: Position
    ending: Position
    min_partitions: int | None
    min_records_per_partition: int
    max_records_per_partition: int
    newest: bool
    fail_on_data_loss: bool
    timeout_s: float


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The options of a streaming read."""

    read: ReadOptions
    limits: BatchLimits
    consumer_group: str | None


def check_options(options: Mapping[str, str]) -> None:
    """Raise `MinimqSparkError` unless the options are valid for a batch read or for a stream."""
    table = of_table(options)
    if table is not None:
        _TABLE.reject_unknown(table, "a read")
        return
    _TABLE.reject_unknown(options, "a read")
    mode = _TABLE.mode_of(options)
    if mode is Mode.STREAM:
        parse_stream_options(options)
    elif mode is Mode.BATCH:
        parse_read_options(options)
    else:  # both accept the same values, except that only a stream may begin at the end
        _common(_TABLE.values(options, Mode.STREAM))


def parse_read_options(options: Mapping[str, str]) -> ReadOptions:
    """Return the options of a batch query. Raises `MinimqSparkError`."""
    read = _common(_TABLE.values(options, Mode.BATCH))
    _reject(
        "startingOffsets", read.starting, LATEST, "latest (-1), which cannot be a start", "earliest (-2) or offsets"
    )
    _reject("endingOffsets", read.ending, EARLIEST, "earliest (-2), which cannot be an end", "latest (-1) or offsets")
    if read.newest and read.tags is not None:
        raise MinimqSparkError(
            "newest and tag are given: the newest message of a key may have another tag; filter the data frame by tag"
        )
    if isinstance(read.starting, datetime) and isinstance(read.ending, datetime) and read.starting > read.ending:
        raise MinimqSparkError(
            f"startingTimestamp is {read.starting.isoformat()}, after endingTimestamp, which is "
            f"{read.ending.isoformat()}: nothing would be read; exchange them"
        )
    return read


def parse_stream_options(options: Mapping[str, str]) -> StreamOptions:
    """Return the options of a streaming query. Raises `MinimqSparkError`."""
    values = _TABLE.values(options, Mode.STREAM)
    limits = BatchLimits(
        max_offsets=values.get("maxOffsetsPerTrigger", option_values.count),
        max_bytes=values.get("maxBytesPerTrigger", option_values.size),
        min_offsets=values.get("minOffsetsPerTrigger", option_values.count),
        max_delay_s=values.required("maxTriggerDelay", option_values.duration),
    )
    if limits.max_offsets is not None and (limits.min_offsets or 0) > limits.max_offsets:
        raise MinimqSparkError(
            f"minOffsetsPerTrigger is {limits.min_offsets}, more than maxOffsetsPerTrigger, which is "
            f"{limits.max_offsets}: no micro-batch can satisfy both"
        )
    return StreamOptions(_common(values), limits, values.get("consumerGroup", lambda _, text: text))


def _common(values: Values) -> ReadOptions:
    return ReadOptions(
        connection=connection_of(values),
        subscription=_subscription(values),
        tags=values.get("tag", option_values.tags),
        starting=_position(values, "starting", EARLIEST),
        ending=_position(values, "ending", LATEST),
        min_partitions=values.get("minPartitions", option_values.count),
        min_records_per_partition=values.required("minRecordsPerPartition", option_values.count),
        max_records_per_partition=values.required("maxRecordsPerPartition", option_values.count),
        newest=values.get("newest", option_values.flag) or False,
        fail_on_data_loss=values.required("failOnDataLoss", option_values.flag),
        timeout_s=values.required("readTimeout", option_values.time_above_zero),
    )


def _position(values: Values, edge: str, default: int) -> Position:
    moment = values.get(f"{edge}Timestamp", option_values.moment)
    times = values.get(f"{edge}OffsetsByTimestamp", option_values.times)
    offsets = values.get(f"{edge}Offsets", option_values.offsets)
    if moment is not None:
        return moment
    return times or (default if offsets is None else offsets)


def _subscription(values: Values) -> Subscription:
    topic = values.get("topic", option_values.names)
    subscribe = values.get("subscribe", option_values.names)
    pattern = values.get("subscribePattern", option_values.pattern)
    queues = values.get("assign", option_values.queues)
    found = {"topic": topic, "subscribe": subscribe, "subscribePattern": pattern, "assign": queues}
    given = [name for name, value in found.items() if value]
    if not given:
        raise MinimqSparkError(
            'no topic is given: add .option("topic", "NAME"), or several, separated by commas; or one of '
            "subscribePattern and assign; in SQL SELECT ... FROM table WITH (topic = 'NAME')"
        )
    if len(given) > 1:
        raise MinimqSparkError(f"{' and '.join(given)} are given: choose one of them")
    return Subscription(topic or subscribe or (), pattern, queues or frozenset())


def _reject(option: str, position: Position, word: int, what: str, remedy: str) -> None:
    if position == word or (isinstance(position, Mapping) and word in position.values()):
        raise MinimqSparkError(f"{option} is {what}: a batch query would never read anything; write {remedy}")
