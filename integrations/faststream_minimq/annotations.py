"""Annotations for arguments of handlers that FastStream fills in."""

from __future__ import annotations

from typing import Annotated

from faststream._internal.context import Context
from faststream.annotations import ContextRepo, Logger
from faststream.params import NoCast

from faststream_minimq import broker, message, producer

MinimqMessage = Annotated[message.MinimqMessage, Context("message")]
MinimqBroker = Annotated[broker.MinimqBroker, Context("broker")]
MinimqConnection = Annotated[producer.MinimqConnection, Context("broker._connection")]

__all__ = ["ContextRepo", "Logger", "MinimqBroker", "MinimqConnection", "MinimqMessage", "NoCast"]
