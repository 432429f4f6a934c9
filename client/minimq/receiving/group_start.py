"""Fixes where a new group begins to read, before its consumer counts as ready."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress

from minimq.connection.client import ClusterClient
from minimq.connection.retry_schedule import longer
from minimq.receiving.assignment import AWAY_TIMEOUT_S
from minimq.transport.client_log import client_logger
from minimq_common.errors import Closed, MiniMQError, Unavailable
from minimq_common.model import Permission
from minimq_common.outage_log import OutageLog
from minimq_proto.v1 import broker_pb2

log = client_logger(__name__)


class GroupStart:
    """Makes all brokers of some topics record where a group begins there. Lives on the event loop of the connection.

    Only "latest" needs it: any other start is the same however late a broker evaluates it. If the group has begun at
    some of the brokers, the others begin at the messages that were stored since then.
    """

    def __init__(self, client: ClusterClient, group: str, start: broker_pb2.StartPosition, timeout_s: float) -> None:
        self._client = client
        self._group = group
        self._start = start
        self._timeout_s = timeout_s
        self._task: asyncio.Task[None] | None = None
        self._topics: Sequence[str] = ()
        self._answered = asyncio.Event()
        #: Pairs of topic and broker name.
        self._decided: set[tuple[str, str]] = set()
        #: All brokers of the topics have recorded the start. On any thread.
        self.is_decided = start.at != broker_pb2.START_AT_LATEST

    def begin(self, topics: Sequence[str]) -> None:
        """Ask the brokers, and retry in the background until all have answered."""
        if not self.is_decided and self._task is None:
            self._topics = topics
            self._task = asyncio.create_task(self._run())

    async def wait(self, timeout_s: float = AWAY_TIMEOUT_S) -> None:
        """Wait until all brokers have recorded the start or one has rejected it, at most for the timeout."""
        if self._task is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._answered.wait()

    async def reach(self, topic: str, broker_name: str) -> None:
        """Ask a broker that has appeared since, before the first messages are taken from it; ignores failures."""
        if self._task is not None and self.is_decided and (topic, broker_name) not in self._decided:
            with suppress(MiniMQError):
                await self._decide()

    def close(self) -> None:
        """Stop asking."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        outage, pause_s = OutageLog(log), 0.0
        while not self.is_decided:
            try:
                await self._decide()
                self.is_decided = True
                self._answered.set()
            except Closed:
                self._answered.set()
                return
            except MiniMQError as error:
                pause_s = longer(pause_s)
                if not error.retriable:  # the consumer gets the same error
                    self._answered.set()
                    pause_s = AWAY_TIMEOUT_S
                message = "group: its start is not fixed yet, trying again group=%s reason=%s"
                outage.failed(message, self._group, error, cause=error)
                await asyncio.sleep(max(pause_s, error.retry_after_s))
        outage.worked("group: its start is fixed group=%s", self._group)

    async def _decide(self) -> None:
        addresses, topics = await self._brokers()
        asked_at = time.monotonic()
        # A lone broker knows itself whether the group has begun.
        is_lone = len(addresses) == 1
        answers = await self._ask(
            addresses, {name: dict.fromkeys(topics[name], 0) for name in addresses}, decide=is_lone
        )
        if not is_lone:
            # The brokers have answered at different times within this duration.
            window_ms = round((time.monotonic() - asked_at) * 1000) + 1
            ago_ms: dict[str, int] = {}
            for answer in answers.values():
                for item in answer.begun:
                    ago_ms[item.topic] = max(item.ago_ms + window_ms, ago_ms.get(item.topic, 0))
            since = {
                name: {
                    topic: max(answers[name].now_ms - ago_ms[topic], 1) if topic in ago_ms else 0
                    for topic in topics[name]
                }
                for name in addresses
            }
            await self._ask(addresses, since, decide=True)
        self._decided |= {(topic, name) for name in addresses for topic in topics[name]}

    async def _brokers(self) -> tuple[dict[str, str], dict[str, list[str]]]:
        addresses: dict[str, str] = {}
        topics: defaultdict[str, list[str]] = defaultdict(list)
        for topic in self._topics:
            route = await self._client.routes.find(topic, self._timeout_s)
            for data in route.queues:
                if not (data.read_queues and data.permission & Permission.READ):
                    continue
                address = route.master_of(data.broker_name)
                if address is None:
                    raise Unavailable(f"broker {data.broker_name} of topic {topic!r} has no master now")
                addresses[data.broker_name] = address
                topics[data.broker_name].append(topic)
        return addresses, topics

    async def _ask(
        self, addresses: dict[str, str], since_ms: dict[str, dict[str, int]], *, decide: bool
    ) -> dict[str, broker_pb2.BeginGroupResponse]:
        requests = {
            name: broker_pb2.BeginGroupRequest(
                group=self._group,
                topics=[broker_pb2.TopicStart(topic=topic, since_ms=ms) for topic, ms in since_ms[name].items()],
                start=self._start,
                decide=decide,
            )
            for name in addresses
        }
        brokers = self._client.connection.brokers
        answers, failures = await brokers.call_all(
            addresses, lambda stub: stub.BeginGroup, requests, self._timeout_s, self._timeout_s
        )
        for name, error in failures.items():
            if error.refresh_route:
                for topic in since_ms[name]:
                    self._client.routes.refresh_soon(topic)
            raise error
        return answers
