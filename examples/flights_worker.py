"""A worker of flights_workers.py: computes the speed of flights, up to 100 in a call. Start as many as you like.

pip install '.[demo]'
python examples/flights_worker.py NAMESERVER GROUP FLIGHTS RESULTS
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Sequence

from minimq import ConsumeResult, Message, Producer, PushConsumer, ReceivedMessage

MILES_PER_NAUTICAL_MILE = 1.15078
MINUTES = 60


def knots(flight: dict[str, float | None]) -> float | None:
    """Return the mean speed of a flight; None if it was cancelled or diverted. Raises an error if it took no time."""
    distance, minutes = flight["distance"], flight["air_time"]
    if distance is None or minutes is None:
        return None
    return distance / MILES_PER_NAUTICAL_MILE / (minutes / MINUTES)


def results(messages: Sequence[ReceivedMessage]) -> bytes:
    """Return a line for each flight. It has the message id, so that readers can drop duplicates."""
    flights = [json.loads(message.body) for message in messages]
    lines = [
        {"id": message.message_id, "carrier": message.tag, "knots": knots(flight)}
        for message, flight in zip(messages, flights, strict=True)
    ]
    return "\n".join(map(json.dumps, lines)).encode()


def main(nameserver: str, group: str, source: str, sink: str) -> None:
    """Work until SIGTERM or Ctrl-C."""
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    consumer = PushConsumer(
        nameserver, group=group, mode="work_queue", batch_size=100, threads=2, max_deliveries=3, retry_delays_s=(0.2,)
    )
    with Producer(nameserver) as producer, consumer:

        def work(messages: list[ReceivedMessage]) -> ConsumeResult:
            producer.send(Message(sink, results(messages)))  # on disk before the flights are acknowledged
            return ConsumeResult.SUCCESS

        consumer.subscribe(source)
        consumer.start(work)
        stopped.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
