"""The bounded buffer of a producer."""

from __future__ import annotations

import threading

import pytest

from minimq.sending.pending_batch import BufferShare
from minimq.sending.send_buffer import SendBuffer
from minimq_common.errors import BufferFull, Closed

TIMEOUT_S = 30.0


def reserved(buffer: SendBuffer, count: int, size: int) -> BufferShare:
    """Return a new share of the buffer."""
    share = BufferShare()
    buffer.reserve(share, count, size)
    return share


def waiting_reserve(buffer: SendBuffer, size: int) -> tuple[threading.Thread, list[str]]:
    """Begin to reserve in a thread; what becomes of it is in the list once the thread ends."""
    said: list[str] = []

    def reserve() -> None:
        try:
            reserved(buffer, 1, size)
            said.append("reserved")
        except Closed:
            said.append("closed")

    thread = threading.Thread(target=reserve)
    thread.start()
    return thread, said


def test_room_is_taken_up_to_the_limit_and_given_back() -> None:
    buffer = SendBuffer(100, block_when_full=False)
    reserved(buffer, 2, 60)
    second = reserved(buffer, 1, 40)
    with pytest.raises(BufferFull, match="100 bytes wait to be sent, the limit is 100"):
        reserved(buffer, 1, 1)
    assert not buffer.try_reserve(second, 1, 1)
    buffer.release(second)
    assert buffer.try_reserve(second, 1, 40)
    assert (buffer.messages, buffer.bytes) == (3, 100)


def test_a_message_larger_than_the_buffer_goes_when_it_is_empty() -> None:
    buffer = SendBuffer(100, block_when_full=False)
    share = reserved(buffer, 1, 500)
    with pytest.raises(BufferFull):
        reserved(buffer, 1, 1)
    buffer.release(share)
    reserved(buffer, 1, 1)


def test_closing_ends_the_wait_and_lets_nothing_in() -> None:
    buffer = SendBuffer(100, block_when_full=True)
    reserved(buffer, 1, 100)
    thread, said = waiting_reserve(buffer, 50)
    buffer.close()
    thread.join(TIMEOUT_S)
    assert said == ["closed"]
    with pytest.raises(Closed):
        reserved(buffer, 1, 1)
    with pytest.raises(Closed):
        buffer.try_reserve(BufferShare(), 1, 1)


def test_waiting_tells_how_many_have_no_outcome_in_time() -> None:
    buffer = SendBuffer(100, block_when_full=True)
    assert buffer.wait(0.0) == 0
    share = reserved(buffer, 3, 30)
    assert buffer.wait(0.01) == 3
    releasing = threading.Timer(0.02, buffer.release, (share,))
    releasing.start()
    assert buffer.wait(TIMEOUT_S) == 0
    releasing.join()


def test_a_wait_does_not_count_later_messages() -> None:
    buffer = SendBuffer(100, block_when_full=True)
    share = reserved(buffer, 2, 10)
    assert buffer.wait(0.0) == 2
    buffer.reserve(share, 1, 10)
    other = reserved(buffer, 4, 10)
    assert (buffer.messages, buffer.wait(0.0)) == (7, 7)
    buffer.release(share)
    later = threading.Timer(0.01, reserved, (buffer, 1, 10))
    later.start()
    threading.Timer(0.02, buffer.release, (other,)).start()
    assert buffer.wait(TIMEOUT_S) == 0
    later.join()
    assert (buffer.messages, buffer.bytes) == (1, 10)
