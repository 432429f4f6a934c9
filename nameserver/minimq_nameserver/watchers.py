"""The watched topics of each watcher, and those among them whose routes have changed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Sequence

from minimq_common.bound_check import check_bounds
from minimq_common.errors import InvalidArgument, SystemBusy
from minimq_common.names import check_topic
from minimq_common.security.access_rule import Need, Resource, Verb
from minimq_common.security.caller import current_caller
from minimq_nameserver.bounds import MAX_WATCHED_BY_ALL, MAX_WATCHED_BY_ONE, MAX_WATCHERS
from minimq_nameserver.loop_share import LoopShare
from minimq_proto.v1.nameserver_pb2 import WatchRoutesRequest

#: News of one watcher that are kept apart. With more, it is told of all of its topics anew, in the order in which it
#: watches them: what has changed meanwhile takes no memory.
MOST_NEWS = 1_000
#: Seconds after which a client that found no place is to try again.
_BUSY_RETRY_S = 5.0
#: Topics between two looks at the clock.
_STEP = 100


class Watcher:
    """One watching client.

    Holds names of topics and no routes: a client that reads slowly costs no more than the list of what it watches,
    and gets the latest route of each topic when it does read.
    """

    def __init__(self) -> None:
        #: A set that keeps its order.
        self.topics: dict[str, None] = {}
        self._news: dict[str, None] = {}  # of the same kind
        self._round: deque[str] = deque()  # what is left of telling everything
        self._is_odd = False

    @property
    def has_news(self) -> bool:
        """True if `take` may return something."""
        return bool(self._news or self._round)

    def begin(self, topic: str) -> None:
        """Watch a topic, whose route has to be sent."""
        self.topics[topic] = None
        self._round.append(topic)

    def add_news(self, topic: str) -> None:
        """Note that a topic's route has to be sent."""
        self._news[topic] = None
        if len(self._news) > MOST_NEWS:
            self._news.clear()
            # It goes on where it is: were it to begin again, what comes last would never be told.
            self._round = deque(dict.fromkeys((*self._round, *self.topics)))

    def end(self, topic: str) -> None:
        """Watch a topic no longer."""
        del self.topics[topic]
        self._news.pop(topic, None)

    def take(self) -> str | None:
        """Return the topic whose news has waited longest; None when there is none.

        While everything is told, every other one is what has changed lately.
        """
        self._is_odd = not self._is_odd
        if not self._news or self._is_odd:
            while self._round:
                topic = self._round.popleft()
                if topic in self.topics and topic not in self._news:
                    return topic
        if not self._news:
            return None
        topic = next(iter(self._news))
        del self._news[topic]
        return topic


class Watchers:
    """All watching clients of a name server. Used on its event loop only.

    Until `release` is called nobody is told anything; the news adds up meanwhile. What concerns many topics is done in
    slices.
    """

    def __init__(self, ready: Callable[[Watcher], None]) -> None:
        self._ready = ready
        self._all: set[Watcher] = set()
        #: Mostly one alone: a set for each topic would take most of the memory.
        self._by_topic: dict[str, Watcher | set[Watcher]] = {}
        self._held = True
        self._watched = 0
        self._share = LoopShare()
        self._spreading = LoopShare()
        self._changed: dict[str, None] = {}  # what is still to be told to those who watch it, in that order
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._all)

    @property
    def watched(self) -> int:
        """Number of topics that are watched; one that ten clients watch counts ten times."""
        return self._watched

    def release(self) -> None:
        """Tell everybody what has added up, and from now on whatever comes."""
        self._held = False
        for watcher in self._all:
            if watcher.has_news:
                self._ready(watcher)

    def add(self, watcher: Watcher) -> None:
        """Begin to tell a watcher about its topics."""
        if len(self._all) >= MAX_WATCHERS:
            raise SystemBusy(f"{MAX_WATCHERS} clients watch routes, which is the limit", retry_after_s=_BUSY_RETRY_S)
        self._all.add(watcher)

    def remove(self, watcher: Watcher) -> None:
        """Forget a watcher; what it leaves behind goes in slices."""
        self._all.discard(watcher)
        if watcher.topics:
            self._in_background(self._clear(watcher))

    async def follow(self, watcher: Watcher, request: WatchRoutesRequest) -> None:
        """Set what a watcher watches, as its client says.

        The topics that are new to it count as news.
        """
        async with self._share:
            if len(request.topics) > MAX_WATCHED_BY_ONE:
                raise _too_many()
            await self._share.turn()
            check_bounds(request)
            await self._share.turn()
            wanted = dict.fromkeys(request.topics)
            caller = current_caller()
            if not caller.sees_all:  # a look-up of such a topic gets an error
                for topic in [*wanted]:
                    if not caller.allows(Need(Verb.DESCRIBE, Resource.TOPIC, topic)):
                        del wanted[topic]
                    await self._share.turn()
            await self._share.turn()
            self._check_room(len(wanted.keys() - watcher.topics.keys()))
            await self._drop(watcher, [topic for topic in watcher.topics if topic not in wanted])
            added = [topic for topic in wanted if topic not in watcher.topics]
            for number, topic in enumerate(added):
                self._watch(watcher, topic)
                if number % _STEP == 0:
                    await self._share.turn()

    def publish(self, topics: Collection[str]) -> None:
        """Tell everybody who watches one of these topics that its route has changed."""
        if len(self._by_topic) < len(topics):
            watched = list(self._by_topic.keys() & topics)
        else:
            watched = [topic for topic in topics if topic in self._by_topic]
        if not self._changed and sum(len(self._watching(topic)) for topic in watched[:_STEP]) <= 10 * _STEP:
            for topic in watched[:_STEP]:
                self._spread(topic)
            del watched[:_STEP]
        if watched:
            is_spreading = bool(self._changed)
            self._changed.update(dict.fromkeys(watched))
            if not is_spreading:
                self._in_background(self._spread_all())

    def _check_room(self, added: int) -> None:
        if self._watched + added > MAX_WATCHED_BY_ALL:
            raise SystemBusy(
                f"clients watch {self._watched} topics, and the limit is {MAX_WATCHED_BY_ALL}: poll the routes of "
                "these topics instead",
                retry_after_s=_BUSY_RETRY_S,
            )

    def _watch(self, watcher: Watcher, topic: str) -> None:
        others = self._by_topic.get(topic)
        if others is None:
            self._by_topic[check_topic(topic)] = watcher
        elif isinstance(others, set):
            others.add(watcher)
        else:
            self._by_topic[topic] = {others, watcher}
        watcher.begin(topic)
        self._watched += 1
        if not self._held:
            self._ready(watcher)

    async def _drop(self, watcher: Watcher, topics: Sequence[str]) -> None:
        for number, topic in enumerate(topics):
            watcher.end(topic)
            others = self._by_topic[topic]
            if isinstance(others, set):
                others.remove(watcher)
                if len(others) == 1:
                    self._by_topic[topic] = others.pop()
            else:
                del self._by_topic[topic]
            self._watched -= 1
            if number % _STEP == 0:
                await self._share.turn()

    async def _clear(self, watcher: Watcher) -> None:
        async with self._share:
            await self._drop(watcher, list(watcher.topics))

    async def _spread_all(self) -> None:
        async with self._spreading:
            while self._changed:
                topic = next(iter(self._changed))
                self._spread(topic)
                # Not before: until the last one is told, whatever else changes is added to the rest.
                del self._changed[topic]
                await self._spreading.turn()

    def _spread(self, topic: str) -> None:
        for watcher in self._watching(topic):
            self._notify(watcher, topic)

    def _watching(self, topic: str) -> Collection[Watcher]:
        watching = self._by_topic.get(topic, ())
        return (watching,) if isinstance(watching, Watcher) else watching

    def _notify(self, watcher: Watcher, topic: str) -> None:
        watcher.add_news(topic)
        if not self._held:
            self._ready(watcher)

    def _in_background(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work, name="nameserver-watchers")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _too_many() -> InvalidArgument:
    return InvalidArgument(f"a client watches more than {MAX_WATCHED_BY_ONE} topics, which is the limit")
