"""A producer of numbered messages and the members of a group, each in its own process, and their records.

SIGTERM ends a process cleanly.
"""

from __future__ import annotations

import json
import logging
import os
import time
from array import array
from functools import partial
from pathlib import Path

import msgspec
from group_process import Journal, end_of_process, note_commits, steps

from minimq import Message, MinimqError, Producer, PullConsumer, SendReceipt, by_hash

TOPIC, GROUP = "numbered", "readers"
QUEUES = 8
_KEYS = 64
_STEP_S = 0.005
_POLL_S = 0.1
#: Longer than any fault.
_SEND_TIMEOUT_S = 90.0
#: Queue and offset of a message without receipt.
NOWHERE = -1


class Read(msgspec.Struct, tag="read", array_like=True, frozen=True):
    """A poll returned consecutive messages of one queue."""

    at: float
    asked: float
    queue_id: int
    first: int
    numbers: list[int]


class Told:
    """The outcome of each send, saved as files in a folder."""

    def __init__(self) -> None:
        self.queues = array("i")
        self.offsets = array("q")
        self.failed = 0
        self.errors: list[str] = []
        self.seconds = 0.0

    def note(self, number: int, receipt: SendReceipt | None, error: MinimqError | None) -> None:
        if receipt is not None:
            self.queues[number], self.offsets[number] = receipt.queue.queue_id, receipt.queue_offset
        else:
            self.failed += 1
            self.errors = [*self.errors, str(error)][:3]

    def add(self) -> int:
        """Add a message, and return its number."""
        self.queues.append(NOWHERE)
        self.offsets.append(NOWHERE)
        return len(self.queues) - 1

    def save(self, folder: Path) -> None:
        (folder / "queues").write_bytes(self.queues.tobytes())
        (folder / "offsets").write_bytes(self.offsets.tobytes())
        (folder / "rest").write_text(
            json.dumps({"failed": self.failed, "errors": self.errors, "seconds": self.seconds})
        )

    @classmethod
    def load(cls, folder: Path) -> Told:
        told = cls()
        told.queues.frombytes((folder / "queues").read_bytes())
        told.offsets.frombytes((folder / "offsets").read_bytes())
        for name, value in json.loads((folder / "rest").read_text()).items():
            setattr(told, name, value)
        return told


def produce(nameserver: str, rate: int, folder: Path) -> None:
    """Send at a steady rate until SIGTERM, and then save the outcome of each message."""
    end, told, began = end_of_process(), Told(), time.monotonic()
    select = by_hash()
    padding = bytes(90)
    with Producer(nameserver, send_timeout_s=_SEND_TIMEOUT_S) as producer:
        for step in steps(began, _STEP_S, end):
            while len(told.queues) < (step + 1) * _STEP_S * rate:
                number = told.add()
                message = Message(TOPIC, b"%d" % number + padding, keys=[f"key-{number % _KEYS}"])
                producer.send_async(message, selector=select, callback=partial(told.note, number))
        told.seconds = time.monotonic() - began
        producer.flush()
    told.save(folder)


def read(nameserver: str, client_id: str, journal: Path) -> None:
    """Read as a member of the group; writes each poll and each acknowledged commit as a line of JSON to a file."""
    end, parent = end_of_process(), os.getppid()
    lines = Journal(journal)
    logging.disable(logging.WARNING)  # faults are expected
    note_commits(lines, lambda _address: "")
    consumer = PullConsumer(nameserver, group=GROUP, client_id=client_id, start="earliest", commit_interval_s=0.3)
    consumer.subscribe(TOPIC)
    while not end.is_set() and os.getppid() == parent:
        asked = time.monotonic()
        try:
            messages = consumer.poll(_POLL_S, max_messages=500)
        except MinimqError:
            continue
        if messages:
            numbers = [number_in(message.body) for message in messages]
            [queue_id] = {message.queue.queue_id for message in messages}
            lines.add(Read(time.monotonic(), asked, queue_id, messages[0].queue_offset, numbers))
    consumer.close()


def number_in(body: bytes) -> int:
    return int(body.rstrip(b"\0"))
