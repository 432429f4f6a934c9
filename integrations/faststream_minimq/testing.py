"""An in-memory broker, for tests of handlers without servers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream._internal.testing.broker import TestBroker, change_producer
from faststream.exceptions import SubscriberNotFound

from faststream_minimq.broker import MinimqBroker
from faststream_minimq.message import REQUEST, MinimqParser
from faststream_minimq.producer import encode_all
from faststream_minimq.publisher import TopicPublisher
from faststream_minimq.response import MinimqPublishCommand
from faststream_minimq.subscriber import MinimqSubscriber
from minimq import ReceivedMessage, Reply, errors
from minimq.filters import message_filter
from minimq.testing.received import as_received

_numbers = itertools.count()


class TestMinimqBroker(TestBroker[MinimqBroker], broker=MinimqBroker):  # type: ignore[call-arg] # without FastStream
    """Replaces the cluster: a published message is handled at once, and exceptions of handlers are raised.

    Filters apply, and only one subscriber of each group gets a message. There are no delays and no redelivery.

        async with TestMinimqBroker(broker) as memory:
            await memory.publish("hello", "orders")
            handle.mock.assert_called_once_with("hello")

    The arguments are those of all FastStream test brokers: `brokers`, whose subscribers and publishers take part;
    `with_real` to use the real cluster and only record the calls; and `connect_only` to connect the brokers without
    starting them, because `FastStream` does that.
    """

    def create_publisher_fake_subscriber(
        self, broker: MinimqBroker, publisher: TopicPublisher
    ) -> tuple[MinimqSubscriber, bool]:
        """Return a subscriber that records a publisher's messages, and whether it belongs to the application."""
        for subscriber in _subscribers(self.brokers):
            if subscriber.topic == publisher.topic:
                return subscriber, True
        group = f"recorder-{next(_numbers)}" if self.with_real else None
        return broker.subscriber(publisher.topic, group=group, persistent=False), False

    @contextmanager
    def _patch_producer(self, broker: MinimqBroker) -> Iterator[None]:
        config = broker.config.broker_config
        config.in_memory = True
        try:
            with change_producer(config, MemoryProducer(broker, self.brokers)):
                yield
        finally:
            config.in_memory = False

    async def _fake_connect(self, broker: MinimqBroker, *_: object, **__: object) -> None:  # type: ignore[override]
        """Do not connect."""


class MemoryProducer(ProducerProto[MinimqPublishCommand]):
    """Passes messages to subscribers instead of sending them."""

    def __init__(self, broker: MinimqBroker, brokers: Sequence[MinimqBroker]) -> None:
        config, default = broker.config, MinimqParser()
        self._brokers, self._config = brokers, config
        self._parser = ParserComposition(config.broker_parser, default.parse_message)
        self._decoder = ParserComposition(config.broker_decoder, default.decode_message)
        self.codec = config.broker_codec or DefaultCodec()
        self._replies: dict[str, Reply] = {}

    async def publish(self, cmd: MinimqPublishCommand) -> None:
        """Deliver a message to one subscriber of each group, or keep a reply for `request`."""
        encoded = await self.codec.encode(cmd.body, self._config.fd_config._serializer)
        if cmd.request is not None:
            self._replies[cmd.request.message_id] = cmd.reply(*encoded)
        else:
            await self._deliver([as_received(cmd.message(*encoded), next(_numbers))])

    async def publish_batch(self, cmd: MinimqPublishCommand) -> None:
        """Deliver messages to one subscriber of each group; a batch subscriber gets them together."""
        serializer = self._config.fd_config._serializer
        encoded = await encode_all(self.codec, cmd.batch_bodies, serializer)
        await self._deliver([as_received(cmd.message(*each), next(_numbers)) for each in encoded])

    async def request(self, cmd: MinimqPublishCommand) -> Reply:
        """Deliver a request, and return the reply."""
        encoded = await self.codec.encode(cmd.body, self._config.fd_config._serializer)
        request = as_received(cmd.message(*encoded), next(_numbers), {REQUEST: "memory"})
        async with asyncio.timeout(cmd.timeout_s):
            if not await self._deliver([request]):
                raise SubscriberNotFound(f"no subscriber of topic {cmd.destination!r} wants the request")
        reply = self._replies.pop(request.message_id, None)
        if reply is None:
            raise TimeoutError(f"no handler of topic {cmd.destination!r} has replied")
        if reply.error is not None:
            raise errors.RequestFailed(reply.error)
        return reply

    async def _deliver(self, messages: list[ReceivedMessage]) -> bool:
        """Deliver messages of one topic; return whether a subscriber wanted any of them."""
        groups = set[str]()
        wanted = False
        for subscriber in _subscribers(self._brokers):
            options, group = subscriber.options, subscriber.group
            if not messages or subscriber.topic != messages[0].topic or group in groups:
                continue
            chosen = message_filter(options.tags, options.where).apply(messages)
            if group is not None:
                groups.add(group)
            wanted = wanted or bool(chosen)
            step = options.batch_size if options.batch else 1
            for part in _parts(chosen, step):
                await subscriber.process_message(part if options.batch else part[0])
        return wanted


def _parts(messages: list[ReceivedMessage], size: int) -> Iterator[tuple[ReceivedMessage, ...]]:
    for first in range(0, len(messages), size):
        yield tuple(messages[first : first + size])


def _subscribers(brokers: Sequence[MinimqBroker]) -> list[MinimqSubscriber]:
    return [cast("MinimqSubscriber", subscriber) for broker in brokers for subscriber in broker.subscribers]
