"""Dead letters outlive the segments that they were written to: they are copied before a segment is removed."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import lmdb

from minimq_broker.core.disk import DiskLevel
from minimq_broker.core.retention import Reason, RetentionRules
from minimq_broker.core.state import QueueKey, State
from minimq_broker.store.commit_log import CommitLog
from minimq_broker.store.dead_letter_archive import DeadLetterArchive
from minimq_broker.store.disk import Disk, is_full
from minimq_broker.store.lmdb_file import DAMAGE
from minimq_broker.store.rows import Batch
from minimq_broker.store.salvage import Salvage
from minimq_broker.store.segment import Segment
from minimq_common.errors import StoreFull
from minimq_common.log_handler import ALWAYS_WRITTEN
from minimq_common.names import DEAD_LETTER_PREFIX, DONE_PREFIX

log = logging.getLogger(__name__)

#: Bytes that one transaction copies: it is small, and so is its memory.
_COPIED_BYTES = 8 << 20
#: Rounds of 1,000 batches that one check deletes because of their age.
_AGED_ROUNDS = 10
#: Topics that are kept: dead letters, and what became of them.
_KEPT = (DEAD_LETTER_PREFIX, DONE_PREFIX)
#: One more than archives that may turn out to be damaged while a segment is copied.
_TRIES = 2


class DeadLetters:
    """Keeps the dead letters of one store, and deletes those that are too old or too many.

    Used by one thread at a time.
    """

    def __init__(self, commit_log: CommitLog, rules: RetentionRules, state: Callable[[], State], disk: Disk) -> None:
        self.deleted = 0
        self._log = commit_log
        self._rules = rules
        self._state = state
        self._disk = disk
        #: Topics in the archive that are no more, and where the log ended when that was seen first.
        self._gone: dict[int, int] = {}

    def keep(self, segment: Segment, now_ms: int) -> None:
        """Copy the dead letters of a segment that is about to be removed, synced. Repeating it does no harm.

        Damaged ones are lost, and so are all of them if a full disk needs the space: the log names the group and their
        number.
        """
        salvage = Salvage(segment, self._queues(), partial(self._span, segment))
        if not salvage.queues:
            return
        gone: Counter[tuple[QueueKey, Reason]] = Counter()
        try:
            if not any(self._copy(salvage, now_ms, gone) for _ in range(_TRIES)):
                gone.update(_count(salvage, Reason.DAMAGE))
        except (OSError, lmdb.Error, StoreFull) as error:
            has_no_room = isinstance(error, lmdb.MapFullError)  # free pages are too scattered for what comes
            if not has_no_room and not is_full(error, self._log.path):
                raise
            if not has_no_room and self._disk.look()[1] < DiskLevel.DELETE_EARLY:
                raise StoreFull(
                    f"segment {segment.start} is kept though it is expired, as the disk is too full to copy its dead "
                    f"letters ({error}): free space"
                ) from None
            gone.update(_count(salvage, Reason.SIZE if has_no_room else Reason.DISK))
        finally:
            self._tell(gone)
        if salvage.damage:
            log.error(
                "retention: dead letters of a damaged segment are lost segment=%d error=%s",
                segment.start,
                salvage.damage,
            )
            self._tell(Counter({(queue, Reason.DAMAGE): count for queue, count in salvage.lost.items() if count}))

    def _copy(self, salvage: Salvage, now_ms: int, gone: Counter[tuple[QueueKey, Reason]]) -> bool:
        """Copy the readable dead letters; return whether they are in the archive.

        An archive that is damaged is set aside.
        """
        archive = self._log.archive_file.begin()

        def put(archive: DeadLetterArchive) -> None:
            for queue in salvage.queues:
                batches = salvage.batches(queue)
                while part := list(_up_to(_COPIED_BYTES, batches)):
                    archive.add(part)
                    gone.update(self._cut(now_ms))

        self._log.archive_file.ask(put, None)
        return self._log.archive is archive

    def _span(self, segment: Segment, queue: QueueKey) -> range:
        start = self._log.archive_file.ask(lambda archive: archive.end_of(queue), None) or 0
        for later in self._log.segments:
            try:
                first = later.first_offset(queue) if later.start > segment.start else None
            except DAMAGE:
                continue
            if first is not None:
                return range(start, first)
        return range(start, self._state().end(queue).offset)

    def look(self, now_ms: int, saved_position: int) -> None:
        """Delete excess and expired dead letters from the archive, and those of deleted topics."""
        self._tell(self._cut(now_ms))
        archive = self._log.archive
        if archive is None:
            return
        position = self._state().position
        gone = archive.topic_ids.difference(self._queues())
        self._gone = {topic_id: self._gone.get(topic_id, position) for topic_id in gone}
        if certain := [topic_id for topic_id, seen_at in self._gone.items() if seen_at <= saved_position]:
            self._log.archive_file.ask(lambda archive: archive.forget(certain), None)

    def _cut(self, now_ms: int) -> Counter[tuple[QueueKey, Reason]]:
        gone = Counter[tuple[QueueKey, Reason]]()
        due = (
            (Reason.AGE, partial(_is_old, self._rules, now_ms), _AGED_ROUNDS),
            (Reason.SIZE, partial(_is_too_much, self._rules), None),
        )
        for reason, is_due, rounds in due:
            cut_some = partial(DeadLetterArchive.cut, is_due=is_due, rounds=rounds)
            cut = self._log.archive_file.ask(cut_some, Counter[QueueKey]())
            for queue, count in cut.items():
                gone[queue, reason] += count
        return gone

    def _queues(self) -> dict[int, int]:
        topics = self._state().topics.copy()
        return {topic.topic_id: topic.queues for name, topic in topics.items() if name.startswith(_KEPT)}

    def _groups(self) -> dict[int, str]:
        return {
            topic.topic_id: name.removeprefix(DEAD_LETTER_PREFIX)
            for name, topic in self._state().topics.copy().items()
            if name.startswith(DEAD_LETTER_PREFIX)
        }

    def _tell(self, gone: Counter[tuple[QueueKey, Reason]]) -> None:
        groups = self._groups()
        for (queue, reason), count in sorted(gone.items()):
            if queue.topic_id in groups:
                self.deleted += count
                log.warning(
                    "retention: dead letters deleted group=%s queue=%d count=%d reason=%s",
                    groups[queue.topic_id],
                    queue.queue_id,
                    count,
                    reason,
                    extra=ALWAYS_WRITTEN,
                )


def _is_old(rules: RetentionRules, now_ms: int, stored_ms: int, size: int) -> bool:
    return rules.is_over_age(stored_ms, now_ms)


def _is_too_much(rules: RetentionRules, stored_ms: int, size: int) -> bool:
    return bool(rules.max_bytes) and size > rules.max_bytes


def _count(salvage: Salvage, reason: Reason) -> Counter[tuple[QueueKey, Reason]]:
    gone: Counter[tuple[QueueKey, Reason]] = Counter()
    for queue in salvage.queues:
        gone[queue, reason] += sum(row.count for row in salvage.rows(queue))
    return gone


def _up_to(size: int, batches: Iterator[Batch]) -> Iterator[Batch]:
    while size > 0 and (found := next(batches, None)) is not None:
        yield found
        size -= len(found.entry)
