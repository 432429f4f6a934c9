"""Closing a client from two threads."""

from __future__ import annotations

import threading

from minimq.transport.dropped import Closing


def test_a_second_close_returns_when_the_first_is_over() -> None:
    closing, has_begun, may_end = Closing(), threading.Event(), threading.Event()
    ended: list[str] = []

    def close() -> None:
        has_begun.set()
        may_end.wait()
        ended.append("closed")

    def close_again() -> None:
        closing.run(lambda: ended.append("closed twice"))
        ended.append("returned")

    first, second = threading.Thread(target=closing.run, args=(close,)), threading.Thread(target=close_again)
    first.start()
    has_begun.wait()
    second.start()
    second.join(0.2)  # a second one that does not wait has returned by then
    may_end.set()
    first.join()
    second.join()
    assert ended == ["closed", "returned"]
