"""Batches found by the tags in their index rows, over segments and in bounded steps."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minimq_broker.log.rows import ReadLimits
from minimq_common.batch.header import tag_hash
from minimq_common.errors import CorruptEntry
from support.kernel_stores import OpenStore, Stores, make_batch

#: The tag of each batch; batch n holds the offsets 3n to 3n + 2. A "-" stands for no tag.
TAGS = "rbbbrgbbb-bbbbbbrbbg" * 3
COUNT = 3
ALL = 1 << 40


def hash_of(tag: str) -> int:
    return tag_hash(None if tag == "-" else tag)


@pytest.fixture(scope="module")
def stored() -> Iterator[OpenStore]:
    """A store of several segments with the batches of `TAGS`."""
    with tempfile.TemporaryDirectory() as folder:
        stores = Stores(Path(folder))
        opened = stores.open(segment_bytes=1 << 16)
        opened.create_topic("t")
        opened.create_topic("other")
        for tag in TAGS:
            opened.submit("t", 0, make_batch([bytes(1500)] * COUNT, None if tag == "-" else tag)).result(20)
            opened.append("other", 0, b"between")
            opened.clock.now_ms += 1
        assert len(opened.store.log.segments) > 2
        yield opened
        stores.close()


wishes = st.builds(
    ReadLimits,
    st.integers(1, 40) | st.just(ALL),
    st.integers(1, 40_000) | st.just(ALL),
    st.sets(st.sampled_from("rgb-x")).map(lambda tags: frozenset(map(hash_of, tags))),
    st.integers(1, 25) | st.just(ALL),
)


@settings(deadline=None)
@given(wishes, st.integers(0, COUNT * len(TAGS)))
def test_steps_find_what_a_look_at_everything_finds(stored: OpenStore, limits: ReadLimits, start: int) -> None:
    queue, end = stored.key("t", 0), COUNT * len(TAGS)
    expected = [
        COUNT * number
        for number, tag in enumerate(TAGS)
        if COUNT * (number + 1) > start and (not limits.tag_hashes or hash_of(tag) in limits.tag_hashes)
    ]
    found, offset = list[int](), start
    while offset < end:
        batches, next_offset = stored.store.search(queue, offset, limits)
        looked_at = -(-next_offset // COUNT) - offset // COUNT
        assert offset < next_offset <= end
        assert looked_at <= limits.max_rows
        assert sum(len(batch.data) for batch in batches[:-1]) < limits.max_bytes
        assert sum(batch.count for batch in batches[:-1]) < limits.max_messages + COUNT
        found += [batch.base_offset for batch in batches]
        offset = next_offset
    assert found == expected
    assert stored.store.search(queue, end, limits) == ([], end)


def test_the_log_is_not_touched_for_what_is_passed_over(stores: Stores, store: OpenStore) -> None:
    stores.damaged.add(store.path)
    for tag in ("blue", "red", "blue"):
        store.submit("t", 0, make_batch([b"x"], tag)).result(20)
    [segment] = store.store.log.segments
    for stored in store.read("t", 0, 0)[::2]:
        with segment._env.begin(write=True) as txn:
            assert txn.delete(stored.position.to_bytes(8, "big"), db=segment._log)
    queue = store.key("t", 0)

    batches, next_offset = store.store.search(queue, 0, ReadLimits(ALL, ALL, frozenset([tag_hash("red")])))
    assert ([batch.base_offset for batch in batches], next_offset) == ([1], 3)
    with pytest.raises(CorruptEntry):
        store.store.search(queue, 0, ReadLimits(ALL, ALL, frozenset([tag_hash("blue")])))
