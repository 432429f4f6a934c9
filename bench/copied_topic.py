"""The input of a query that copies a topic, and its comparison with the copy: lost, duplicate or wrong messages."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from minimq import Admin, Message, Producer, PullConsumer, by_hash

_KEYS = 200
_MAX_AMOUNT = 1000
_PADDING = b" " * 200
_MAX_EXAMPLES = 8


class Row(NamedTuple):
    """One message: its number in the topic, and an amount that is summed by key."""

    number: int
    key: str
    amount: int


@dataclass
class Verdict:
    """The result of the comparison, in numbers of messages unless stated otherwise.

    Attributes:
        rows: in the input.
        stored: in the copy.
        lost: in the input, but not in the copy.
        twice: duplicates in the copy; each further copy counts.
        strange: in the copy, but not in the input, or with another key or amount.
        wrong_keys: number of keys whose count or sum differs; computed independently of the others.
        disordered: stored after a message of the same key with a higher number, or in another queue than its key.
        examples: some findings as text.
    """

    rows: int = 0
    stored: int = 0
    lost: int = 0
    twice: int = 0
    strange: int = 0
    wrong_keys: int = 0
    disordered: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def is_exact(self) -> bool:
        """True if the copy has each message of the input exactly once, in order."""
        return not (self.lost or self.twice or self.strange or self.wrong_keys or self.disordered)

    def find(self, text: str) -> None:
        if len(self.examples) < _MAX_EXAMPLES:
            self.examples.append(text)


def random_rows(chance: random.Random, count: int) -> list[Row]:
    return [
        Row(number, f"key-{chance.randrange(_KEYS)}", chance.randint(-_MAX_AMOUNT, _MAX_AMOUNT))
        for number in range(count)
    ]


def send(nameserver: str, topic: str, rows: Iterable[Row]) -> None:
    """Send rows; rows of one key go to one queue, in order."""
    with Producer(nameserver) as producer:
        messages = (Message(topic, b"%d %d" % (row.number, row.amount) + _PADDING, keys=(row.key,)) for row in rows)
        producer.send_many(messages, selector=by_hash())


def stored(nameserver: str, topic: str) -> list[list[Row]]:
    """Return the rows in each queue, in order."""
    with Admin(nameserver) as admin:
        queues = admin.route(topic).read_queues()
    found: dict[object, list[Row]] = {queue: [] for queue in queues}
    with PullConsumer(nameserver, group="comparing", auto_commit=False, start="earliest") as consumer:
        consumer.assign(queues)
        while not consumer.at_end():
            for message in consumer.poll(0.05, max_messages=100_000):
                rows = found[message.queue]
                if message.queue_offset != len(rows):
                    raise SystemExit(f"{message} is not the next one of its queue")
                number, amount = message.body.split()
                rows.append(Row(int(number), message.keys[0], int(amount)))
    return list(found.values())


def judge(rows: Sequence[Row], queues: Sequence[Sequence[Row]], *, in_order: bool) -> Verdict:
    """Compare an input with its copy.

    Args:
        rows: the input; the number of each row is its index.
        queues: the copy.
        in_order: whether the rows of one key must be in one queue, in order.
    """
    verdict = Verdict(rows=len(rows), stored=sum(map(len, queues)))
    times = [0] * len(rows)
    for row in (row for queue in queues for row in queue):
        if not 0 <= row.number < len(rows) or rows[row.number] != row:
            verdict.strange += 1
            verdict.find(f"{row} is not in the input")
            continue
        times[row.number] += 1
        if times[row.number] > 1:
            verdict.twice += 1
            verdict.find(f"{row} is there {times[row.number]} times")
    for row, count in zip(rows, times, strict=True):
        if not count:
            verdict.lost += 1
            verdict.find(f"{row} is missing")
    _judge_keys(verdict, rows, queues)
    if in_order:
        _judge_order(verdict, queues)
    return verdict


def _judge_keys(verdict: Verdict, rows: Sequence[Row], queues: Sequence[Sequence[Row]]) -> None:
    wanted, found = _totals(rows), _totals(row for queue in queues for row in queue)
    for key in wanted.keys() | found.keys():
        if wanted[key] != found[key]:
            verdict.wrong_keys += 1
            verdict.find(f"{key}: count and sum are {found[key]} instead of {wanted[key]}")


def _totals(rows: Iterable[Row]) -> defaultdict[str, tuple[int, int]]:
    """Return count and sum by key."""
    totals: defaultdict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for row in rows:
        count, amount = totals[row.key]
        totals[row.key] = count + 1, amount + row.amount
    return totals


def _judge_order(verdict: Verdict, queues: Sequence[Sequence[Row]]) -> None:
    latest: dict[str, tuple[int, int]] = {}
    for queue_index, queue in enumerate(queues):
        for row in queue:
            former_queue, former = latest.get(row.key, (queue_index, -1))
            if former_queue != queue_index or row.number < former:
                verdict.disordered += 1
                verdict.find(f"{row} is behind number {former} or in another queue")
            latest[row.key] = queue_index, max(row.number, former)
