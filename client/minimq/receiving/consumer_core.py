"""The core of consuming: fetches the assigned queues ahead and hands messages out.

Frames arrive on the threads of the pull streams, messages leave on the caller's thread, which also tells the user of
queues that were gained or lost. Failed pulls are tried again by `tick`, which the owner calls from time to time.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import Enum

from minimq.filtering.message_filter import MessageFilter
from minimq.receiving.commits import Commits
from minimq.receiving.consumer_options import ConsumerOptions
from minimq.receiving.fetcher import Fetcher
from minimq.receiving.member_state import Grant
from minimq.receiving.offset_reset import OffsetReset
from minimq.receiving.offset_stores import BrokerOffsets
from minimq.receiving.pull_stream import PullStreams
from minimq.receiving.puller import Puller
from minimq.receiving.received import ReceivedMessage
from minimq.routes.read_places import ReadPlaces
from minimq.transport.broker_link import BrokerLinks
from minimq_common.epochs import granter
from minimq_common.errors import Closed, InvalidArgument, MiniMQError
from minimq_common.model import MessageQueue

log = logging.getLogger(__name__)


class News(Enum):
    """What has become of a queue without the reader's doing."""

    GAINED = "gained"
    LOST = "lost"


class ConsumerCore:
    """The queues that one consumer reads. Thread-safe, but only one thread may take messages.

    Args:
        places: where the queues are read.
        links: connections to brokers.
        group: the consumer group.
        client_id: under which leases are held.
        options: of the consumer.
        lease_over: called with a queue, its epoch and the reason when its broker says so; must not block.
        announce: called by the thread that takes messages with queues that it has gained or lost, before it gets the
            first message of those gained.

    Attributes:
        commits: records how far it is.
        delay_ms: tells how long the messages of a queue wait after they were stored.
        announce_reset: called by the thread that takes messages when a queue goes on elsewhere.
        missed_messages: how many were passed over because they were not stored any more.
    """

    def __init__(
        self,
        places: ReadPlaces,
        links: BrokerLinks,
        group: str,
        client_id: str,
        options: ConsumerOptions,
        lease_over: Callable[[MessageQueue, int, MiniMQError], None],
        announce: Callable[[News, list[MessageQueue]], None] = lambda *_: None,
    ) -> None:
        self._streams = PullStreams(links)
        self.delay_ms: Callable[[MessageQueue], int] = lambda _: 0
        self.announce_reset: Callable[[OffsetReset], None] = lambda _: None
        self.missed_messages = 0
        self._passed_over = 0  # in queues that are not read any more
        self._announce = announce
        #: Protects everything below and all fetchers; notified when there may be something to take or to do.
        self.changed = threading.Condition()
        self._puller = Puller(self.changed, self._streams, places, group, client_id, options, lease_over)
        self._fetchers: dict[MessageQueue, Fetcher] = {}
        timeout_s = options.request_timeout_s
        store = BrokerOffsets(links, lambda queue: places.of(queue).address, group, client_id, timeout_s)
        self.commits = Commits(self.changed, self._fetchers, store, options.recommit_interval_s)
        #: What the user was not told yet, in its order.
        self._news: list[tuple[News, MessageQueue]] = []
        #: The topics whose messages are chosen by their keys or properties.
        self._filtered_by_texts: set[str] = set()
        #: Until when leases hold, by broker name, on the monotonic clock.
        self._trusted_until: dict[str, float] = {}
        self._failure: MiniMQError | None = None
        self._refusal: MiniMQError | None = None
        #: Of which queue messages were handed out last, and how often its reader had moved by then.
        self._taken: tuple[Fetcher, int] | None = None
        self._woken = False
        self._halted = False

    # ---- assignment -----------------------------------------------------------------------------

    def start(self, queue: MessageQueue, grant: Grant, *, tell: bool = True) -> None:
        """Read a queue from an offset on; under a lease when there is an epoch. A queue that is read begins anew.

        The user is told before the first message is handed out, unless `tell` is false.
        """
        with self.changed:
            self._stop(queue, tell=tell)
            fetcher = self._fetchers[queue] = Fetcher(queue, grant.offset, grant.epoch, grant.topic_id)
            fetcher.leased_by = grant.address
            fetcher.term = fetcher.term_taken = grant.term
            fetcher.delay_ms = self.delay_ms(queue)
            fetcher.needs_texts = queue.topic in self._filtered_by_texts
            if tell:
                self._news.append((News.GAINED, queue))
            self._puller.pull(fetcher)
            self.changed.notify_all()

    def renew(self, queue: MessageQueue, grant: Grant) -> bool:
        """Go on reading a queue under a lease that was renewed, where it is read now: nothing is handed out twice.

        Returns:
            False when that cannot be: it is not read, or is another topic's; or it is another lease and its group is
            further, or its broker has served groups all the time: the group was sent elsewhere, or somebody else had
            the queue meanwhile.
        """
        with self.changed:
            fetcher = self._fetchers.get(queue)
            if fetcher is None or fetcher.topic_id != grant.topic_id:
                return False
            same_granter = granter(grant.epoch) == granter(fetcher.epoch)
            if grant.epoch != fetcher.epoch and (same_granter or grant.offset > fetcher.position):
                return False
            self._puller.cancel(fetcher)
            fetcher.leaving = False
            fetcher.to_check = grant.epoch != fetcher.epoch
            fetcher.epoch, fetcher.leased_by = grant.epoch, grant.address
            fetcher.slave = 0
            fetcher.error = fetcher.committed = None
            fetcher.retry_at = 0.0
            fetcher.sure_until = math.inf
            self._puller.pull(fetcher)
            self.changed.notify_all()
            return True

    def stop(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Read queues no more, and forget what was fetched. Returns those that were read, and under which epochs."""
        with self.changed:
            stopped = [fetcher for queue in queues if (fetcher := self._stop(queue, tell=False))]
            self.changed.notify_all()
            return {fetcher.queue: fetcher.epoch for fetcher in stopped}

    def lose(self, queues: Iterable[MessageQueue]) -> None:
        """Read queues no more that were taken away; the user is told by the thread that takes messages."""
        with self.changed:
            for queue in queues:
                self._stop(queue, tell=True)
            self.changed.notify_all()

    def trust(self, broker_name: str, until: float) -> None:
        """Hand nothing out under the leases of a broker after that time, on the monotonic clock."""
        with self.changed:
            self._trusted_until[broker_name] = until
            self.changed.notify_all()

    def doubt(self, queue: MessageQueue, until: float) -> None:
        """Hand nothing out of a queue after that time, on the monotonic clock, until it is started or renewed."""
        with self.changed:
            fetcher = self._fetchers.get(queue)
            if fetcher is not None:
                fetcher.sure_until = min(fetcher.sure_until, until)

    def leave(self, queues: Iterable[MessageQueue]) -> None:
        """Hand nothing more out of these queues; they wait for their owner to commit and stop them."""
        with self.changed:
            for queue in queues:
                fetcher = self._fetchers.get(queue)
                if fetcher is not None:
                    fetcher.leaving = True
                    self._puller.cancel(fetcher)
            self.changed.notify_all()

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that are read, sorted."""
        with self.changed:
            return sorted(self._fetchers)

    def leaving(self) -> list[MessageQueue]:
        """Return the queues that wait to be committed and stopped."""
        with self.changed:
            return [queue for queue, fetcher in self._fetchers.items() if fetcher.leaving]

    def unannounce(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Return the queues of which the user knows that they are this consumer's; he is told no more of them."""
        with self.changed:
            found = [self._fetchers[queue] for queue in queues if queue in self._fetchers]
            known = [fetcher for fetcher in found if fetcher.announced]
            for fetcher in known:
                fetcher.announced = False
            return sorted(fetcher.queue for fetcher in known)

    def want(self, topic: str, wanted: MessageFilter) -> None:
        """Fetch only batches in which a wanted tag may be; to be said before queues of the topic are read."""
        with self.changed:
            self._puller.tag_hashes[topic] = wanted.tag_hashes
            if wanted.reads_texts:
                self._filtered_by_texts.add(topic)

    def pause(self, queues: Iterable[MessageQueue], *, paused: bool) -> None:
        """Hand nothing out of some queues, or again."""
        with self.changed:
            for queue in queues:
                self._fetcher(queue).paused = paused
            self.changed.notify_all()

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at another offset. Raises `InvalidArgument` when the queue is not read."""
        with self.changed:
            fetcher = self._fetcher(queue)
            self._puller.cancel(fetcher)
            fetcher.seek(offset)
            fetcher.sought = True
            self._puller.pull(fetcher)
            self.changed.notify_all()

    def positions(self) -> dict[MessageQueue, int]:
        """Return the offset that each queue's next message has."""
        with self.changed:
            return {queue: fetcher.position for queue, fetcher in self._fetchers.items()}

    def at_end(self) -> bool:
        """Tell whether everything that was stored when last heard of has been handed out."""
        with self.changed:
            return all(
                fetcher.end_offset is not None and fetcher.position >= fetcher.end_offset
                for fetcher in self._fetchers.values()
            )

    @property
    def passed_over(self) -> int:
        """Number of messages that brokers have not sent, since their tags are not wanted."""
        with self.changed:
            return self._passed_over + sum(fetcher.passed_over for fetcher in self._fetchers.values())

    # ---- taking ---------------------------------------------------------------------------------

    def take(self, max_messages: int, timeout_s: float, but: Collection[MessageQueue] = ()) -> list[ReceivedMessage]:
        """Return messages of one queue; nothing when none came in time or a queue has to leave.

        Args:
            max_messages: most messages to return.
            timeout_s: seconds to wait for the first one; `wake` ends the wait.
            but: queues of which nothing is wanted now.

        Raises:
            MiniMQError: a queue cannot be read; other queues go on when called again.
            Closed: the consumer was closed.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            self.tell_news()
            with self.changed:
                while not (self._news or self._puller.resets):
                    self._raise_failure()
                    found = filter(self._may_hand_out, self._fetchers.values())
                    fetcher = next((item for item in found if item.queue not in but), None)
                    if fetcher is not None:
                        return self._take(fetcher, max_messages)
                    left = deadline - time.monotonic()
                    if left <= 0 or self._woken or any(item.leaving for item in self._fetchers.values()):
                        self._woken = False
                        return []
                    self.changed.wait(left)

    def goes_on(self, queue: MessageQueue) -> bool:
        """Tell whether the latest `take` was of this queue, and nobody has sought or begun it anew since."""
        with self.changed:
            fetcher = self._fetchers.get(queue)
            return fetcher is not None and self._taken == (fetcher, fetcher.moves)

    def give_back(self, messages: Sequence[ReceivedMessage]) -> None:
        """Hand out again what the latest `take` has returned last, unless the queue is read elsewhere by now."""
        with self.changed:
            if self.goes_on(messages[0].queue):
                self._fetchers[messages[0].queue].give_back(messages)

    def wake(self) -> None:
        """End the wait of a `take`, or of the next one, that finds nothing."""
        with self.changed:
            self._woken = True
            self.changed.notify_all()

    def _may_hand_out(self, fetcher: Fetcher) -> bool:
        if not fetcher.has_messages:
            return False
        if not fetcher.epoch:
            return True
        # The member may not have noticed yet that its leases are over: this process may have slept.
        trusted_until = self._trusted_until.get(fetcher.queue.broker_name, math.inf)
        return time.monotonic() < min(trusted_until, fetcher.sure_until)

    def _take(self, fetcher: Fetcher, max_messages: int) -> list[ReceivedMessage]:
        # To the back, so that every queue gets its turn, also when this one is damaged.
        self._fetchers[fetcher.queue] = self._fetchers.pop(fetcher.queue)
        messages = fetcher.take(max_messages)
        self._taken = fetcher, fetcher.moves
        fetcher.unsaved = True
        self._puller.pull(fetcher)
        return messages

    def tell_news(self) -> None:
        """Tell the user of queues that were gained and lost; only by the thread that takes messages."""
        with self.changed:
            news, self._news = self._news, []
            resets, self._puller.resets = self._puller.resets, []
            resets = [(fetcher, reset) for fetcher, reset in resets if self._fetchers.get(reset.queue) is fetcher]
            self.missed_messages += sum(reset.missed for _, reset in resets)
            for kind, queue in news:
                fetcher = self._fetchers.get(queue)
                if kind is News.GAINED and fetcher is not None:
                    fetcher.announced = True
        for kind, together in itertools.groupby(news, key=lambda item: item[0]):
            self._announce(kind, [queue for _, queue in together])
        for _, reset in resets:
            self.announce_reset(reset)

    def fail(self, error: MiniMQError) -> None:
        """Let the next `take` raise an error."""
        with self.changed:
            self._failure = error
            self.changed.notify_all()

    def refuse(self, error: MiniMQError | None) -> None:
        """Let each `take` raise an error from now on, or none any more."""
        with self.changed:
            self._refusal = error
            self.changed.notify_all()

    def halt(self) -> None:
        """Hand nothing more out: a `take` that waits raises `Closed`, and so does each further one."""
        with self.changed:
            self._halted = True
            self.changed.notify_all()

    def _raise_failure(self) -> None:
        if self._halted:
            raise Closed("the consumer is closed")
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)  # which would grow with each time
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        for fetcher in self._fetchers.values():
            if fetcher.error is not None and not fetcher.error_told:
                fetcher.error_told = True
                raise fetcher.error

    # ---- fetching -------------------------------------------------------------------------------

    def tick(self) -> None:
        """Try failed pulls again; to be called a few times a second."""
        now = time.monotonic()
        with self.changed:
            for fetcher in self._fetchers.values():
                self._puller.tick(fetcher, now)

    def close(self) -> None:
        """End all streams. Idempotent."""
        with self.changed:
            self._halted = self._puller.closed = True
            streams = self._streams.all()
            self._passed_over += sum(fetcher.passed_over for fetcher in self._fetchers.values())
            self._fetchers.clear()
            self.changed.notify_all()
        for stream in streams:
            stream.close()

    def _fetcher(self, queue: MessageQueue) -> Fetcher:
        fetcher = self._fetchers.get(queue)
        if fetcher is None:
            raise InvalidArgument(f"queue {queue} is not assigned to this consumer")
        return fetcher

    def _stop(self, queue: MessageQueue, *, tell: bool) -> Fetcher | None:
        """End the reading of a queue. The user is told only of the end of what he was told the beginning of."""
        fetcher = self._fetchers.pop(queue, None)
        if fetcher is None:
            return None
        self._puller.cancel(fetcher)
        self._passed_over += fetcher.passed_over
        self.commits.leaves(fetcher)
        if not fetcher.announced:
            self._news = [item for item in self._news if item != (News.GAINED, queue)]
        elif tell:
            self._news.append((News.LOST, queue))
        return fetcher
