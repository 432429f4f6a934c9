"""The output of `minimq consume`: what has gone out when it fails, with real pipes."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from itertools import groupby

import pytest

from minimq.consuming.received import EncodedRecords, ReceivedBatch, ReceivedMessage
from minimq_cli.message_output import MessageOutput, OutputHalted, as_body
from minimq_common.batch import builder as batch_builder
from minimq_common.model import Message, MessageQueue

QUEUES = [MessageQueue("t", "b", number) for number in range(2)]


def messages(queue: MessageQueue, first: int, count: int, size: int = 9) -> list[ReceivedMessage]:
    data = batch_builder.encode([Message("t", b"x" * size)] * count, 0, 0, 0, 10)
    return ReceivedBatch(queue, EncodedRecords(first, 0, 0, count, data)).messages(first)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        with contextlib.suppress(OSError):  # closed by the test
            os.close(end)


def taken_back(output: MessageOutput, *, reader_left: bool) -> dict[MessageQueue, int]:
    found = output.take_back(reader_left=reader_left)
    assert len(found) == len(list(groupby(sorted(message.queue for message in found))))
    return {message.queue: message.queue_offset for message in found}


def test_what_the_reader_has_not_taken_is_taken_back_by_queue(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    output = MessageOutput(writing, as_body, threading.Event())
    output.write(messages(QUEUES[0], 100, 4))
    output.write(messages(QUEUES[1], 0, 2))
    output.write(messages(QUEUES[0], 104, 4))
    assert output.count == 10
    assert len(os.read(reading, 25)) == 25  # two lines and a half
    os.close(reading)
    with pytest.raises(BrokenPipeError):
        output.write(messages(QUEUES[1], 2, 5))
    assert taken_back(output, reader_left=True) == {QUEUES[0]: 102, QUEUES[1]: 0}
    assert output.count == 2
    assert taken_back(output, reader_left=True) == {}


def test_a_reader_that_has_left_is_noticed_without_anything_to_write(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    output = MessageOutput(writing, as_body, threading.Event())
    output.write([])
    output.write(messages(QUEUES[0], 0, 3))
    assert len(os.read(reading, 1000)) == 30
    os.close(reading)
    with pytest.raises(BrokenPipeError):
        output.write([])
    assert taken_back(output, reader_left=True) == {}
    assert output.count == 3


def test_a_reader_that_stands_still_holds_up_nothing_that_was_told_to_end(pipe: tuple[int, int]) -> None:
    told = threading.Event()
    output = MessageOutput(pipe[1], as_body, told)
    told.set()
    with pytest.raises(OutputHalted):
        output.write(messages(QUEUES[0], 0, 200_000))
    written = len(os.read(pipe[0], 1 << 20))
    assert written > 0
    assert taken_back(output, reader_left=False) == {QUEUES[0]: written // 10}
    assert output.count == written // 10
