"""Dead letters: messages that fail too often are kept with the reason, and resent once the program is fixed.

python examples/dead_letters.py
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from minimq import Admin, ConsumeResult, LocalCluster, Message, Producer, PushConsumer, ReceivedMessage

BODIES = [b'{"price": 480}', b'{"price": "4.80"}', b'{"price": 350}', b"no JSON"]


def run(nameserver: str) -> tuple[list[int], list[str]]:
    """Collect prices with a faulty program, then with a fixed one; return the prices and the remaining dead letters."""
    prices: list[int] = []
    is_mended = False

    def add(messages: list[ReceivedMessage]) -> ConsumeResult:
        for message in messages:
            price = json.loads(message.body)["price"]
            if is_mended and isinstance(price, str):
                price = round(float(price) * 100)
            prices.append(price + 0)  # a text causes a TypeError, and an exception counts as RETRY_LATER
        return ConsumeResult.SUCCESS

    def work(is_done: Callable[[], bool]) -> None:
        with PushConsumer(nameserver, group="till", batch_size=1, max_deliveries=2, retry_delays_s=(0.2,)) as consumer:
            consumer.subscribe("sales")
            consumer.start(add)
            while not is_done():
                time.sleep(0.05)

    with Admin(nameserver) as admin, Producer(nameserver) as producer:
        admin.create_topic("sales", queues=1)
        producer.send_many(Message("sales", body) for body in BODIES)
        work(lambda: len(prices) + len(list(admin.dead_letters("till"))) == len(BODIES))
        for letter in admin.dead_letters("till"):
            print(letter.body, letter.reason)
        is_mended = True
        admin.resend_dead_letters("till", reason="listener raised TypeError")
        work(lambda: len(prices) == len(BODIES) - 1)
        return sorted(prices), [letter.reason for letter in admin.dead_letters("till")]


if __name__ == "__main__":
    with LocalCluster(brokers=1) as cluster:
        found, given_up = run(cluster.nameserver)
    print(f"prices {found}, given up: {given_up}")
