"""The bounded buffer of a producer."""

from __future__ import annotations

import threading

import pytest

from minimq.sending.send_buffer import SendBuffer
from minimq_common.errors import BufferFull, Closed

PATIENCE_S = 10.0


def waiting_reserve(buffer: SendBuffer, size: int) -> tuple[threading.Thread, list[str]]:
    """Begin to reserve in a thread; what becomes of it is in the list once the thread ends."""
    said: list[str] = []

    def reserve() -> None:
        try:
            buffer.reserve(1, size)
            said.append("reserved")
        except Closed:
            said.append("closed")

    thread = threading.Thread(target=reserve)
    thread.start()
    return thread, said


def test_room_is_taken_up_to_the_limit_and_given_back() -> None:
    buffer = SendBuffer(100, block_when_full=False)
    buffer.reserve(2, 60)
    buffer.reserve(1, 40)
    with pytest.raises(BufferFull, match="100 bytes wait to be sent, the limit is 100"):
        buffer.reserve(1, 1)
    assert not buffer.try_reserve(1, 1)
    buffer.release(1, 40)
    assert buffer.try_reserve(1, 40)
    assert (buffer.messages, buffer.bytes) == (3, 100)


def test_a_message_larger_than_the_buffer_goes_when_it_is_empty() -> None:
    buffer = SendBuffer(100, block_when_full=False)
    buffer.reserve(1, 500)
    with pytest.raises(BufferFull):
        buffer.reserve(1, 1)
    buffer.release(1, 500)
    buffer.reserve(1, 1)


def test_one_that_blocks_waits_for_room() -> None:
    buffer = SendBuffer(100, block_when_full=True)
    buffer.reserve(1, 100)
    thread, said = waiting_reserve(buffer, 50)
    thread.join(0.05)
    assert not said
    buffer.release(1, 100)
    thread.join(PATIENCE_S)
    assert said == ["reserved"]


def test_closing_ends_the_wait_and_lets_nothing_in() -> None:
    buffer = SendBuffer(100, block_when_full=True)
    buffer.reserve(1, 100)
    thread, said = waiting_reserve(buffer, 50)
    buffer.close()
    thread.join(PATIENCE_S)
    assert said == ["closed"]
    with pytest.raises(Closed):
        buffer.reserve(1, 1)
    with pytest.raises(Closed):
        buffer.try_reserve(1, 1)


def test_waiting_until_it_is_empty_tells_what_is_left() -> None:
    buffer = SendBuffer(100, block_when_full=True)
    assert buffer.wait_until_empty(0.0) == 0
    buffer.reserve(3, 30)
    assert buffer.wait_until_empty(0.01) == 3
    releasing = threading.Timer(0.02, buffer.release, (3, 30))
    releasing.start()
    assert buffer.wait_until_empty(PATIENCE_S) == 0
    releasing.join()
