"""The options and columns of a write, and that docs/spark.md says the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from minimq import ProducerOptions
from minimq.features.transactions.decisions import Transaction
from pyspark_minimq.columns import WRITE_COLUMNS, check_columns
from pyspark_minimq.connections import ConnectionOptions
from pyspark_minimq.errors import MinimqSparkError
from pyspark_minimq.option_table import Mode
from pyspark_minimq.write_options import WRITE_OPTIONS, WriteOptions, parse_write_options
from support.cases import for_each

DOCS = (Path(__file__).parents[3] / "docs" / "spark.md").read_text()

TYPES: dict[str, DataType] = {
    kind.simpleString(): kind
    for kind in (
        *(BinaryType(), ByteType(), DoubleType(), IntegerType(), LongType(), ShortType(), StringType()),
        *(TimestampType(), ArrayType(StringType()), ArrayType(IntegerType()), MapType(StringType(), StringType())),
        ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
    )
}


def columns(ddl: str) -> StructType:
    """Return what Spark makes of it, without a session."""
    named = [column.split(" ") for column in ddl.split(", ")]
    return StructType([StructField(name, TYPES[kind]) for name, kind in named])


def rejection(options: dict[str, str], mode: Mode = Mode.BATCH) -> str:
    with pytest.raises(MinimqSparkError) as caught:
        parse_write_options(options, mode)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def column_rejection(ddl: str, topic: str | None = "t") -> str:
    with pytest.raises(MinimqSparkError) as caught:
        check_columns(columns(ddl), topic)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@for_each("mode", Mode)
def test_defaults(mode: Mode) -> None:
    assert parse_write_options({}, mode) == WriteOptions(
        connection=ConnectionOptions(),
        topic=None,
        transactional=mode is Mode.STREAM,
        transaction=None,
        producer=ProducerOptions(send_timeout_s=60.0),
        commit_timeout_s=60.0,
        fail_on_data_loss=True,
        drops_rejected=False,
        dead_letter_topic=None,
    )


def test_all_options_in_any_case() -> None:
    options = parse_write_options(
        {
            "NameServer": "a:1,b:2",
            "TOPIC": "t",
            "Transactional": "False",
            "compression": "ZSTD",
            "maxbodybytes": "8m",
            "sendTimeout": "5s",
            "commitTimeout": "2m",
            "failondataloss": "FALSE",
        },
        Mode.STREAM,
    )
    assert options == WriteOptions(
        connection=ConnectionOptions("a:1,b:2"),
        topic="t",
        transactional=False,
        transaction=None,
        producer=ProducerOptions(send_timeout_s=5.0, max_body_bytes=8 << 20, compression="zstd"),
        commit_timeout_s=120.0,
        fail_on_data_loss=False,
        drops_rejected=False,
        dead_letter_topic=None,
    )


@pytest.mark.parametrize("more", [{}, {"transactional": "true"}])
def test_a_name_and_a_number_make_a_transaction(more: dict[str, str]) -> None:
    options = parse_write_options({"txnappid": "nightly-orders", "TxnVersion": "0", **more}, Mode.BATCH)
    assert options.transactional
    assert options.transaction == Transaction("spark-app-nightly-orders-columns", 0)


def named_transaction(app_id: str, **options: str) -> Transaction:
    transaction = parse_write_options({"txnAppId": app_id, "txnVersion": "7", **options}, Mode.BATCH).transaction
    assert transaction is not None
    return transaction


def test_a_transaction_belongs_to_its_topic() -> None:
    orders = named_transaction("a", topic="orders")
    assert orders == Transaction("spark-app-a-d5acebe867b47f4d", 7)  # a name that brokers remember: it must not change
    others = [named_transaction("a"), named_transaction("a", topic="columns"), named_transaction("a", topic="orders2")]
    assert len({orders, *others}) == 4


@for_each(
    ("options", "text"),
    [
        ({"topics": "t"}, "unknown option 'topics': did you mean 'topic'? df.write has nameserver, credentials, "),
        ({"startingOffsets": "latest"}, "unknown option 'startingOffsets': df.write has "),
        ({"transactional": "yes"}, "transactional is 'yes': write true or false"),
        ({"compression": "gzip"}, "compression is 'gzip': write none or zstd"),
        ({"maxBodyBytes": "a lot"}, "maxBodyBytes is 'a lot': write a number of bytes"),
        ({"maxBodyBytes": "33m"}, "maxBodyBytes is 34603008: "),
        ({"txnAppId": "a"}, "txnAppId is given without txnVersion: a write is recognized by both, "),
        ({"txnVersion": "7"}, "txnVersion is given without txnAppId: "),
        ({"txnAppId": "a", "txnVersion": "-1"}, "txnVersion is '-1': write a whole number, 0 or above"),
        ({"txnAppId": "a", "txnVersion": str(1 << 63)}, "txnVersion is 9223372036854775808: the limit is 92233720368"),
        ({"txnAppId": "a|b", "txnVersion": "1"}, "txnAppId is 'a|b': write letters, digits and the characters _ - ."),
        ({"txnAppId": "a b", "txnVersion": "1"}, "txnAppId is 'a b': write letters, digits and the characters _ - ."),
        ({"txnAppId": "a" * 91, "txnVersion": "1"}, "txnAppId has 91 characters, the limit is 90: 'aaaa"),
        ({"txnAppId": "a", "txnVersion": "1", "transactional": "false"}, "transactional is false: with txnAppId and "),
        ({"sendTimeout": "soon"}, "sendTimeout is 'soon': write a time such as"),
        ({"commitTimeout": "0s"}, "commitTimeout is '0s': write a time above 0"),
    ],
)
def test_options_that_are_rejected(options: dict[str, str], text: str) -> None:
    assert rejection(options).startswith(text)


# ---- Columns -------------------------------------------------------------------------------------


@for_each(
    "ddl",
    [
        "body binary",
        "VALUE string",
        "body string, tag string, keys array<string>, properties map<string,string>",
        "topic string, body binary, keys string, queue_id smallint, broker_name string",
        "body binary, sharding_key bigint, queue_id bigint",
        *(
            f"body string, {name} {kind}"
            for name, kinds in WRITE_COLUMNS.items()
            for kind in kinds
            if name not in ("body", "value", "broker_name")
        ),
    ],
)
def test_columns_that_can_be_written(ddl: str) -> None:
    check_columns(columns(ddl), "t")


@for_each(
    ("ddl", "text"),
    [
        ("tag string", "there is no column 'body': make one (in Spark: to_json("),
        ("body binary, value binary", "there is a column 'body' and a column 'value', which stands for it: drop one"),
        ("body string, keys string, key string", "there is a column 'keys' and a column 'key', which stands for it"),
        ("body string, sharding_key string, key string", "there is a column 'sharding_key' and a column 'key'"),
        ("body string, headers array<string>", "column 'headers' is of type array<string>: cast it to array<struct<"),
        ("body int", "column 'body' is of type int: cast it to binary or string"),
        ("body string, keys array<int>", "column 'keys' is of type array<int>: cast it to array<string> or string"),
        ("body string, queue_id double", "column 'queue_id' is of type double: cast it to int or bigint"),
        ("body string, sharding_key double", "column 'sharding_key' is of type double: cast it to string, binary or"),
        ("body string, Body string", "column 'body' appears twice: drop one of them"),
        ("body string, broker_name string", "there is a column 'broker_name' without 'queue_id'"),
        ("body string, customer string", "column 'customer' cannot be written: a message has topic, body, "),
        ("body string, tags string", "column 'tags' cannot be written: a message has topic"),
        ("value string, partition int", "column 'partition' cannot be written: a message has topic"),
    ],
)
def test_columns_that_are_rejected(ddl: str, text: str) -> None:
    assert column_rejection(ddl).startswith(text)


def test_columns_that_brokers_give_are_rejected() -> None:
    text = column_rejection("body string, offset bigint, store_timestamp timestamp")
    assert text.startswith("column 'offset', 'store_timestamp' cannot be written")
    assert text.endswith("or drop it")


# ---- The documentation ---------------------------------------------------------------------------


def rows_of_table(heading: str) -> list[list[str]]:
    section = DOCS.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in row] for row in rows]


def test_the_documentation_has_every_column_with_its_types() -> None:
    documented = {
        row[0].strip("`"): tuple(re.findall("`([^`]+)`", row[1])) for row in rows_of_table("Columns to write")
    }
    assert documented == WRITE_COLUMNS


def test_the_documentation_has_every_option_with_its_defaults() -> None:
    documented = [tuple(cell.strip("`") for cell in row[:3]) for row in rows_of_table("Options of a write")]
    defaults = [tuple(option.default(mode) for mode in Mode) for option in WRITE_OPTIONS]
    shown = [tuple("not there" if text is None else text for text in pair) for pair in defaults]
    assert documented == [(option.name, *pair) for option, pair in zip(WRITE_OPTIONS, shown, strict=True)]


def test_rejected_rows_fail_are_dropped_or_go_to_a_topic() -> None:
    assert parse_write_options({"rejectedRows": "drop"}, Mode.BATCH).drops_rejected
    assert parse_write_options({"deadLetterTopic": "bad"}, Mode.STREAM).dead_letter_topic == "bad"
    for options, text in (
        ({"rejectedRows": "skip"}, "rejectedRows is 'skip': write fail or drop"),
        ({"rejectedRows": "drop", "deadLetterTopic": "bad"}, "rejectedRows and deadLetterTopic are both given"),
    ):
        with pytest.raises(MinimqSparkError, match=text):
            parse_write_options(options, Mode.BATCH)
