"""Rows go where their columns say, and stay in order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minimq import MessageQueue
from minimq.features.tables.destinations import Destination, Destinations, key_hashes
from minimq.sending.selectors import java_hash
from minimq_common.errors import InvalidArgument
from support.cases import for_each

COUNTS = {"broker-a": 3, "broker-b": 2}


def queues(topic: str) -> list[MessageQueue]:
    return [MessageQueue(topic, broker, queue) for broker, count in COUNTS.items() for queue in range(count)]


def split(option: str | None = "orders", **columns: Sequence[object] | pa.Array) -> dict[Destination, list[str]]:
    """Return the bodies by destination; without others they are numbers."""
    count = len(next(iter(columns.values())))
    given = {"body": [str(number) for number in range(count)], **columns}
    batch = pa.RecordBatch.from_pydict({name: pa.array(column) for name, column in given.items()})
    found: dict[Destination, list[str]] = defaultdict(list)
    for destination, rows in Destinations(option, queues).split(batch):
        assert destination not in found  # each comes once
        found[destination] += rows.column("body").to_pylist()
    return dict(found)


def rejection(option: str | None = "orders", **columns: Sequence[object] | pa.Array) -> str:
    with pytest.raises(InvalidArgument) as caught:
        split(option, **columns)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def at(place: int, topic: str = "orders", *, may_move: bool = True) -> Destination:
    return Destination(topic, queues(topic)[place], may_move)


def anywhere(topic: str = "orders") -> Destination:
    return Destination(topic, None)


def test_the_number_of_a_queue_counts_over_all_brokers() -> None:
    ids = [4, None, 0, 6, 4, 1]  # of five queues
    assert split(queue_id=ids) == {at(4): ["0", "4"], anywhere(): ["1"], at(0): ["2"], at(1): ["3", "5"]}
    assert split(queue_id=pa.array([7], pa.int8())) == {at(2): ["0"]}


def test_with_the_name_of_a_broker_it_is_a_queue_of_that_one() -> None:
    found = split(
        queue_id=[1, 1, 3, None, 7, 1], broker_name=["broker-b", "broker-a", None, "broker-b", "broker-c", "broker-b"]
    )
    assert found == {
        at(4, may_move=False): ["0", "5"],
        at(1, may_move=False): ["1"],
        at(3, may_move=False): ["2"],
        anywhere(): ["3"],
        Destination("orders", MessageQueue("orders", "broker-c", 7)): ["4"],  # the sender looks for it
    }


def test_a_key_counts_where_there_is_no_number() -> None:
    place = abs(java_hash("c-1")) % 5
    assert split(queue_id=[None, (place + 1) % 5, None], sharding_key=["c-1", "c-1", None]) == {
        at(place): ["0"],
        at((place + 1) % 5): ["1"],
        anywhere(): ["2"],
    }


def test_queues_are_those_of_each_topic() -> None:
    keys = [f"key-{number}" for number in range(200)]
    topics = ["a" if number % 3 else "b" for number in range(200)]
    found = split(None, topic=topics, sharding_key=keys)
    for number, (topic, key) in enumerate(zip(topics, keys, strict=True)):
        assert str(number) in found[at(abs(java_hash(key)) % 5, topic)]
    assert all(sorted(bodies, key=int) == bodies for bodies in found.values())
    assert sum(map(len, found.values())) == 200


@pytest.mark.parametrize("wrong", [-1, 1 << 31, -(1 << 40)])
def test_numbers_that_no_queue_has_are_rejected(wrong: int) -> None:
    assert f"column 'queue_id' is {wrong} in a row: it must be from 0 to" in rejection(queue_id=[0, wrong])
    assert f"column 'queue_id' is {wrong} in a row" in rejection(queue_id=[0, wrong], broker_name=["broker-a"] * 2)


# ---- The hash ------------------------------------------------------------------------------------


@given(
    keys=st.lists(st.none() | st.text(max_size=70) | st.text("abc", max_size=70), min_size=1, max_size=20),
    skipped=st.integers(0, 5),
)
@settings(deadline=None)
def test_keys_are_hashed_as_elsewhere(keys: list[str | None], skipped: int) -> None:
    column = pa.array([*["skipped"] * skipped, *keys], pa.string()).slice(skipped)
    assert key_hashes(column).to_pylist() == [None if key is None else abs(java_hash(key)) for key in keys]
    assert key_hashes(column.cast(pa.large_string())) == key_hashes(column)


def test_numbers_and_bytes_as_keys() -> None:
    assert key_hashes(pa.array([17, -17, None])) == key_hashes(pa.array(["17", "-17", None]))
    assert key_hashes(pa.array([b"c-1", b"", None])) == key_hashes(pa.array(["c-1", "", None]))
    assert key_hashes(pa.array([b"\xff\x00"], pa.large_binary())) == key_hashes(pa.array(["\xff\0"]))


@for_each("name", ["topic", "sharding_key", "broker_name"])
@for_each("large", [False, True])
def test_what_is_not_utf_8_is_rejected(name: str, large: bool) -> None:
    """Spark lets it pass."""
    wrong = pa.array([b"a", b"a\xff"]).view(pa.string())
    if large:
        wrong = wrong.cast(pa.large_binary()).view(pa.large_string())
    columns = {"queue_id": [0, 0], name: wrong} if name == "broker_name" else {name: wrong}
    text = rejection(None if name == "topic" else "orders", **columns)
    assert text == f"column '{name}' is no text in UTF-8 in a row: repair it (in Spark: make_valid_utf8)"
