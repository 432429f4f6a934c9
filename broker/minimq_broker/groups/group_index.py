"""An index of the state's rows by group and topic, so that lookups need not scan the rows of all groups."""

from __future__ import annotations


class GroupIndex:
    """Finds committed offsets and start offsets by group or by topic."""

    def __init__(self) -> None:
        #: Queue ids with an offset, by group and topic id; empty if only the start in a topic is decided.
        self._queues: dict[str, dict[int, set[int]]] = {}
        self._groups: dict[int, set[str]] = {}
        self.offsets = 0

    def __len__(self) -> int:
        return len(self._queues)

    def __contains__(self, group: str) -> bool:
        return group in self._queues

    def names(self) -> list[str]:
        return list(self._queues)

    def topics(self, group: str) -> list[int]:
        return list(self._queues.get(group, ()))

    def queues(self, group: str) -> list[tuple[int, int]]:
        topics = self._queues.get(group, {}).copy()
        return [(topic_id, queue_id) for topic_id, queue_ids in topics.items() for queue_id in queue_ids.copy()]

    def queue_ids(self, group: str, topic_id: int) -> set[int]:
        return self._queues.get(group, {}).get(topic_id, set()).copy()

    def groups(self, topic_id: int) -> set[str]:
        return self._groups.get(topic_id, set()).copy()

    def add(self, group: str, topic_id: int, queue_id: int | None = None) -> None:
        """Add the offset of a group in a queue; without a queue, its start in a topic. Idempotent."""
        queues = self._queues.setdefault(group, {}).setdefault(topic_id, set())
        self._groups.setdefault(topic_id, set()).add(group)
        if queue_id is not None and queue_id not in queues:
            queues.add(queue_id)
            self.offsets += 1

    def forget_group(self, group: str) -> None:
        for topic_id in self.topics(group):
            self._forget(group, topic_id)

    def forget_topic(self, topic_id: int) -> None:
        for group in self.groups(topic_id):
            self._forget(group, topic_id)

    def _forget(self, group: str, topic_id: int) -> None:
        topics, groups = self._queues[group], self._groups[topic_id]
        self.offsets -= len(topics.pop(topic_id))
        groups.discard(group)
        if not topics:
            del self._queues[group]
        if not groups:
            del self._groups[topic_id]
