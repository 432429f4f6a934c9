"""A shop on a cluster: topics, messages and groups as an operator finds them, with some that need a look."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from minimq import (
    Admin,
    Message,
    Producer,
    PullConsumer,
    TransactionalProducer,
    TransactionResolution,
    WorkQueueConsumer,
)
from support.waiting import wait_until

LONG_TOPIC = "returns-from-warehouses-by-carrier-and-postal-code"
#: Topics, and the number of queues that each has on a broker.
TOPICS = {"orders": 4, "payments": 2, "deliveries": 2, "sensor-frames": 2, "reminders": 1, LONG_TOPIC: 1}
REGIONS = ("eu", "us", "apac")
ITEMS = ("espresso machine", "grinder", "kettle", "filter papers", "scale")
#: The one that an operator looks for.
WANTED_KEY = "o-1042"
#: Of payments.
AMOUNTS = ("12.00", "7.50", "12,00", "99.90", "n/a", "4.20", "-", "18.00")
LAGGING, FAILING, LONG = "invoices", "till", "returns-reports-of-all-regions-for-the-finance-department"


def order(number: int, chance: random.Random) -> Message:
    """Return an order."""
    body = {
        "order": number,
        "customer": f"c-{chance.randrange(10_000, 99_999)}",
        "items": [{"name": name, "count": chance.randrange(1, 4)} for name in chance.sample(ITEMS, 2)],
        "total": f"{chance.uniform(5, 900):.2f} EUR",
        "gift": chance.random() < 0.2,
    }
    tag = chance.choice(("paid", "paid", "open"))
    properties = {"region": chance.choice(REGIONS), "trace": f"{chance.getrandbits(64):016x}"}
    return Message("orders", json.dumps(body).encode(), tag=tag, keys=[f"o-{number}"], properties=properties)


def frame(chance: random.Random) -> Message:
    """Return a message that is no text."""
    return Message("sensor-frames", chance.randbytes(chance.randrange(200, 4_000)), keys=[f"s-{chance.randrange(40)}"])


def payment(number: int, amount: str) -> Message:
    """Return a payment, which the till rejects if the amount is no number."""
    body = json.dumps({"payment": number, "amount": amount}).encode()
    return Message("payments", body, tag="card", keys=[f"p-{number}"])


def delivery(number: int) -> Message:
    """Return a delivery."""
    return Message("deliveries", json.dumps({"parcel": number, "carrier": "post"}).encode(), keys=[f"d-{number}"])


@dataclass(frozen=True)
class Shop:
    """The programs of a shop.

    Attributes:
        producer: sends everything.
        members: of the group billing; each holds half of all orders.
        chance: what orders are like.
    """

    producer: Producer
    members: Sequence[PullConsumer]
    chance: random.Random


@contextmanager
def open_shop(nameserver: str) -> Iterator[Shop]:
    """Fill a cluster; members of groups are there within the block."""
    chance = random.Random(1)
    with ExitStack() as opened:
        admin = opened.enter_context(Admin(nameserver))
        for name, queues in TOPICS.items():
            admin.create_topic(name, queues=queues)
        producer = opened.enter_context(Producer(nameserver))
        members = [opened.enter_context(_billing(nameserver)) for _ in range(2)]
        wait_until(lambda: _share(members), what="both members of billing have queues")
        _send(producer, chance)
        admin.reset_offset(LAGGING, "orders", "earliest")
        admin.reset_offset(LONG, LONG_TOPIC, "earliest")
        for member in members:  # each has done a message, has one in flight, and the others wait
            wait_until(partial(member.poll, 0.05, 1))
            member.commit()
            wait_until(partial(member.poll, 0.05, 1))
        _give_up(opened.enter_context(_worker(nameserver, FAILING, "payments")))
        couriers = opened.enter_context(_worker(nameserver, "couriers", "deliveries"))
        wait_until(lambda: couriers.receive(5, invisible_s=1800))
        selling = opened.enter_context(TransactionalProducer(nameserver, group="checkout", check=_unknown))
        for number in (9_001, 9_002):
            transaction = opened.enter_context(selling.transaction())
            transaction.send(payment(number, "12.00"))
            opened.callback(transaction.rollback)
        yield Shop(producer, members, chance)


def _send(producer: Producer, chance: random.Random) -> None:
    for number in range(1_000, 1_120):  # one by one, so that they are spread over all queues
        producer.send(order(number, chance))
    producer.send_many([frame(chance) for _ in range(30)])
    producer.send_many([delivery(number) for number in range(20)])
    producer.send_many([payment(number, amount) for number, amount in enumerate(AMOUNTS)])
    producer.send_many(
        [Message("reminders", b"water the plants", deliver_after_s=3600 * hours) for hours in (1, 2, 24)]
    )
    producer.send(Message("reminders", b"cancel order 1042", deliver_after_s=1800, recallable=True))
    producer.send(Message(LONG_TOPIC, b"a parcel came back"))


def _billing(nameserver: str) -> PullConsumer:
    member = PullConsumer(nameserver, group="billing", auto_commit=False)
    member.subscribe("orders")
    return member


def _share(members: Sequence[PullConsumer]) -> bool:
    """Return whether members share the queues. Who does not poll hands none on."""
    for member in members:
        member.poll(0)
    held = [len(member.assignment) for member in members]
    return min(held) == max(held) > 0


def _worker(nameserver: str, group: str, topic: str) -> WorkQueueConsumer:
    worker = WorkQueueConsumer(nameserver, group=group)
    worker.subscribe(topic)
    return worker


def _give_up(till: WorkQueueConsumer) -> None:
    """Have the till take all payments, and reject those whose amount is no number."""
    seen = 0
    while seen < len(AMOUNTS):
        for message in till.receive(10, timeout=10):
            seen += 1
            amount = json.loads(message.body)["amount"]
            if amount.replace(".", "").isdecimal():
                till.ack(message)
            else:
                till.reject(message, f"the amount {amount!r} is no number")


def _unknown(_message: Message) -> TransactionResolution:
    return TransactionResolution.UNKNOWN
