"""The index of groups finds the same as a search of all rows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minimq_broker.state.facts import (
    CommittedOffset,
    Fact,
    GroupDeleted,
    GroupStarted,
    OffsetsCommitted,
    Topic,
    TopicDeleted,
    TopicSet,
)
from minimq_broker.state.state import State
from minimq_broker.state.state_rows import load_row

TOPICS = {1: "one", 2: "two"}
groups = st.sampled_from("gh")
offsets = st.builds(CommittedOffset, st.sampled_from([1, 2]), st.integers(0, 2), st.integers(0, 9))
some_offsets = st.lists(offsets, max_size=3).map(tuple)
facts: st.SearchStrategy[Fact] = st.one_of(
    st.builds(OffsetsCommitted, groups, some_offsets, st.booleans()),
    st.builds(GroupStarted, groups, st.sampled_from([1, 2]), some_offsets, st.just(7)),
    st.builds(GroupDeleted, groups, st.just(())),
    st.sampled_from([TopicSet(Topic(name, topic_id, 3, 3)) for topic_id, name in TOPICS.items()]),
    st.sampled_from([TopicDeleted(name) for name in TOPICS.values()]),
)


def check(state: State) -> None:
    rows = set(state.committed)
    begun = {(group, topic_id) for group, topic_id, _ in rows} | set(state.started)
    assert {(group, *queue) for group in "gh" for queue in state.index.queues(group)} == rows
    assert state.index.offsets == len(rows)
    assert set(state.index.names()) == {group for group, _ in begun}
    for topic_id in TOPICS:
        assert state.index.groups(topic_id) == {group for group, other in begun if other == topic_id}
    assert {state.topic_name(topic_id) for topic_id in TOPICS} - {None} == set(state.topics)


@given(st.lists(facts, max_size=25))
def test_the_index_follows_the_rows(history: list[Fact]) -> None:
    state, saved = State(), State()
    for number, fact in enumerate(history):
        state.apply(fact, number + 1, 1_000 + number)
        check(state)
    for table, row in ((state.committed, "offset"), (state.started, "started")):
        for key, value in table.items():
            load_row(saved, [row, *key], value)
    for name, topic in state.topics.items():
        load_row(saved, ["topic", name], topic)
    check(saved)
    assert set(saved.index.names()) == set(state.index.names())
