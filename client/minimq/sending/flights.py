"""Tries that are under way, and the streams by which they go."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from minimq.sending.append_stream import AppendStream
from minimq.sending.outgoing import OutgoingBatch
from minimq.transport.broker_link import BrokerLinks
from minimq_common.model import MessageQueue


@dataclass(slots=True, eq=False)
class Flight:
    """One try that is under way."""

    batch: OutgoingBatch
    queue: MessageQueue
    address: str
    began: float
    deadline: float
    stream: AppendStream | None = None


class Flights:
    """All tries of one producer that are under way, and a stream to each broker.

    Not thread-safe: guarded by the lock of its `Dispatcher`.

    Args:
        links: connections to brokers.
    """

    def __init__(self, links: BrokerLinks) -> None:
        self._links = links
        self._under_way: set[Flight] = set()
        self._streams: dict[str, AppendStream] = {}

    def begin(self, flight: Flight) -> None:
        """Take note of a try, before it has a stream."""
        self._under_way.add(flight)

    def stream_for(self, flight: Flight) -> AppendStream:
        """Return the stream by which it goes; a new one when there is none that works. Raises `Closed`."""
        stream = self._streams.get(flight.address)
        if stream is None or stream.ended:
            stream = self._streams[flight.address] = AppendStream(self._links.to(flight.address))
        flight.stream = stream
        return stream

    def landed(self, flight: Flight) -> bool:
        """Take a try out of the air; False when that was done before: only the first outcome counts."""
        if flight not in self._under_way:
            return False  # it took too long, and was given up
        self._under_way.remove(flight)
        return True

    def carry(self, batch: OutgoingBatch) -> bool:
        """Tell whether a try of this batch is under way."""
        return any(flight.batch is batch for flight in self._under_way)

    def late(self, now: float) -> tuple[list[Flight], Iterable[AppendStream]]:
        """Return the tries whose time is over, still under way, and their streams, which are not used any more."""
        late = [flight for flight in self._under_way if now >= flight.deadline]
        silent = {flight.stream for flight in late if flight.stream is not None}
        for stream in silent:
            if self._streams.get(stream.address) is stream:
                del self._streams[stream.address]
        return late, silent

    def clear(self) -> list[OutgoingBatch]:
        """Take all out of the air and return their batches; the streams stay."""
        batches = [flight.batch for flight in self._under_way]
        self._under_way.clear()
        return batches

    def streams(self) -> list[AppendStream]:
        """Return the streams that are open."""
        return list(self._streams.values())
