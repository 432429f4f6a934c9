"""The state that results from the entries of the CommitLog.

Only `apply` changes the state, one entry at a time in log order: called by the writer of a running master or slave, and
by recovery. Applying the same entries always gives the same state, so a restart restores it exactly. Only the writer
thread calls `apply`. Other threads may look up single values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, assert_never

from minimq_broker.features.feature import OffsetKey, Table
from minimq_broker.features.registry import FEATURES, new_tables
from minimq_broker.groups.group_index import GroupIndex
from minimq_broker.groups.groups import GroupConfig
from minimq_broker.replication.term_history import MAX_TERMS, TermStart
from minimq_broker.state.facts import (
    AtomicBegun,
    CommittedOffset,
    Fact,
    FeatureUsed,
    GroupAgreed,
    GroupDeleted,
    GroupStarted,
    KernelFact,
    OffsetsCommitted,
    PermissionSet,
    RouteFact,
    TermBegun,
    Topic,
    TopicDeleted,
    TopicSet,
)
from minimq_broker.state.producers import ProducerTable
from minimq_broker.state.queue_ends import NO_MESSAGES, BatchApplied, BatchHeld, QueueEnd, QueueKey
from minimq_common.errors import NoPermission, QueueNotFound, TopicNotFound
from minimq_common.model import Permission

__all__ = ["BatchApplied", "Effect", "QueueEnd", "QueueKey", "State"]


class SavedTopics(NamedTuple):
    """The topics of the state that the checkpoint has, by id."""

    #: Log position of that state.
    position: int = 0
    topics: Mapping[int, Topic] = MappingProxyType({})


Effect = Fact | BatchApplied | BatchHeld


class State:
    """Everything a broker knows besides the batches: topics, queue ends, groups, producers, tables of features."""

    def __init__(self) -> None:
        self.position = 0
        #: Start and end of the latest atomic append, as log positions.
        self._atomic = (0, 0)
        self.term = 0
        self.terms: list[TermStart] = []
        self.log_id = ""
        self.permission: int = Permission.READ_WRITE
        self.topics: dict[str, Topic] = {}
        self._names: dict[int, str] = {}
        self.ends: dict[QueueKey, QueueEnd] = {}
        self.committed: dict[tuple[str, int, int], int] = {}
        self.started: dict[tuple[str, int], int] = {}
        self.index = GroupIndex()
        self.used: dict[str, int] = {}
        #: Groups that commit offsets for monitoring only. All values are True: a checkpoint row needs a value.
        self.published: dict[str, bool] = {}
        self.agreements: dict[str, GroupConfig] = {}
        self.producers = ProducerTable()
        #: Number of route changes, counted before and after each is applied; other threads read both.
        self.begun = self.made = 0
        self.changed: set[tuple[Any, ...]] = set()
        #: Versions of the features that have entries in the log, by name.
        self.features: dict[str, int] = {}
        #: The tables of features, by name.
        self.tables: dict[str, Any] = new_tables()
        self._by_fact: dict[type[Fact], Table] = {
            fact: self.tables[name] for name, each in FEATURES.items() for fact in each.facts
        }
        self._by_tag: dict[int, Table] = {each.tag: self.tables[name] for name, each in FEATURES.items()}
        #: Only of tables that override it: offsets are committed often.
        self._offset_moved: list[Callable[[OffsetKey], None]] = [
            table.offset_moved for table in self.tables.values() if type(table).offset_moved is not Table.offset_moved
        ]
        #: Replaced as a whole, after the tables have noted the save.
        self.saved_topics = SavedTopics()

    # ---- lookups -----------------------------------------------------------------------------------

    def topic(self, name: str) -> Topic:
        """Return a topic by name. Raises `TopicNotFound`."""
        topic = self.topics.get(name)
        if topic is None:
            raise TopicNotFound(f"topic {name!r} does not exist on this broker: minimq topic create {name}")
        return topic

    def topic_name(self, topic_id: int) -> str | None:
        """Return the name of a topic, None if there is no topic with this id. Any thread may call this."""
        return self._names.get(topic_id)

    def name_of(self, queue: QueueKey) -> str:
        """Return the display name of a queue, for error messages."""
        name = self.topic_name(queue.topic_id)
        return str(queue) if name is None else f"{queue.queue_id} of topic {name}"

    def is_keyed(self, queue: QueueKey) -> bool:
        """Return whether each key of the topic of a queue belongs to one queue; empty bodies are tombstones then."""
        topic = self.topics.get(self.topic_name(queue.topic_id) or "")
        return topic is not None and bool(topic.key_queues)

    def queue(self, name: str, queue_id: int) -> QueueKey:
        """Return a queue by topic name and number. Raises `TopicNotFound`, `QueueNotFound`."""
        topic = self.topics.get(name) or self.topic(name)
        if not 0 <= queue_id < topic.queues:
            raise QueueNotFound(
                f"topic {name!r} has no queue {queue_id} on this broker: its queues are 0 to {topic.queues - 1}"
            )
        return QueueKey(topic.topic_id, queue_id)

    def end(self, queue: QueueKey) -> QueueEnd:
        """Return the end of a queue; offset 0 if nothing was ever written to it."""
        return self.ends.get(queue, NO_MESSAGES)

    def offset(self, group: str, queue: QueueKey) -> int | None:
        """Return the committed offset of a group, None if there is none."""
        return self.committed.get((group, *queue))

    def check_allowed(self, topic: Topic, wanted: Permission) -> None:
        """Raise `NoPermission` if a topic cannot be written, or read, on this broker now."""
        # Called for each batch: plain integers cost a tenth of enum flags.
        if int(topic.permission) & int(self.permission) & int(wanted):
            return
        what = "writable" if wanted == Permission.WRITE else "readable"
        cause = "" if topic.permission & wanted else ": its own permission does not allow it"
        if not self.permission & wanted:
            cause = f": the whole broker is not {what}, until minimq cluster permission allows it again"
        raise NoPermission(f"topic {topic.name!r} is not {what} on this broker{cause}")

    def groups(self) -> set[str]:
        """Return all groups that have an offset, a start offset or an agreement. Any thread may call this."""
        return {*self.index.names(), *self.agreements.copy()}

    def known_groups(self) -> set[str]:
        """Return `groups()`, plus groups with nothing but a time of last use. Any thread may call this."""
        return self.groups().union(self.used.copy())

    def knows_group(self, group: str) -> bool:
        """Return whether `known_groups()` has this group. Any thread may call this."""
        return group in self.used or self.has_group(group)

    def has_group(self, group: str) -> bool:
        """Return whether `groups()` has this group. Any thread may call this."""
        return group in self.index or group in self.agreements

    @property
    def whole(self) -> int:
        """The end of the log, or the start of an atomic append whose last entries are missing."""
        begin, end = self._atomic
        return begin if self.position < end else self.position

    # ---- changes -----------------------------------------------------------------------------------

    def apply(self, entry: Effect, position: int, at_ms: int = 0) -> None:
        """Apply the effect of the entry that begins at `self.position` and ends at `position`."""
        if isinstance(entry, BatchApplied | BatchHeld):  # nearly all entries
            if isinstance(entry, BatchHeld):
                self._by_tag[entry.tag].held(entry, self)
            else:
                self.ends[entry.queue] = entry.end
                self.changed.add(("end", *entry.queue))
                if entry.released is not None:
                    self._by_tag[entry.released_by].released(entry.released, entry, self)
            if entry.producer_id:
                key = entry.producer_id, entry.place.topic_id, entry.user
                numbers = entry.sequence, entry.settled_before
                self.changed.add(("producer", *key))
                for forgotten in self.producers.add(key, *numbers, entry.place, position):
                    self.changed.add(("producer", *forgotten))
        elif isinstance(entry, AtomicBegun):
            self._atomic = (self.position, position + entry.size)
        elif (table := self._by_fact.get(type(entry))) is not None:
            table.apply(entry, at_ms, self)
        else:
            self._change(entry, at_ms)  # type: ignore[arg-type]
        self.position = position

    def _change(self, entry: KernelFact, at_ms: int) -> None:
        is_told = isinstance(entry, RouteFact)
        self.begun += is_told
        match entry:
            case OffsetsCommitted() | GroupStarted() | GroupAgreed():
                self._change_group(entry)
                self.use_group(entry.group, at_ms)
            case GroupDeleted() | TopicSet() | TopicDeleted():
                self._change_names(entry)
            case PermissionSet() | TermBegun() | FeatureUsed():
                self._change_broker(entry)
            case AtomicBegun():  # see `apply`
                pass
            case _:
                assert_never(entry)  # an entry that is ignored here would be lost on every replica
        self.made += is_told

    def _change_names(self, entry: GroupDeleted | TopicSet | TopicDeleted) -> None:
        match entry:
            case GroupDeleted(group, topics):
                self._forget_group(group)
                for name in topics:
                    self._forget(name)
            case TopicSet(topic):
                self._set(("topic", topic.name), self.topics, topic.name, topic)
                self._names[topic.topic_id] = topic.name
            case TopicDeleted(name):
                self._forget(name)

    def _change_broker(self, entry: PermissionSet | TermBegun | FeatureUsed) -> None:
        match entry:
            case PermissionSet(permission):
                self.permission = permission
                self.changed.add(("permission",))
            case FeatureUsed(name, version):
                self._set(("feature", name), self.features, name, version)
            case TermBegun(term, log_id):
                self.term = term
                self.terms = [*self.terms[1 - MAX_TERMS :], TermStart(term, self.position)]
                self.log_id = log_id or self.log_id
                self.changed.update((("term",), ("terms",), ("log-id",)))

    def _change_group(self, entry: OffsetsCommitted | GroupStarted | GroupAgreed) -> None:
        match entry:
            case OffsetsCommitted(group, offsets, forced, published):
                self._move(group, offsets, forced=forced)
                if published and group not in self.published:
                    self._set(("published", group), self.published, group, value=True)
            case GroupStarted(group, topic_id, offsets, started_ms):
                self._unpublish(group)
                self._set(("started", group, topic_id), self.started, (group, topic_id), started_ms)
                self.index.add(group, topic_id)
                self._move(group, offsets, forced=True)
            case GroupAgreed(group, agreement):
                self.changed.add(("agreement", group))
                if agreement is None:
                    self.agreements.pop(group, None)
                else:
                    self.agreements[group] = agreement
                    self._unpublish(group)

    def _unpublish(self, group: str) -> None:
        if self.published.pop(group, None):
            self.changed.add(("published", group))

    def _move(self, group: str, offsets: Iterable[CommittedOffset], *, forced: bool) -> None:
        for item in offsets:
            key = (group, item.topic_id, item.queue_id)
            if forced or item.offset > self.committed.get(key, -1):
                self._set(("offset", *key), self.committed, key, item.offset)
                self._offset_changed(key)
                self.index.add(*key)

    def _offset_changed(self, key: OffsetKey) -> None:
        for offset_moved in self._offset_moved:
            offset_moved(key)

    def move_offset(self, key: OffsetKey, offset: int) -> None:
        """Set a committed offset, for a feature that has moved it; does not call `Table.offset_moved`."""
        before = self.committed.get(key)
        if offset != before:
            self._set(("offset", *key), self.committed, key, offset)
            if before is None:
                self.index.add(*key)

    def use_group(self, group: str, at_ms: int) -> None:
        """Note that a group was used, so that it does not expire."""
        if at_ms > self.used.get(group, 0):  # the clock of a later master may be behind
            self.used[group] = at_ms
            self.changed.add(("used", group))

    def _forget_group(self, group: str) -> None:
        for topic_id in self.index.topics(group):
            self._forget_rows(group, topic_id)
        self.index.forget_group(group)
        for kind, names in (("agreement", self.agreements), ("used", self.used), ("published", self.published)):
            if names.pop(group, None) is not None:
                self.changed.add((kind, group))

    def _forget_rows(self, group: str, topic_id: int) -> None:
        for queue_id in self.index.queue_ids(group, topic_id):
            key = (group, topic_id, queue_id)
            if self.committed.pop(key, None) is not None:
                self.changed.add(("offset", *key))
            self._offset_changed(key)
        if self.started.pop((group, topic_id), None) is not None:
            self.changed.add(("started", group, topic_id))

    def _set(self, row: tuple[Any, ...], table: dict[Any, Any], key: Any, value: Any) -> None:
        table[key] = value
        self.changed.add(row)

    def _forget(self, name: str) -> None:
        topic = self.topics.pop(name, None)
        self.changed.add(("topic", name))
        if topic is None:
            return
        self._names.pop(topic.topic_id, None)
        for key in [key for key in self.ends if key.topic_id == topic.topic_id]:
            del self.ends[key]
            self.changed.add(("end", *key))
        for group in self.index.groups(topic.topic_id):
            self._forget_rows(group, topic.topic_id)
        self.index.forget_topic(topic.topic_id)
        self.changed.update(("producer", *key) for key in self.producers.forget_topic(topic.topic_id))
        for table in self.tables.values():
            table.topic_deleted(topic, self)

    def note_name(self, name: str) -> None:
        """Index a topic that was loaded from the checkpoint by its id."""
        self._names[self.topics[name].topic_id] = name

    def saved(self) -> None:
        self.changed.clear()
        for table in self.tables.values():
            table.changed.clear()

    def saving(self) -> Callable[[], None]:
        """Return a function that is called once the rows of this moment are on disk, after those of the tables."""
        saved = SavedTopics(self.position, {topic.topic_id: topic for topic in self.topics.values()})

        def done() -> None:
            self.saved_topics = saved

        return done
