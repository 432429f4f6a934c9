"""Leads one client to brokers by another way than others take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from minimq import Admin, PullConsumer, PushConsumer, WorkQueueConsumer

if TYPE_CHECKING:
    from minimq.connection.broker_methods import BrokerMethods
    from minimq_common.wire.channels import _Channel


def lead(consumer: PullConsumer | PushConsumer | WorkQueueConsumer | Admin, ways: Mapping[str, str]) -> None:
    """Let a consumer that has not begun, or an `Admin`, reach brokers through something that passes everything on.

    Args:
        consumer: the client, which has a connection of its own.
        ways: what it is to connect to, by the address of the broker.
    """
    if isinstance(consumer, PushConsumer):
        client = consumer._reader.client
    elif isinstance(consumer, Admin):
        client = consumer._masters.calls
    else:
        client = consumer._client if isinstance(consumer, WorkQueueConsumer) else consumer._reader.client
    channels = client.connection._broker_channels
    straight = channels._open  # for calls and streams

    def open_channel(address: str, number: int) -> _Channel[BrokerMethods]:
        return straight(ways.get(address, address), number)

    channels._open = open_channel  # type: ignore[method-assign]
