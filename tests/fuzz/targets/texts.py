"""Texts that people, files and checkpoints give: expressions, times, names, options, lines and configuration."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PosixPath
from random import Random
from types import SimpleNamespace
from typing import Any, Final

from fuzz import mutation
from fuzz.target import Target
from minimq.admin.values import properties_of
from minimq.admin.values import queue as parse_queue
from minimq.consuming.message_filter import wanted_tags
from minimq.consuming.start_position import offset_or_start, start_position
from minimq.filters import message_filter
from minimq.options import nameserver_addresses
from minimq_broker.replication.controller import parse as parse_controller
from minimq_cli.line_format import LineFormat
from minimq_common import names
from minimq_common.errors import InvalidArgument
from minimq_common.model import Message
from minimq_common.security import access_document
from minimq_common.serving.options import option, read_config
from minimq_common.text_units import bytes_of, seconds_of
from minimq_common.timestamps import start_ms, timestamp_ms
from pyspark_minimq import option_values, write_options
from pyspark_minimq.errors import MinimqSparkError
from pyspark_minimq.option_table import Mode
from pyspark_minimq.options import check_options, parse_read_options, parse_stream_options
from pyspark_minimq.stream_planning import StreamOffset
from pyspark_minimq.write_options import parse_write_options

_INVALID: Final = (InvalidArgument,)
_SPARK: Final = (MinimqSparkError,)

_WHERES: Final = (
    "region = 'eu' AND amount > 10",
    "a IS NULL OR NOT (b IS NOT NULL)",
    "a BETWEEN 1 AND 2.5e3",
    "TAGS IN ('paid', 'refunded')",
    "KEYS = 'o-17' OR KEYS STARTSWITH 'o'",
    "\"a b\" CONTAINS 'it''s' AND c <> true",
    "a NOT IN (1, 2, 3) AND b NOT BETWEEN 'x' AND 'y'",
    "((((a = 1))))",
    "",
)
_TAGS: Final = ("*", "paid || refunded", "a", "a || b || c", "a,b", "a* || b", "'a'", "", "||")
_TIMES: Final = (
    *("2026-01-31T08:00Z", "2026-01-31T08:00:00.123456+05:30", "-24h", "-1h30m", "1769846400000ms", "1769846400", "0"),
    *(
        "earliest",
        "latest",
        "9999-12-31T23:59:59.999999-23:59",
        "0001-01-01T00:00:00+23:59",
        "2026-W05-6T00Z",
        "20260131",
    ),
)
_NAMES: Final = (
    "orders",
    "%RETRY%g",
    "room@broker-a",
    "127.0.0.1:9876",
    "[::1]:1,localhost:2",
    "etcd://h:1,h:2",
    "broker-a:0",
)
_OFFSETS: Final = (
    '{"t": {"broker-a": {"0": 5, "1": -2}}}',
    '{"t": {"broker-a": [0, 1]}}',
    '{"v": 2, "end": {"t": {"broker-a": {"0": 5}}}, "topic_ids": {"t": {"broker-a": [17, "abc"]}}}',
    '{"v": 2, "from": {"t": {"broker-a": {"0": 1}}}, "end": {"t": {"broker-a": {"0": 5}}}, "topic_ids": {}}',
    '{"version": 1, "offsets": [{"topic": "t", "broker": "a", "queue": 0, "offset": 7, "topic_id": 1, "term": 2}]}',
    "earliest",
    "[[[[]]]]",
)
_LINES: Final = (
    '{"body": "x", "tag": "a", "keys": ["k"], "properties": {"a": "b"}}',
    '{"body_base64": "eA==", "id": 17, "kind": true}',
    '{"body": "\\ud800", "id": "\\u0000"}',
    '{"id": [1], "kind": null}',
    "plain text",
    "region=eu",
    "\ufeff{}",
)
_TOML: Final = (
    'listen = "127.0.0.1:0"\nretention = "3d"\nsync = true\nqueues = 4\ncolours = ["a", "b"]\nlevel = "info"\n',
    "a.b = 1\n[table]\nx = 1979-05-27T07:32:00Z\n",
    "queues = 0x10\nretention = inf\n",
    "list = [[[1, 2], {a = 1}]]\n",
)


_ACCESS: Final = (
    '[roles]\nr = []\n[users.bob]\nroles = ["r"]\nrules = ["allow read topic t*"]\n',
    '[users.alice]\nkeys.aaaaaaaa = { hash = "' + "0" * 64 + '", expires_ms = 7 }\n',
)


def _read_access(text: str) -> None:
    found = access_document.from_toml(text.encode(errors="surrogatepass"))
    assert access_document.from_toml(access_document.to_toml(found).encode()) == found


def _texts(*samples: str) -> Callable[[Random], str]:
    return lambda rng: mutation.text(rng, samples)


def _tried(*calls: Callable[[Any], object], errors: tuple[type[Exception], ...] = _INVALID) -> Callable[[Any], None]:
    """Return a function that gives an input to all of some functions, each of which may reject it."""

    def call_all(given: Any) -> None:
        for call in calls:
            try:
                call(given)
            except errors:
                continue

    return call_all


_MESSAGES: Final = [
    SimpleNamespace(tag=tag, keys=keys, properties=properties)
    for tag, keys, properties in (
        (None, (), {}),
        ("paid", ("o-17", ""), {"a": "1", "b": "true", "region": "eu", "amount": "11", "c": "\u0663"}),
        ("", ("\u00b2",), {"a": "1e9999", "b": "x" * 3000, "a b": "it's", "c": "9" * 5000}),
    )
]


def _filter(where: str) -> None:
    made = message_filter("*", where)
    made.apply(list(_MESSAGES))
    assert message_filter("*", where).text == made.text


def _make_options(
    keys: tuple[str, ...], values: tuple[str, ...], base: dict[str, str]
) -> Callable[[Random], dict[str, str]]:
    def make(rng: Random) -> dict[str, str]:
        chosen = {rng.choice(keys): mutation.text(rng, values) for _ in range(rng.randint(1, 3))}
        return {**base, **chosen}

    return make


_READ_KEYS: Final = (
    *(
        "topic",
        "subscribe",
        "subscribePattern",
        "assign",
        "tag",
        "startingOffsets",
        "startingTimestamp",
        "endingOffsets",
    ),
    *("endingTimestamp", "failOnDataLoss", "readTimeout", "minPartitions", "minRecordsPerPartition"),
    *("startingOffsetsByTimestamp", "endingOffsetsByTimestamp"),
    *("maxRecordsPerPartition", "consumerGroup"),
    *("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "nameserver", "none"),
)
_WRITE_KEYS: Final = (
    "topic",
    "nameserver",
    "tag",
    "maxBodyBytes",
    "compression",
    "txnAppId",
    "txnVersion",
    "batchBytes",
)
_VALUES: Final = (
    *_OFFSETS,
    *_TIMES,
    *_NAMES,
    *_TAGS,
    "true",
    "64m",
    "30s",
    "100",
    "[a-z]+",
    "(((a+)+)+)",
    "zstd",
    "none",
)


def _stream_offset(text: str) -> None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # Spark reads the file
        return
    if isinstance(value, dict):
        found = StreamOffset.from_json(value)
        found.ranges()
        assert StreamOffset.from_json(json.loads(json.dumps(found.to_json()))) == found


def _json_values(rng: Random) -> str:
    """Return JSON whose values are changed, and mostly still JSON."""
    if rng.random() < 0.3:
        return mutation.text(rng, _OFFSETS)
    return json.dumps(_changed(rng, json.loads(rng.choice(_OFFSETS[:5]))))


def _changed(rng: Random, value: Any) -> Any:
    if rng.random() < 0.1:
        return rng.choice(
            (None, True, -1, 1 << 70, 0.5, 1e400, "", "x", [], {}, [1, 2, 3], {"0": 1}, {"a": {"b": {"c": 1}}})
        )
    if isinstance(value, dict):
        return {
            mutation.text(rng, (key,), 1) if rng.random() < 0.1 else key: _changed(rng, part)
            for key, part in value.items()
        }
    if isinstance(value, list):
        return [_changed(rng, part) for part in value] * rng.choice((1, 1, 1, 2))
    return value


def _make_lines(rng: Random) -> list[bytes]:
    return [mutation.text(rng, _LINES).encode(errors="surrogatepass") for _ in range(3)]


def _read_lines(lines: list[bytes]) -> None:
    for key, tag, is_json in ((None, None, True), ("id", "kind", False), (None, None, False)):
        made = LineFormat(Message("t", b"", None, (), {"a": "b"}), key_field=key, tag_field=tag, is_json=is_json)
        for line in lines:
            with suppress(InvalidArgument):
                made.messages([line], 1)


@dataclass
class _Options:
    listen: str = option("", "Text.")
    retention_s: float = option(1.0, "A number with a unit.")
    sync: bool = option(True, "Yes or no.")
    queues: int = option(1, "A number.")
    colours: tuple[str, ...] = option((), "Texts.")
    level: str | None = option(None, "Text, or nothing.")
    data_dir: Path = option(Path(), "A path.")


class _File(PosixPath):
    """A file that is on no disk."""

    _content: bytes

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        return self._content.decode(encoding or "utf-8", errors or "strict")


def _read_config(content: bytes) -> None:
    file = _File("x.toml")
    object.__setattr__(file, "_content", content)
    read_config(file, _Options)


TARGETS = (
    Target("text.where", _texts(*_WHERES), _filter, _INVALID, 2),
    Target("text.tags", _texts(*_TAGS), wanted_tags, _INVALID),
    Target(
        "text.time",
        _texts(*_TIMES),
        _tried(
            lambda text: timestamp_ms(text, 1.7e9, "start"),
            lambda text: start_ms(text, 1.7e9, "start"),
            start_position,
            lambda text: offset_or_start(text, "to"),
        ),
        (),
    ),
    Target("text.quantity", _texts("3d", "1h30m", "64MiB", "1.5 GB", "0.000000001s"), _tried(seconds_of, bytes_of), ()),
    Target(
        "text.name",
        _texts(*_NAMES),
        _tried(
            *(names.check_topic, names.check_group, names.is_group, names.check_transaction, names.check_broker),
            *(names.check_cluster, names.check_address, names.machine_room_of, nameserver_addresses, parse_controller),
            lambda text: parse_queue("--queue", text, "t"),
            lambda text: properties_of("--property", [text]),
            lambda text: names.check_topic(names.retry_topic(text)),
        ),
        (),
    ),
    Target("text.access", _texts(*_ACCESS), _read_access, _INVALID, 0.5),
    Target("text.lines", _make_lines, _read_lines, _INVALID),
    Target(
        "text.config",
        lambda rng: mutation.text(rng, _TOML)[:2000].encode(errors="surrogatepass"),
        _read_config,
        _INVALID,
    ),
    Target("spark.read-options", _make_options(_READ_KEYS, _VALUES, {"topic": "t"}), parse_read_options, _SPARK),
    Target("spark.stream-options", _make_options(_READ_KEYS, _VALUES, {"topic": "t"}), parse_stream_options, _SPARK),
    Target("spark.any-options", _make_options(_READ_KEYS, _VALUES, {}), check_options, _SPARK, 0.5),
    Target(
        "spark.write-options",
        _make_options(_WRITE_KEYS, _VALUES, {"topic": "t"}),
        lambda given: [parse_write_options(given, mode) for mode in (Mode.BATCH, Mode.STREAM)],
        _SPARK,
        0.5,
    ),
    Target("spark.offsets", _json_values, lambda text: option_values.offsets("startingOffsets", text), _SPARK),
    Target("spark.queues", _json_values, lambda text: option_values.queues("assign", text), _SPARK),
    Target("spark.checkpoint", _json_values, _stream_offset, (MinimqSparkError,)),
    Target(
        "spark.app-id",
        _texts("app-1", *_NAMES),
        lambda text: write_options.name_of_application(text, text),
        _SPARK,
        0.3,
    ),
)
