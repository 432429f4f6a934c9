"""Two stores that are master and slave in turn, through random cuts, crashes, changes of master and copies.

Whatever happened, in the end both are the same, byte by byte, and their states are what their logs add up to. With a
master that waits for its slave, nothing that was acknowledged or seen is ever lost or changed.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing

import pytest

from minimq_broker.backup.check import compare_directories
from minimq_broker.backup.copy import StoreCopy
from minimq_broker.commit.jobs import AppendJob
from minimq_broker.features.staged.staging import TransactionId
from minimq_broker.replication.term_history import common_point
from minimq_broker.state.facts import (
    CommittedOffset,
    Fact,
    GroupDeleted,
    OffsetsCommitted,
    StagedSequences,
    Topic,
    TopicDeleted,
    TopicSet,
    TransactionDecided,
)
from minimq_broker.state.state import QueueKey, State
from minimq_common.batch.records import RecordBatch
from minimq_common.errors import CopyNeeded, NotMaster
from support.states import rows, rows_from_scratch
from support.stores import OpenStore, Stores, batches_of, make_batch, numbered_batch

SEGMENT_BYTES = 48 << 10
TOPICS = ("red", "%DLQ%green")


class Pair:
    """Two replicas and what is known of them from the outside."""

    def __init__(self, stores: Stores, seed: int, *, waits: bool, removes: bool) -> None:
        self.stores = stores
        self.chance = random.Random(seed)
        self.waits = waits
        self.removes = removes
        self.number = 0
        self.copies = 0
        self.anew = 0
        self.linked = False
        self.term = 0
        #: Numbered batches, with their topic and their body.
        self.sent: list[tuple[str, bytes, bytes]] = []
        #: Answers of batches, with the id of their topic and their body.
        self.sending: list[tuple[int, bytes, Future[AppendJob]]] = []
        #: Batches that are staged for the transaction that is not decided, with the id of their topic and their body.
        self.staging: list[tuple[int, int, bytes, Future[AppendJob]]] = []
        #: What makes up each transaction: whether it is known to be decided, the ids of topics and bodies.
        self.deciding: list[tuple[Future[Fact | None], list[tuple[int, bytes]]]] = []
        #: What consumers have read, by queue and offset.
        self.seen: dict[tuple[QueueKey, int], bytes] = {}
        #: Committed offsets that were acknowledged.
        self.committing: list[tuple[CommittedOffset, Future[Fact | None]]] = []
        self.names = ["a", "b"]
        self.replicas = [self.open(which) for which in range(2)]
        self.leading = 0
        self.lead(0)

    @property
    def master(self) -> OpenStore:
        return self.replicas[self.leading]

    @property
    def slave(self) -> OpenStore:
        return self.replicas[1 - self.leading]

    def open(self, which: int) -> OpenStore:
        return self.stores.open(self.names[which], alone=False, segment_bytes=SEGMENT_BYTES)

    def step(self) -> None:
        actions: list[Callable[[], None]] = (
            [self.append] * 10
            + [self.append_numbered] * 6
            + [self.send_again] * 4
            + [self.commit] * 3
            + [self.stage] * 6
            + [self.decide] * 2
            + [self.publish] * 3
            + [self.copy] * 12
            + [self.change_topics] * 2
            + [self.link] * 2
            + [self.cut, self.remove]
            + [self.change_master, self.reopen, self.crash]
        )
        self.chance.choice(actions)()
        self.settle()
        self.look()

    # ---- clients ------------------------------------------------------------------------------------

    def place(self) -> tuple[str, int] | None:
        topics = sorted(self.master.state.topics)
        return (self.chance.choice(topics), self.chance.randrange(2)) if topics else None

    def append(self) -> None:
        if place := self.place():
            self.number += 1
            body = b"%d " % self.number + bytes(self.chance.randint(0, 4_000))
            self.send(*place, make_batch([body]), body)

    def append_numbered(self) -> None:
        if place := self.place():
            self.number += 1
            body = b"numbered %d" % self.number
            self.sent.append((place[0], numbered_batch(self.chance.randint(1, 3), self.number, body), body))
            self.send(*place, *self.sent[-1][1:])

    def send_again(self) -> None:
        if self.sent:
            topic, data, body = self.chance.choice(self.sent[-20:])
            if topic in self.master.state.topics:
                self.send(topic, self.chance.randrange(2), data, body)

    def send(self, topic: str, queue_id: int, data: bytes, body: bytes) -> None:
        topic_id = self.master.state.topic(topic).topic_id
        self.sending.append((topic_id, body, self.master.submit(topic, queue_id, data)))

    def stage(self) -> None:
        if place := self.place():
            self.number += 1
            body = b"staged %d " % self.number + bytes(self.chance.randint(0, 4_000))
            topic_id = self.master.state.topic(place[0]).topic_id
            transaction = TransactionId("x", len(self.deciding))
            future = self.master.submit(*place, numbered_batch(9, self.number, body), transaction)
            self.staging.append((self.number, topic_id, body, future))

    def decide(self) -> None:
        """Decide on most of what was acknowledged; nobody tries again if that fails."""
        staged = [each for each in self.staging if each[3].done() and each[3].exception(0) is None]
        kept = [each for each in staged if self.chance.random() < 0.8]
        decided = TransactionDecided(
            "x", len(self.deciding), b"", (StagedSequences(9, tuple(each[0] for each in kept)),)
        )

        def decide(state: State) -> Fact | None:
            is_complete = not state.transactions.missing(decided, self.master.store.log.start)
            return decided if is_complete else None

        future = self.master.submit_fact(decide, keeps_log=True)
        self.deciding.append((future, [(topic_id, body) for _, topic_id, body, _ in kept]))
        self.staging = []

    def publish(self) -> None:
        self.master.submit_publication("x")

    def commit(self) -> None:
        if place := self.place():
            queue = self.master.key(*place)
            item = CommittedOffset(*queue, self.chance.randint(0, self.master.store.queue_end(queue).offset))
            future = self.master.submit_fact(OffsetsCommitted("g", (item,)), alone=False)
            self.committing.append((item, future))
            self.use_or_delete_group(queue)

    def change_topics(self) -> None:
        name = self.chance.choice(TOPICS)
        if name not in self.master.state.topics:
            self.master.submit_fact(lambda state: TopicSet(Topic(name, state.position, 2, 2)))
        elif self.chance.random() < 0.2:
            self.master.submit_fact(TopicDeleted(name))

    def use_or_delete_group(self, queue: QueueKey) -> None:
        is_there = "h" in self.master.state.groups()
        used = OffsetsCommitted("h", (CommittedOffset(*queue, 0),))
        self.master.submit_fact(GroupDeleted("h") if is_there else used)

    def look(self) -> None:
        """Read what comes last in every queue of both: nobody may ever see anything else there."""
        for replica in self.replicas:
            for topic in replica.state.topics.values():
                for queue in (QueueKey(topic.topic_id, number) for number in range(2)):
                    first, end = replica.store.bounds(queue)
                    for stored in batches_of(replica.store, queue, max(first, end - 3), 100, 1 << 30):
                        [body] = RecordBatch(stored.data).bodies()
                        former = self.seen.setdefault((queue, stored.base_offset), body)
                        assert former == body or not self.waits

    # ---- replicas -----------------------------------------------------------------------------------

    def settle(self) -> None:
        for replica in self.replicas:
            replica.store.call(lambda: None)

    def lead(self, which: int) -> None:
        self.leading = which
        self.linked = False
        self.term += 1
        self.master.store.lead(self.term, waits_for_replicas=self.waits)

    def copy(self, max_bytes: int | None = None) -> None:
        if self.linked:
            self.slave.take_from(self.master, max_bytes or self.chance.choice([1, 3_000, 10_000]))
            if max_bytes or self.chance.random() < 0.7:
                self.master.store.confirm(self.slave.store.end)
            if max_bytes or self.chance.random() < 0.7:
                self.slave.store.confirm(self.master.store.confirmed)

    def cut(self) -> None:
        self.linked = False

    def link(self) -> None:
        """Have the slave go on where its log stops being that of the master."""
        if self.linked:
            return
        if self.slave.store.leads:
            self.slave.store.follow()
        mine, theirs = self.slave.store, self.master.store
        point = common_point(mine.state.terms, mine.end, theirs.state.terms, theirs.end)
        try:
            if point is None or point < theirs.log.start:
                raise CopyNeeded("there is nothing to go on from")
            mine.truncate(point)
        except CopyNeeded:
            self.copy_anew()
        self.linked = True

    def copy_anew(self) -> None:
        self.anew += 1
        self.slave.close()
        snapshot, source = self.master.store.snapshot(), self.master.store
        with closing(StoreCopy(self.slave.path, snapshot, source.log.start, SEGMENT_BYTES, replace=True)) as copy:
            while copy.position < snapshot.position:
                copy.put(source.entries(copy.position, 1))
            copy.finish()
        self.replicas[1 - self.leading] = self.open(1 - self.leading)
        self.slave.take_from(self.master)  # it counts as in sync again only then

    def change_master(self) -> None:
        """The slave takes over, be it as it may; the former master may not know of it for a while."""
        former = self.master
        self.lead(1 - self.leading)
        if self.chance.random() < 0.5:
            former.store.follow()
            assert isinstance(former.submit("red", 0, make_batch([b"x"])).exception(10), NotMaster)

    def reopen(self) -> None:
        which = self.chance.randrange(2)
        before = rows(self.replicas[which].state)
        self.replicas[which].close()
        self.restarted(which, before)

    def crash(self) -> None:
        """Go on with a copy of the files as they are just now."""
        which = self.chance.randrange(2)
        former = self.replicas[which]
        before = rows(former.state)
        self.copies += 1
        self.names[which] = f"{self.names[which][0]}{self.copies}"
        shutil.copytree(former.path, self.stores.folder / self.names[which])
        self.restarted(which, before)
        former.close()

    def restarted(self, which: int, before: dict[str, object]) -> None:
        self.replicas[which] = self.open(which)
        assert rows(self.replicas[which].state) == before
        if which == self.leading:
            self.lead(self.chance.randrange(2) if self.waits else which)
        self.linked = False

    def remove(self) -> None:
        if self.removes:
            store = self.chance.choice(self.replicas).store
            store.old.remove_first(1 << 60)

    # ---- the end --------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Let the slave catch up."""
        self.settle()
        self.link()
        self.copy(1 << 40)
        self.publish()
        self.settle()
        self.copy(1 << 40)
        self.look()
        assert self.master.state.transactions.unpublished == {}
        assert rows(self.slave.state) == rows(self.master.state)
        assert self.master.store.confirmed == self.slave.store.confirmed == self.master.store.end

    def check_acknowledged(self) -> int:
        """Look for all that was acknowledged and not deleted since, and return for how much of it."""
        state, looked = self.master.state, 0
        topics = {topic.topic_id for topic in state.topics.values()}
        for topic_id, body, future in self.sending:
            if topic_id in topics and future.done() and future.exception(0) is None:
                job = future.result(0)
                queue = QueueKey(topic_id, job.stored_queue_id)
                if job.base_offset >= self.master.store.bounds(queue)[0]:
                    [stored] = batches_of(self.master.store, queue, job.base_offset, 1, 1)
                    assert (stored.base_offset, RecordBatch(stored.data).bodies()) == (job.base_offset, [body])
                    looked += 1
        for item, committing in self.committing:
            if item.topic_id in topics and committing.done() and committing.exception(0) is None:
                assert (state.offset("g", QueueKey(item.topic_id, item.queue_id)) or 0) >= item.offset
        return looked

    def check_transactions(self) -> int:
        """Look for what was decided, all or nothing and once, and return how many transactions were looked for."""
        state, looked = self.master.state, 0
        stored = Counter(
            (topic.topic_id, body)
            for topic in state.topics.values()
            for number in range(2)
            for body in self.master.bodies(
                topic.name, number, self.master.store.bounds(state.queue(topic.name, number))[0]
            )
        )
        assert {count for (_, body), count in stored.items() if body.startswith(b"staged")} <= {1}
        topics = {topic.topic_id for topic in state.topics.values()}
        for future, batches in self.deciding:
            expected = [each for each in batches if each[0] in topics]
            found = [each for each in expected if stored[each]]
            if not self.removes:
                assert found in ([], expected)
            if future.done() and future.exception(0) is None and future.result(0) is not None and not self.removes:
                assert found == expected
                looked += bool(expected)
        return looked


@pytest.mark.parametrize("removes", [False, True], ids=["all kept", "old removed"])
@pytest.mark.parametrize("waits", [True, False], ids=["waits", "does not wait"])
@pytest.mark.parametrize("seed", range(3))
def test_both_are_the_same_in_the_end(stores: Stores, seed: int, waits: bool, removes: bool) -> None:
    pair = Pair(stores, seed, waits=waits, removes=removes)
    for _ in range(200):
        pair.step()
    pair.finish()
    if waits:
        assert pair.check_acknowledged()
        assert pair.check_transactions() or removes
    expected = rows(pair.master.state)
    pair.master.close()
    pair.slave.close()
    found = compare_directories(pair.master.path, pair.slave.path)
    assert (found.difference, found.end) == (None, expected["position"])
    for replica in pair.replicas:
        if replica.store.log.segments[0].start == 0:
            assert rows_from_scratch(replica.path, stores.folder / f"scratch-{replica.path.name}") == expected
        else:
            assert removes
