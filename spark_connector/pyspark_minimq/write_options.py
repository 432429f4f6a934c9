"""The options of a write, checked before anything is sent."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast, get_args

from minimq import MinimqError, ProducerOptions
from minimq.features.transactions.decisions import Transaction
from minimq.sending.producer_options import CompressionName
from minimq_common.names import ONE_TIME_TRANSACTIONS
from pyspark_minimq import option_values
from pyspark_minimq.connections import ConnectionOptions, connection_of
from pyspark_minimq.errors import MinimqSparkError
from pyspark_minimq.option_table import Mode, Option, OptionTable, Values

WRITE_OPTIONS: Final = (
    Option("nameserver"),
    Option("credentials"),
    Option("credentialsSecret"),
    Option("topic"),
    Option("transactional", "false", "true"),
    Option("txnAppId", "", None),
    Option("txnVersion", "", None),
    Option("compression", "none", "none"),
    Option("maxBodyBytes", "4m", "4m"),
    Option("sendTimeout", "60s", "60s"),
    Option("commitTimeout", "60s", "60s"),
    Option("failOnDataLoss", "true", "true"),
    Option("rejectedRows", "fail", "fail"),
    Option("deadLetterTopic"),
)

_TABLE = OptionTable(WRITE_OPTIONS, "df.write", "df.writeStream")

#: Options for Spark itself, which it passes to the sink, too.
_SPARK_OPTIONS: Final = frozenset({"path", "checkpointlocation", "queryname"})


#: Replaces the topic in a transaction name if a column contains the topics.
_BY_COLUMN: Final = "columns"
#: Transaction names contain a digest of the topic, since a topic may be too long for them.
_DIGEST_BYTES: Final = 8
_APP_ID: Final = re.compile(r"[a-zA-Z0-9_.-]+")
#: Leaves enough room for the rest of a transaction name.
_MAX_APP_ID_CHARS: Final = 90


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write."""

    connection: ConnectionOptions
    topic: str | None
    transactional: bool
    transaction: Transaction | None
    producer: ProducerOptions
    commit_timeout_s: float
    fail_on_data_loss: bool
    drops_rejected: bool
    dead_letter_topic: str | None


def parse_write_options(options: Mapping[str, str], mode: Mode) -> WriteOptions:
    """Return the options of a write. Raises `MinimqSparkError`."""
    values = _TABLE.values({name: text for name, text in options.items() if name.lower() not in _SPARK_OPTIONS}, mode)
    max_body_bytes = values.required("maxBodyBytes", option_values.size)
    try:
        producer = ProducerOptions(
            send_timeout_s=values.required("sendTimeout", option_values.time_above_zero),
            max_body_bytes=max_body_bytes,
            compression=values.required("compression", _compression),
        )
    except MinimqError as error:  # more than any broker accepts
        raise MinimqSparkError(f"maxBodyBytes is {max_body_bytes}: {error.message}") from None
    topic = values.get("topic", lambda _, text: text)
    transaction = _transaction(values, topic)
    return WriteOptions(
        connection=connection_of(values),
        topic=topic,
        transactional=transaction is not None or values.required("transactional", option_values.flag),
        transaction=transaction,
        producer=producer,
        commit_timeout_s=values.required("commitTimeout", option_values.time_above_zero),
        fail_on_data_loss=values.required("failOnDataLoss", option_values.flag),
        drops_rejected=_drops_rejected(values),
        dead_letter_topic=values.get("deadLetterTopic", lambda _, text: text),
    )


def _drops_rejected(values: Values) -> bool:
    choice = values.required("rejectedRows", lambda _, text: text.lower())
    if choice not in ("fail", "drop"):
        raise MinimqSparkError(
            f"rejectedRows is {choice!r}: write fail or drop, or give a topic for these rows with deadLetterTopic"
        )
    if values.is_given("rejectedRows") and values.is_given("deadLetterTopic"):
        raise MinimqSparkError(
            "rejectedRows and deadLetterTopic are both given: leave out rejectedRows to send rejected rows to the topic"
        )
    return choice == "drop"


def _transaction(values: Values, topic: str | None) -> Transaction | None:
    app_id = values.get("txnAppId", lambda _, text: text)
    version = values.get("txnVersion", option_values.number)
    if app_id is None and version is None:
        return None
    if app_id is None or version is None:
        given, lacking = ("txnVersion", "txnAppId") if app_id is None else ("txnAppId", "txnVersion")
        raise MinimqSparkError(
            f"{given} is given without {lacking}: a write is recognized by both, the name of the application and a "
            "number that grows from one write to the next"
        )
    if values.is_given("transactional") and not values.required("transactional", option_values.flag):
        raise MinimqSparkError("transactional is false: with txnAppId and txnVersion a write is a transaction")
    name = name_of_application(app_id, topic)
    try:
        return Transaction(name, version)
    except MinimqError:  # the only possible reason is that the number is too large
        raise MinimqSparkError(f"txnVersion is {version}: the limit is {(1 << 63) - 1}") from None


def _compression(option: str, text: str) -> CompressionName:
    choices = get_args(CompressionName)
    if text.lower() not in choices:
        raise MinimqSparkError(f"{option} is {text!r}: write {' or '.join(choices)}")
    return cast("CompressionName", text.lower())


# ---- Names of transactions ------------------------------------------------------------------------
#
# A name contains the writer and the target, so writes to two topics have two names: an application may use the same
# txnVersion for both, as for two tables of Delta Lake.


def name_of_application(app_id: str, topic: str | None) -> str:
    """Return the transaction name of an application. Raises `MinimqSparkError`."""
    if len(app_id) > _MAX_APP_ID_CHARS:
        raise MinimqSparkError(
            f"txnAppId has {len(app_id)} characters, the limit is {_MAX_APP_ID_CHARS}: {app_id[:40]!r}..."
        )
    if not _APP_ID.fullmatch(app_id):
        raise MinimqSparkError(f"txnAppId is {app_id!r}: write letters, digits and the characters _ - .")
    return f"spark-app-{app_id}-{_target(topic)}"


def name_of_query(query: str, topic: str | None) -> str:
    """Return the transaction name of a query."""
    return f"spark-{query}-{_target(topic)}"


def name_of_one_write() -> str:
    return f"{ONE_TIME_TRANSACTIONS}{uuid.uuid4()}"


def _target(topic: str | None) -> str:
    return _BY_COLUMN if topic is None else hashlib.blake2b(topic.encode(), digest_size=_DIGEST_BYTES).hexdigest()
