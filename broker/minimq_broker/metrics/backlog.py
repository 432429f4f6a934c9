"""The depths of topics and the lags of groups, in a bounded number of series."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minimq_broker.commit.store import Store
from minimq_broker.features.feature import Serving
from minimq_broker.state.facts import Topic
from minimq_broker.state.state import QueueKey, State

#: The label of the series that sums up all topics, or pairs of group and topic, beyond the bound. Not a legal name.
OTHERS = "(others)"
#: Topics, and pairs of a group and a topic, with series of their own: what Prometheus stores for one target easily.
MAX_SERIES = 1_000


@dataclass(frozen=True, slots=True)
class TopicDepth:
    stored: int
    #: Includes deleted messages.
    appended: int


class Backlog:
    """Counts messages by the offsets in the state. Used by one thread at a time."""

    def __init__(self, store: Store, most_series: int, servings: Sequence[Serving] = ()) -> None:
        self._store = store
        self._servings = servings
        self._most_series = most_series
        #: Cached first offsets of queues, which are read from disk. Valid for one pair of `log.cuts` and term.
        self._firsts: dict[QueueKey, int] = {}
        self._firsts_version = (0, 0)

    def topics(self) -> dict[str, TopicDepth]:
        names = self.names()
        ends = self._store.state.ends.copy()
        stored, appended = dict.fromkeys(names.values(), 0), dict.fromkeys(names.values(), 0)
        for queue, end in ends.items():
            name = names.get(queue.topic_id)
            if name is not None:
                stored[name] += max(0, end.offset - self._first(queue))
                appended[name] += end.offset
        return {name: TopicDepth(stored[name], appended[name]) for name in stored}

    def stored(self, topic: Topic) -> int:
        """Return the number of stored messages of a topic."""
        return sum(max(0, self._store.state.end(queue).offset - self._first(queue)) for queue in topic.queue_keys)

    def lags(self) -> dict[tuple[str, str], int]:
        """Return the lag of each group in each topic that it has begun, by group and topic."""
        names = self.names()
        state = self._store.state
        queues = {topic.topic_id: topic.read_queues for topic in state.topics.copy().values()}
        by_pair: dict[tuple[int, str], int] = {}
        for group in state.index.names():
            for topic_id in state.index.topics(group):
                if topic_id in names and topic_id in queues:
                    keys = (QueueKey(topic_id, number) for number in range(queues[topic_id]))
                    by_pair[topic_id, group] = sum(self._lag(state, group, queue) for queue in keys)
        return self.bounded(by_pair)

    def _lag(self, state: State, group: str, queue: QueueKey) -> int:
        # A queue without a commit counts whole: the group has not read anything of it.
        first, end = max(state.offset(group, queue) or 0, self._first(queue)), state.end(queue).offset
        for serving in self._servings:
            if (lag := serving.lag((group, *queue), first, end)) is not None:
                return max(0, lag)
        return max(0, end - first)

    def bounded(self, by_pair: dict[tuple[int, str], int]) -> dict[tuple[str, str], int]:
        """Return counts of pairs of topic id and group, by group and topic name."""
        names = self.names()
        found: dict[tuple[str, str], int] = {}
        for number, ((topic_id, group), count) in enumerate(sorted(by_pair.items())):
            pair = (group, names[topic_id]) if number < self._most_series else (OTHERS, OTHERS)
            found[pair] = found.get(pair, 0) + count
        return found

    def names(self) -> dict[int, str]:
        topics = sorted(self._store.state.topics.copy().values(), key=lambda topic: topic.topic_id)
        return {
            topic.topic_id: topic.name if number < self._most_series else OTHERS for number, topic in enumerate(topics)
        }

    def _first(self, queue: QueueKey) -> int:
        store = self._store
        if not store.log.complete_from and not store.log.floors:
            return 0  # no message was ever deleted
        as_of = (store.log.cuts, store.state.term)
        if as_of != self._firsts_version:
            self._firsts, self._firsts_version = {}, as_of
        if queue not in self._firsts:
            # For an empty queue this is its end, where its next message will be.
            self._firsts[queue] = store.bounds(queue)[0]
        return self._firsts[queue]
