"""Types of arguments by which handlers get what belongs to their call."""

from __future__ import annotations

from typing import Annotated

from faststream._internal.context import Context
from faststream.annotations import ContextRepo, Logger
from faststream.params import NoCast

from faststream_minimq import broker, message, producer

#: The message that is handled, the broker, and its connection.
MinimqMessage = Annotated[message.MinimqMessage, Context("message")]
MinimqBroker = Annotated[broker.MinimqBroker, Context("broker")]
MinimqConnection = Annotated[producer.MinimqConnection, Context("broker._connection")]

__all__ = ["ContextRepo", "Logger", "MinimqBroker", "MinimqConnection", "MinimqMessage", "NoCast"]
