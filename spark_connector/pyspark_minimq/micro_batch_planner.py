"""Plans micro-batches: asks brokers for the ends of queues, and decides where the next micro-batch ends."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping, Set
from contextlib import closing
from functools import partial
from typing import Any

from minimq import MessageQueue, MinimqError, errors
from minimq.connection.retry_schedule import after_waiting
from minimq.consuming.stored_offsets import TopicOnBroker
from pyspark_minimq.connections import queue_finder, range_reader
from pyspark_minimq.errors import MinimqSparkError
from pyspark_minimq.lookup import Lookup
from pyspark_minimq.options import StreamOptions
from pyspark_minimq.planning import LookupResult, place_of
from pyspark_minimq.stream_planning import (
    AvailableOffsets,
    BatchLimits,
    StreamOffset,
    describe_losses,
    first_offset,
    is_below_minimum,
    limit_ends,
    messages_after,
    to_tree,
)

log = logging.getLogger(__name__)

#: Minimum seconds between two requests to one broker (one per topic) while there is nothing new. Spark itself would
#: ask 100 times per second.
IDLE_S = 0.5
#: Limit of the pause before all topics are looked up again, however many a broker has.
MAX_IDLE_S = 5.0
#: Timeout for reading a message to estimate the size of messages.
_SIZE_TIMEOUT_S = 5.0
#: Seconds for which an estimated message size is reused.
_SIZE_LIFETIME_S = 10.0
#: The assumed size if no message can be read.
_DEFAULT_MESSAGE_BYTES = 1024.0
#: Minimum estimate per offset of a compacted batch, because later batches may have all of their messages.
_MIN_COMPACTED_BYTES = 100.0


class MicroBatchPlanner:
    """Plans the micro-batches of one query. Not thread-safe."""

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._subscription = options.read.subscription
        self._timeout_s = options.read.timeout_s
        self.finder = queue_finder(options.read.connection, self._timeout_s)
        self._lookup = Lookup(self.finder, self._subscription, self._timeout_s)
        self._names: list[str] = []
        self._initial: StreamOffset | None = None
        self._frozen: LookupResult | None = None
        self._committed: Mapping[MessageQueue, int] | None = None
        self._commit_failure = ""
        self._sizes: dict[MessageQueue, tuple[float, float]] = {}  # bytes per message, and the time of the estimate
        self._next_lookup_at = 0.0
        self._is_checked = False
        self._offline: Mapping[TopicOnBroker, str] = {}  # brokers that were reported as offline by the last lookup
        self._answered_at: float | None = None
        self._planned_at = time.monotonic()
        self.report: dict[str, Any] | None = None

    def initial(self) -> StreamOffset:
        """Return where a new query begins. Looked up once."""
        if self._initial is None:
            read = self._options.read
            if self._frozen is None:
                bounds = self._lookup.whole(partial=not read.fail_on_data_loss)
            else:
                self._check(self._frozen, None)
                bounds = self._subscription.chosen(self._frozen.bounds)
            strict = read.fail_on_data_loss
            starting = self._lookup.with_retries(
                lambda: self._lookup.offsets_at(read.starting, bounds, fail_on_data_loss=strict)
            )
            self._initial = first_offset(bounds, starting, fail_on_data_loss=strict)
        return self._initial

    def freeze(self) -> None:
        """Ignore messages that arrive after this call."""
        try:
            self._frozen = self._lookup.with_retries(partial(self._look_up_all, partly=False))
        except errors.Unavailable:
            self._frozen = self._look_up_all(partly=True)

    def _look_up_all(self, *, partly: bool) -> LookupResult:
        sight = self._look(frozenset())
        self._lookup.check(sight, partial=partly and bool(sight.bounds or not sight.silent))
        return sight

    def advance(self, done: StreamOffset, limits: BatchLimits) -> StreamOffset | None:
        """Return the end of the next micro-batch; None if there is nothing to read yet."""
        sight = self._current_lookup({place_of(queue) for queue in done.end if self._subscription.includes(queue)})
        self._check(sight, done)
        outlook = messages_after(done, sight, self._subscription)
        self._report_losses(outlook)
        self._publish(outlook.starts)
        is_idle = not outlook.available and not outlook.losses and outlook.ends.keys() == done.end.keys()
        waited_s = time.monotonic() - self._planned_at
        waits = is_idle or (self._frozen is None and is_below_minimum(outlook.available, limits, waited_s))
        if waits and done.start is not None:
            self._next_lookup_at = time.monotonic() + _pause_s(sight)
            self._report(outlook, outlook.starts)
            return None
        ends = limit_ends(outlook, limits, lambda queue: self._message_bytes(queue, outlook.starts[queue]))
        self._report(outlook, ends)
        self._next_lookup_at = 0.0
        self._planned_at = time.monotonic()
        return outlook.until(ends)

    def close(self) -> None:
        self.finder.close()

    # ---- Lookup ---------------------------------------------------------------------------------

    def _current_lookup(self, read: Set[TopicOnBroker]) -> LookupResult:
        if self._frozen is not None:
            untold = read - self._frozen.told  # unknown at the time of the freeze
            if untold:
                topics = {place.topic for place in untold}
                more = self._lookup.with_retries(lambda: self._lookup.look(topics, untold))
                self._frozen = self._frozen.merged_with(more)
            self._frozen = self._without_silent_brokers(self._frozen)
            return self._frozen
        time.sleep(max(0.0, self._next_lookup_at - time.monotonic()))
        sight, failure = self._try_look(read)
        self._report_offline(sight)
        now = time.monotonic()
        if failure is None:
            self._answered_at = now
        elif now - (self._answered_at or self._planned_at) >= self._timeout_s:
            raise after_waiting(failure, self._timeout_s, "readTimeout")
        return sight

    def _without_silent_brokers(self, frozen: LookupResult) -> LookupResult:
        carriers = {place_of(queue) for queue in frozen.bounds}
        give_up_at = time.monotonic() + self._timeout_s
        while True:
            sight, failure = self._try_look(carriers)
            silent = {place: text for place, text in sight.unseen.items() if place in carriers}
            if not silent or time.monotonic() >= give_up_at:
                break
            time.sleep(IDLE_S)
        if carriers and silent.keys() == carriers:
            failure = failure or errors.Unavailable(f"no broker answers: {next(iter(silent.values()))}")
            raise after_waiting(failure, self._timeout_s, "readTimeout")
        bounds = {queue: at for queue, at in frozen.bounds.items() if place_of(queue) not in silent}
        left = LookupResult(bounds, frozen.absent, {**frozen.silent, **silent}, frozen.offline)
        self._report_offline(left)
        return left

    def _try_look(self, read: Set[TopicOnBroker]) -> tuple[LookupResult, MinimqError | None]:
        try:
            sight = self._look(read)
        except MinimqError as error:
            if not error.retriable:
                raise
            return LookupResult({}, silent=dict.fromkeys(read, error.message)), error
        if sight.bounds or sight.absent or not sight.silent:
            return sight, None
        place, reason = next(iter(sight.silent.items()))
        return sight, errors.Unavailable(f"topic {place.topic}: no broker answers: {reason}")

    def _look(self, read: Set[TopicOnBroker]) -> LookupResult:
        try:
            self._names = self._lookup.names()
        except errors.TransportError:
            if not self._names:
                raise
        return self._lookup.look(sorted({*self._names, *(place.topic for place in read)}), read)

    def _check(self, sight: LookupResult, done: StreamOffset | None) -> None:
        """Raise an error for a mistyped name when the query starts. A queue that was read before and is gone is a loss.

        Without `failOnDataLoss`, only logs a chosen queue that does not exist.
        """
        is_new = done is None or done.start is None
        strict = self._options.read.fail_on_data_loss
        if self._is_checked or not (is_new or strict):
            return  # the checkpoint does not contain losses of earlier runs any more
        read = done.end if done is not None else {}
        unseen = sight.unseen
        known = {queue.topic for queue in (*sight.bounds, *read)} | {place.topic for place in unseen}
        if strict or not self._subscription.queues:
            for topic in sorted(set(self._subscription.names()) - known):
                raise errors.TopicNotFound.nowhere(topic)
        if self._subscription.queues and not unseen:
            self._subscription.check(sight.bounds.keys() | read.keys(), fail_on_data_loss=strict)
        self._is_checked = True

    def _message_bytes(self, queue: MessageQueue, offset: int) -> float:
        size, found_at = self._sizes.get(queue, (_DEFAULT_MESSAGE_BYTES, -_SIZE_LIFETIME_S))
        if time.monotonic() - found_at < _SIZE_LIFETIME_S:
            return size
        reader = range_reader(self._options.read.connection, min(self._timeout_s, _SIZE_TIMEOUT_S))
        try:
            with closing(reader.read(queue, offset, offset + 1)) as batches:
                records = next(batches).records
                size = records.size / len(records)
                if records.remaining < len(records):
                    size = max(size, _MIN_COMPACTED_BYTES)
        except MinimqError as error:
            log.warning("the size of messages is not known: %s", error.message)
        self._sizes[queue] = size, time.monotonic()
        return size

    # ---- Reports --------------------------------------------------------------------------------

    def _report_offline(self, sight: LookupResult) -> None:
        offline = self._subscription.unseen(sight.unseen)
        for place, text in offline.items():
            if place not in self._offline:  # the text changes with time
                log.warning("reading what is there: topic %s: %s", place.topic, text)
        self._offline = offline

    def _report_losses(self, outlook: AvailableOffsets) -> None:
        if not outlook.losses:
            return
        what = describe_losses(outlook.losses)
        if self._options.read.fail_on_data_loss:
            raise MinimqSparkError(f"{what}; failOnDataLoss=false goes on with what is left")
        log.warning("going on with what is left: %s", what)

    def _report(self, outlook: AvailableOffsets, ends: Mapping[MessageQueue, int]) -> None:
        behind = sum(outlook.ends.values()) - sum(ends.values())
        self.report = {"behind": behind, "end": to_tree(outlook.ends)}

    def _publish(self, offsets: Mapping[MessageQueue, int]) -> None:
        group = self._options.consumer_group
        if group is None or offsets == self._committed:
            return
        before = self._committed or {}
        failures = self._lookup.publish(group, {q: at for q, at in offsets.items() if before.get(q) != at})
        self._committed = {q: at for q, at in offsets.items() if q not in failures}
        reason = next((f"queue {queue}: {error.message}" for queue, error in failures.items()), "")
        if reason and reason != self._commit_failure:
            log.warning("progress of group %s is not recorded: %s", group, reason)
        self._commit_failure = reason


def _pause_s(sight: LookupResult) -> float:
    questions = Counter(place.broker_name for place in sight.told)
    return min(IDLE_S * max(questions.values(), default=1), MAX_IDLE_S)
