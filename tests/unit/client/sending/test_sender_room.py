"""The room of a producer: its bound, and the waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from minimq.connection.client import ClusterClient
from minimq.sending.pending_batch import PendingRecords
from minimq.sending.producer_options import ProducerOptions
from minimq.sending.sender import Sender
from minimq_common.errors import BufferFull, Closed, DeadlineExceeded

TIMEOUT_S = 30.0
Make = Callable[..., Sender]


@pytest.fixture
def make() -> Iterator[Make]:
    with ExitStack() as opened:

        def sender(*, block_when_full: bool = True) -> Sender:
            client = opened.enter_context(closing(ClusterClient("127.0.0.1:1")))
            options = ProducerOptions(buffer_bytes=100, block_when_full=block_when_full)
            return opened.enter_context(closing(Sender(client, options)))

        yield sender


def batch() -> PendingRecords:
    return PendingRecords("t", None, completion=lambda _: None)


def test_room_is_reserved_up_to_the_limit_and_released(make: Make) -> None:
    sender, first, second = make(), batch(), batch()
    assert sender.reserve(first, 60) is None
    assert sender.reserve(second, 40) is None
    freed = sender.reserve(second, 1)
    assert freed is not None
    assert not freed.done()
    sender.release(first.memory)
    assert freed.done()
    assert sender.reserve(second, 1) is None
    assert (sender.used_bytes, second.memory) == (41, 41)


def test_a_batch_larger_than_the_buffer_has_room_when_it_is_empty(make: Make) -> None:
    sender, large = make(), batch()
    assert sender.reserve(large, 500) is None
    assert sender.reserve(batch(), 1) is not None
    sender.release(large.memory)
    assert sender.reserve(batch(), 1) is None


def test_a_full_buffer_fails_at_once_or_after_the_deadline(make: Make) -> None:
    for sender, error in ((make(), DeadlineExceeded), (make(block_when_full=False), BufferFull)):
        sender.reserve(batch(), 100)
        freed = sender.reserve(batch(), 1)
        assert freed is not None
        with pytest.raises(error, match="100 bytes wait to be sent, the limit is 100"):
            sender.wait_for_room(freed, time.monotonic() + 0.01)


def test_closing_ends_the_wait_and_rejects_further_messages(make: Make) -> None:
    sender = make()
    sender.reserve(batch(), 100)
    freed = sender.reserve(batch(), 1)
    assert freed is not None
    sender.reject()
    sender.wait_for_room(freed, time.monotonic() + TIMEOUT_S)
    with pytest.raises(Closed):
        sender.reserve(batch(), 1)
