"""A service that answers requests for the mean delay of a carrier on a day.

    pip install '.[demo]'   # pandas and the flights
    python examples/flights_service.py

Start as many services of a group as you like: each request goes to one of them, and to another one if that is killed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import pandas as pd
from flights_data import departures

from minimq import Admin, LocalCluster, Message, Producer, PushConsumer, ReceivedMessage, Reply
from minimq.errors import RequestFailed


def service(nameserver: str, topic: str, table: pd.DataFrame) -> PushConsumer:
    """Start a service that answers requests such as {"carrier": "UA", "month": 1, "day": 30} until it is closed."""
    delays = table.groupby(["carrier", "month", "day"]).dep_delay.mean().dropna().to_dict()

    def answer(messages: list[ReceivedMessage]) -> list[Reply]:
        questions = [json.loads(message.body) for message in messages]
        found = [delays.get((each["carrier"], each["month"], each["day"])) for each in questions]
        return [
            Reply(error="no such flight departed") if delay is None else Reply(json.dumps(round(delay, 1)).encode())
            for delay in found
        ]

    consumer = PushConsumer(nameserver, group=f"{topic}-service", mode="work_queue", batch_size=50)
    consumer.subscribe(topic)
    consumer.start(answer)
    return consumer


def ask(nameserver: str, topic: str, questions: Iterable[dict[str, object]]) -> list[float | None]:
    """Send all requests at once; return the mean delays in minutes, None where there are no flights."""
    with Producer(nameserver) as producer:
        futures = [producer.request_async(Message(topic, json.dumps(each).encode()), timeout=10) for each in questions]
        return [
            None if isinstance(future.exception(), RequestFailed) else json.loads(future.result().body)
            for future in futures
        ]


def main() -> None:
    table = departures()
    questions: list[dict[str, object]] = [  # on the day of a snow storm
        {"carrier": carrier, "month": 2, "day": 8} for carrier in [*sorted(table.carrier.unique()), "XX"]
    ]
    with LocalCluster(brokers=1) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("delays", queues=4)
        with service(cluster.nameserver, "delays", table):
            for question, delay in zip(questions, ask(cluster.nameserver, "delays", questions), strict=True):
                print(question["carrier"], "no flights" if delay is None else f"{delay:5.1f} minutes late")


if __name__ == "__main__":
    main()
