"""Leads one client to brokers by another way than others take."""

from __future__ import annotations

from collections.abc import Mapping

from minimq import PullConsumer, PushConsumer
from minimq.transport.broker_link import BrokerLink


def lead(consumer: PullConsumer | PushConsumer, ways: Mapping[str, str]) -> None:
    """Let a consumer that has not begun reach brokers through something that passes everything on.

    Args:
        consumer: the consumer.
        ways: what it is to connect to, by the address of the broker.
    """
    links = consumer._reader._links if isinstance(consumer, PullConsumer) else consumer._links
    straight = links.to

    def to(address: str) -> BrokerLink:
        return straight(ways.get(address, address))

    links.to = to  # type: ignore[method-assign]
