"""Fixes where a new group begins to read, before its consumer counts as ready."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Collection
from contextlib import suppress
from typing import NamedTuple

from minimq.connection.client import ClusterClient
from minimq.connection.retry_schedule import longer
from minimq.consuming.assignment import EVER_MS, OFFLINE_TIMEOUT_S
from minimq_common.errors import Closed, MinimqError, Unavailable
from minimq_common.model import Permission
from minimq_common.retry_log import RetryLog
from minimq_proto.v1 import broker_pb2

log = logging.getLogger(__name__)

#: How long to wait for further brokers once one has reported that the group has begun.
_OTHERS_S = 0.25


class _Place(NamedTuple):
    name: str
    address: str
    topics: list[str]


class _Report(NamedTuple):
    place: _Place
    answer: broker_pb2.BeginGroupResponse
    received_at: float


class GroupStart:
    """Makes the brokers of some topics record where a group begins there. Lives on the event loop of the connection.

    Only "latest" needs it: any other start is the same however late a broker evaluates it. A topic is decided once one
    broker has recorded it: the others begin at the messages that were stored since then, also if they answer later.
    """

    def __init__(self, client: ClusterClient, group: str, start: broker_pb2.StartPosition, timeout_s: float) -> None:
        self._client = client
        self._group = group
        self._start = start
        self._timeout_s = timeout_s
        self._task: asyncio.Task[None] | None = None
        self._topics: set[str] = set()
        self._deadline = 0.0
        #: The start is decided, a broker has rejected it, or the wait for brokers that do not answer is over.
        self._is_over = asyncio.Event()
        #: Since when the group has read a topic, on the monotonic clock.
        self._since: dict[str, float] = {}
        self._is_needed = start.at == broker_pb2.START_AT_LATEST
        #: Every topic is decided. On any thread.
        self.is_decided = not self._is_needed

    def begin(self, topics: Collection[str]) -> None:
        """Ask the brokers of topics that were not asked before, and retry in the background."""
        if self._is_needed and not self._topics.issuperset(topics):
            self.close()
            self._topics.update(topics)
            self.is_decided = False
            self._is_over.clear()
            self._deadline = time.monotonic() + OFFLINE_TIMEOUT_S
            self._task = asyncio.create_task(self._run())

    async def wait(self, timeout_s: float = OFFLINE_TIMEOUT_S) -> bool:
        """Wait until messages may be taken, at most for the timeout; return whether they may."""
        if self._is_needed and not self._is_over.is_set():
            left_s = self._deadline - time.monotonic()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(timeout_s, left_s)):
                    await self._is_over.wait()
            if time.monotonic() >= self._deadline:
                self._is_over.set()
        return self._is_over.is_set() or not self._is_needed

    def ago_ms(self, topic: str, on_way_s: float) -> int:
        """Return for how long the group reads a topic when a take arrives that is on its way for at most `on_way_s`."""
        if not self._is_needed:
            return 0
        since = self._since.get(topic)
        return EVER_MS if since is None else round((time.monotonic() - since + on_way_s) * 1000)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        outage, pause_s = RetryLog(log), 0.0
        while True:
            try:
                await self._decide()
                break
            except Closed:
                self._is_over.set()
                return
            except MinimqError as error:
                pause_s = longer(pause_s)
                if not error.retriable:  # the consumer gets the same error
                    self._is_over.set()
                    pause_s = OFFLINE_TIMEOUT_S
                message = "group: its start is not fixed yet, trying again group=%s reason=%s"
                outage.failed(message, self._group, error, cause=error)
                await asyncio.sleep(max(pause_s, error.retry_after_s))
        self.is_decided = True
        self._is_over.set()
        outage.worked("group: its start is fixed group=%s", self._group)

    def _undecided(self) -> set[str]:
        return self._topics - self._since.keys()

    async def _decide(self) -> None:
        """Decide at all brokers that answer. Raises why a topic is not decided at any of them."""
        topics = self._undecided()
        places, failure = await self._places(topics)
        reports, other = await self._ask(
            places, {place.name: dict.fromkeys(place.topics, 0) for place in places}, decide=False
        )
        failure = failure or other
        unheard = topics if failure else set()
        wanted = {report.place.name: self._beginnings(report, unheard) for report in reports}
        asked = [report.place for report in reports if wanted[report.place.name]]
        _, other = await self._ask(asked, wanted, decide=True)
        failure = failure or other
        if self._undecided():
            raise failure or Unavailable("no broker has recorded the start of the group")

    def _beginnings(self, report: _Report, unheard: Collection[str]) -> dict[str, int]:
        """Return `since_ms` of the topics that can be decided at a broker now."""
        begun = {item.topic for item in report.answer.begun}
        found = {}
        for topic in report.place.topics:
            if topic in begun:
                continue
            if (since := self._since.get(topic)) is not None:
                found[topic] = max(report.answer.now_ms - round((report.received_at - since) * 1000) - 1, 1)
            elif topic not in unheard:
                found[topic] = 0
            elif time.monotonic() >= self._deadline:  # the group may have begun at a broker that is offline
                found[topic] = 1
        return found

    async def _places(self, topics: Collection[str]) -> tuple[list[_Place], MinimqError | None]:
        failure: MinimqError | None = None
        addresses: dict[str, str] = {}
        found: defaultdict[str, list[str]] = defaultdict(list)
        for topic in topics:
            try:
                route = await self._client.routes.find(topic, self._timeout_s)
            except Closed:
                raise
            except MinimqError as error:
                failure = error
                continue
            for data in route.queues:
                if not (data.read_queues and data.permission & Permission.READ):
                    continue
                address = route.master_of(data.broker_name)
                if address is None:
                    failure = Unavailable(f"broker {data.broker_name} of topic {topic!r} has no master now")
                else:
                    addresses[data.broker_name] = address
                    found[data.broker_name].append(topic)
        return [_Place(name, address, found[name]) for name, address in addresses.items()], failure

    async def _ask(
        self, places: Collection[_Place], since_ms: dict[str, dict[str, int]], *, decide: bool
    ) -> tuple[list[_Report], MinimqError | None]:
        """Return the reports of brokers, and the failure of one of them, if any."""
        asked = {
            asyncio.create_task(self._report(place, since_ms[place.name], decide=decide)): place for place in places
        }
        pending, ended = set(asked), list[asyncio.Task[_Report]]()
        try:
            while pending:
                left_s = OFFLINE_TIMEOUT_S if self._undecided() else _OTHERS_S
                done, pending = await asyncio.wait(pending, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    break
                ended += done
        finally:
            for task in asked:
                task.cancel()
        failures = {task: error for task in ended if isinstance(error := task.exception(), MinimqError)}
        reports = [task.result() for task in ended if task not in failures]
        if pending and not failures:
            names = ", ".join(sorted(asked[task].name for task in pending))
            return reports, Unavailable(f"not reached: {names}: no answer within {OFFLINE_TIMEOUT_S:g} s")
        return reports, min(failures.values(), key=lambda error: error.retriable, default=None)

    async def _report(self, place: _Place, since_ms: dict[str, int], *, decide: bool) -> _Report:
        request = broker_pb2.BeginGroupRequest(
            group=self._group,
            topics=[broker_pb2.TopicStart(topic=topic, since_ms=ms) for topic, ms in since_ms.items()],
            start=self._start,
            decide=decide,
        )
        limit_s = min(self._timeout_s, OFFLINE_TIMEOUT_S)
        asked_at = time.monotonic()
        try:
            answer = await self._client.connection.brokers.call(
                place.address, lambda stub: stub.BeginGroup, request, limit_s, limit_s
            )
        except MinimqError as error:
            if error.refresh_route:
                for topic in place.topics:
                    self._client.routes.refresh_soon(topic)
            raise
        for item in answer.begun:
            since = asked_at - item.ago_ms / 1000
            self._since[item.topic] = min(since, self._since.get(item.topic, since))
        return _Report(place, answer, time.monotonic())
