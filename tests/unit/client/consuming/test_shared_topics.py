"""The division of topics among the members of a group that subscribe to different ones."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from minimq.consuming.assignment import SharedTopics, shared_topics
from minimq_common.model import MemberList

BOTH = {"broker-a", "broker-b"}


def test_a_topic_goes_by_the_first_broker_that_carries_it_where_all_who_have_it_meet() -> None:
    """The member that has `t` alone has not joined at broker-a."""
    lists = {
        "broker-a": MemberList(["new"], {}),
        "broker-b": MemberList(["new", "old"], {"old": ["t"], "new": ["t", "u"]}),
    }
    assert shared_topics("old", {"t": {"broker-b"}}, lists) == [SharedTopics("broker-b", ("t",), ("new", "old"))]
    assert shared_topics("new", {"t": {"broker-b"}, "u": BOTH}, lists) == [
        SharedTopics("broker-a", ("u",), ("new",)),
        SharedTopics("broker-b", ("t",), ("new", "old")),
    ]


subscriptions = st.dictionaries(
    st.sampled_from(["m", "n", "o"]), st.sets(st.sampled_from("tuv"), min_size=1), min_size=1
)
places = st.fixed_dictionaries({topic: st.sets(st.sampled_from(sorted(BOTH)), min_size=1) for topic in "tuv"})


@given(subscriptions, places)
def test_all_come_to_the_same_result(subscribed: Mapping[str, set[str]], places: Mapping[str, set[str]]) -> None:
    """Each member has joined at all brokers that carry a topic of it."""
    lists = {}
    for broker in BOTH:
        there = {name: sorted(own) for name, own in subscribed.items() if any(broker in places[topic] for topic in own)}
        differ = len({tuple(own) for own in there.values()}) > 1
        lists[broker] = MemberList(list(there), there if differ else {})
    found: dict[str, SharedTopics] = {}
    for name, own in subscribed.items():
        mine = shared_topics(name, {topic: places[topic] for topic in own}, lists)
        assert mine is not None
        assert sorted(topic for shared in mine for topic in shared.topics) == sorted(own)
        for shared in mine:
            assert all(found.setdefault(topic, shared) == shared for topic in shared.topics)
    for topic, shared in found.items():
        assert shared.members == tuple(sorted(name for name, own in subscribed.items() if topic in own))
