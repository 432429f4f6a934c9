"""The options of a read, the columns, and that docs/spark.md says the same."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from minimq_common.model import MessageQueue
from pyspark_minimq.columns import MESSAGE_SCHEMA, checked_projection
from pyspark_minimq.connections import ConnectionOptions
from pyspark_minimq.errors import MinimqSparkError
from pyspark_minimq.option_table import Mode
from pyspark_minimq.options import OPTIONS, ReadOptions, parse_read_options, parse_stream_options
from pyspark_minimq.planning import EARLIEST, LATEST, Subscription, TimesByQueue
from support.cases import for_each

NINES = "9" * 5000
DOCS = (Path(__file__).parents[3] / "docs" / "spark.md").read_text()


def rejection(**options: str) -> str:
    with pytest.raises(MinimqSparkError) as caught:
        parse_read_options({"topic": "t", **options})
    assert "\n" not in str(caught.value)
    return str(caught.value)


def stream_rejection(**options: str) -> str:
    with pytest.raises(MinimqSparkError) as caught:
        parse_stream_options({"topic": "t", **options})
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_defaults() -> None:
    assert parse_read_options({"topic": "t"}) == ReadOptions(
        connection=ConnectionOptions(),
        subscription=Subscription(("t",)),
        tags=None,
        starting=EARLIEST,
        ending=LATEST,
        min_partitions=None,
        min_records_per_partition=100_000,
        max_records_per_partition=1_000_000,
        newest=False,
        fail_on_data_loss=True,
        timeout_s=60.0,
    )


def test_a_time_for_each_queue() -> None:
    text = '{"t": {"a": {"0": 1000, "1": "2026-01-31T08:00:00Z"}}}'
    read = parse_read_options({"topic": "t", "startingOffsetsByTimestamp": text, "endingOffsetsByTimestamp": text})
    times = {
        MessageQueue("t", "a", 0): datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
        MessageQueue("t", "a", 1): datetime(2026, 1, 31, 8, tzinfo=UTC),
    }
    assert read.starting == TimesByQueue("startingOffsetsByTimestamp", times)
    assert read.ending == TimesByQueue("endingOffsetsByTimestamp", times)
    both = {"topic": "t", "startingOffsetsByTimestamp": text, "startingOffsets": "latest"}
    assert isinstance(parse_stream_options(both).read.starting, TimesByQueue)
    assert isinstance(parse_stream_options({**both, "startingTimestamp": "-1h"}).read.starting, datetime)
    assert "Expected `int | str`, got `float`" in rejection(startingOffsetsByTimestamp='{"t": {"a": {"0": 1.5}}}')
    assert rejection(startingOffsetsByTimestamp='{"t": {"a": {"0": "yesterday"}}}').startswith(
        "startingOffsetsByTimestamp for queue t/a/0 is 'yesterday'"
    )


@pytest.mark.parametrize(
    ("options", "subscription"),
    [
        ({"subscribe": "a,b"}, Subscription(("a", "b"))),
        ({"subscribePattern": "order.*"}, Subscription(pattern="order.*")),
        (
            {"assign": '{"t": {"a": [0, 2]}}'},
            Subscription(queues=frozenset({MessageQueue("t", "a", 0), MessageQueue("t", "a", 2)})),
        ),
    ],
)
def test_what_is_read_is_said_in_one_of_four_ways(options: dict[str, str], subscription: Subscription) -> None:
    assert parse_read_options(options).subscription == subscription
    assert parse_stream_options(options).read.subscription == subscription
    assert f"topic and {next(iter(options))} are given" in rejection(**options)


def test_names_are_taken_in_any_case_and_topics_once() -> None:
    options = parse_read_options(
        {"TOPIC": "a, b,a", "minpartitions": "4", "maxRecordsPerPartition": "10", "FAILONDATALOSS": "False"}
    )
    assert options.subscription.topics == ("a", "b")
    assert (options.min_partitions, options.max_records_per_partition, options.fail_on_data_loss) == (4, 10, False)


def test_offsets_of_each_queue() -> None:
    options = parse_read_options(
        {
            "topic": "t",
            "startingOffsets": '{"t": {"a": {"0": -2, "1": 7}}}',
            "endingOffsets": '{"t":{"a":{"0":-1,"1":9}}}',
        }
    )
    assert options.starting == {MessageQueue("t", "a", 0): EARLIEST, MessageQueue("t", "a", 1): 7}
    assert options.ending == {MessageQueue("t", "a", 0): LATEST, MessageQueue("t", "a", 1): 9}


def test_an_unknown_option_is_rejected_with_those_there_are() -> None:
    text = rejection(startingOffset="earliest")
    assert text.startswith("unknown option 'startingOffset': did you mean 'startingOffsets'? spark.read has ")
    assert all(option.name in text for option in OPTIONS if option.batch is not None)
    assert "maxOffsetsPerTrigger" in stream_rejection(startingOffset="earliest")
    assert "unknown option 'pushFilters'" in rejection(
        pushFilters="true"
    )  # Spark alone decides which filters it passes
    assert "did you mean 'topic'? " in rejection(path="orders")  # which load("orders") makes
    assert "did you mean 'nameserver'? " in rejection(**{"kafka.bootstrap.servers": "127.0.0.1:9876"})


def test_an_option_of_the_other_way_to_read_is_rejected() -> None:
    assert rejection(maxOffsetsPerTrigger="5").startswith("option 'maxOffsetsPerTrigger' is for spark.readStream: ")
    assert stream_rejection(endingOffsets="latest").startswith("option 'endingOffsets' is for spark.read: ")


@for_each(
    ("options", "reason"),
    [
        ({"topic": " , "}, "no topic is given"),
        ({"startingOffsets": "soon"}, "must look like earliest, latest, or {"),
        ({"startingOffsets": '{"t": {"a": {"0": 1]}}'}, "JSON is malformed: "),
        ({"startingOffsets": '{"t": 5}'}, "Expected `object`, got `int` - at `$[...]`"),
        ({"startingOffsets": '{"t": {"a": {"x": 1}}}'}, "Expected `str` matching regex"),
        ({"startingOffsets": '{"t": {"a": {"0": "1"}}}'}, "Expected `int`, got `str`"),
        ({"startingOffsets": '{"t": {"a": {"0": -3}}}'}, "Expected `int` >= -2"),
        ({"startingOffsets": "latest"}, "startingOffsets is latest"),
        ({"endingOffsets": '{"t": {"a": {"0": -2}}}'}, "endingOffsets is earliest"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp is 'yesterday': it must be a time such as"),
        ({"endingTimestamp": "2026-01-31T08:00:00"}, "has no time zone"),
        ({"minPartitions": "0"}, "minPartitions is '0': write a whole number above 0"),
        ({"maxRecordsPerPartition": "1e6"}, "maxRecordsPerPartition is '1e6'"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss is 'no': write true or false"),
        ({"topic": "", "subscribePattern": "a("}, "subscribePattern is 'a(', which is not a regular expression"),
        ({"topic": "", "assign": "[0]"}, 'must look like {"topic": {"broker": [queue, queue]}}: Expected `object`'),
        ({"topic": "", "assign": '{"t": {"a": 0}}'}, "Expected `array`, got `int`"),
        ({"topic": "", "assign": '{"t": {"a": ["0"]}}'}, "Expected `int`, got `str`"),
        ({"topic": "", "assign": "{}"}, "it names no queue"),
        ({"minPartitions": NINES}, f"minPartitions is '{NINES[:200]}'... (5000 characters): write a whole number"),
        ({"startingTimestamp": NINES}, "startingTimestamp is '999"),
        ({"startingOffsets": f'{{"t": {{"a": {{"0": {NINES}}}}}}}'}, "startingOffsets is "),
        ({"startingOffsets": f'{{"t": {{"a": {{"{NINES}": 0}}}}}}'}, "matching regex"),
        ({"startingOffsets": '{"t": {"a": {"0": 0, "00": 5}}}'}, "matching regex"),
        ({"startingOffsets": "[" * 100_000}, "(100000 characters), and must look like"),
        ({"topic": "", "assign": f'{{"t": {{"a": [{NINES}]}}}}'}, "must look like"),
        (
            {"startingTimestamp": "2026-01-31T08:00:00Z", "endingTimestamp": "1"},
            "startingTimestamp is 2026-01-31T08:00:00+00:00, after endingTimestamp, which is 1970-",
        ),
    ],
)
def test_what_is_wrong_is_said(options: dict[str, str], reason: str) -> None:
    assert reason in rejection(**options)
    if not any(name.startswith("ending") for name in options) and options != {"startingOffsets": "latest"}:
        assert reason in stream_rejection(**options)


@for_each(
    ("options", "reason"),
    [
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger is '0': write a whole number above 0"),
        ({"maxBytesPerTrigger": "64q"}, "maxBytesPerTrigger is '64q': write a number of bytes"),
        (
            {"maxOffsetsPerTrigger": NINES},
            f"maxOffsetsPerTrigger is '{NINES[:200]}'... (5000 characters): write a whole",
        ),
        ({"maxOffsetsPerTrigger": str(1 << 63)}, "maxOffsetsPerTrigger is '9223372036854775808': write a whole number"),
        ({"maxBytesPerTrigger": NINES}, "maxBytesPerTrigger is '999"),
        ({"maxBytesPerTrigger": "9" * 18 + "g"}, "maxBytesPerTrigger is '999"),
        ({"maxTriggerDelay": "9" * 400 + "d"}, "maxTriggerDelay is '999"),
        ({"maxTriggerDelay": "5"}, "maxTriggerDelay is '5', without a unit: write 5s or 5ms"),
        ({"readTimeout": "5"}, "readTimeout is '5', without a unit: write 5s or 5ms"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay is 'soon': write a time such as 30s"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, "minOffsetsPerTrigger is 9, more than"),
    ],
)
def test_what_is_wrong_in_a_stream_is_said(options: dict[str, str], reason: str) -> None:
    assert reason in stream_rejection(**options)


# ---- Columns ------------------------------------------------------------------------------------


def columns(*fields: StructField) -> StructType:
    return StructType(list(fields))


def test_any_columns_in_any_order_can_be_chosen() -> None:
    chosen = columns(
        StructField("Body", BinaryType(), nullable=False),
        StructField("offset", LongType()),
        StructField("keys", ArrayType(StringType(), containsNull=False)),
    )
    assert checked_projection(chosen) is chosen
    assert checked_projection(MESSAGE_SCHEMA) is MESSAGE_SCHEMA


@for_each(
    ("schema", "reason"),
    [
        (columns(), "the schema has no column"),
        (
            columns(StructField("value", BinaryType())),
            "there is no column 'value': did you mean 'body'? choose some of",
        ),
        (columns(StructField("Key", BinaryType())), "there is no column 'Key': did you mean 'keys'? choose some of"),
        (columns(StructField("x", BinaryType())), "there is no column 'x': choose some of topic, broker_name"),
        (columns(StructField("offset", IntegerType())), "column 'offset' is of type bigint, not int"),
        (columns(StructField("born_timestamp", TimestampNTZType())), "is of type timestamp, not timestamp_ntz"),
        (columns(StructField("tag", StringType(), nullable=False)), "column 'tag' may be null"),
        (columns(StructField("tag", StringType()), StructField("TAG", StringType())), "appears twice"),
    ],
)
def test_columns_that_are_not_there_are_rejected(schema: StructType, reason: str) -> None:
    with pytest.raises(MinimqSparkError, match=re.escape(reason)):
        checked_projection(schema)


# ---- Importing and documentation ------------------------------------------------------------------


def test_discovery_imports_nothing_heavy() -> None:
    code = (
        "import sys, pyspark_minimq; assert pyspark_minimq.DefaultSource.name() == 'minimq'; "
        "print(sorted({'grpc', 'minimq', 'pyarrow'} & sys.modules.keys()))"
    )
    environment = {"PYTHONPATH": ":".join(sys.path)}
    assert subprocess.check_output([sys.executable, "-c", code], env=environment, text=True) == "[]\n"


def rows_of_table(heading: str) -> list[list[str]]:
    section = DOCS.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip().strip("`") for cell in row] for row in rows]


def test_the_documentation_has_every_option_with_its_defaults() -> None:
    documented = [tuple(row[:3]) for row in rows_of_table("Options of a read")]
    defaults = [tuple(option.default(mode) for mode in Mode) for option in OPTIONS]
    shown = [tuple("not there" if text is None else text for text in pair) for pair in defaults]
    assert documented == [(option.name, *pair) for option, pair in zip(OPTIONS, shown, strict=True)]


def test_the_documentation_has_every_column_with_its_type() -> None:
    documented = [(row[0], row[1]) for row in rows_of_table("Columns")]
    assert documented == [(field.name, field.dataType.simpleString()) for field in MESSAGE_SCHEMA]
