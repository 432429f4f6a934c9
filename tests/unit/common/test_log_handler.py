from __future__ import annotations

import io
import logging

from minimq_common.serving.logs import ALWAYS_WRITTEN, SummingHandler, formatter
from support.waiting import wait_until


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def logger_to(handler: logging.Handler) -> logging.Logger:
    log = logging.Logger("some")  # noqa: LOG001 - one that the other tests do not have
    log.addHandler(handler)
    return log


def test_lines_that_repeat_are_summed_up_and_others_are_written() -> None:
    stream, clock = io.StringIO(), Clock()
    handler = SummingHandler(stream, clock)
    handler.setFormatter(formatter("text"))
    log = logger_to(handler)

    for number in range(100_000):
        log.info("lease: not here group=%s number=%d", "g" * 1_000, number)
    log.info("another")
    assert len(stream.getvalue()) < 100_000
    assert len(stream.getvalue().splitlines()) == 101
    clock.now = 10.0
    log.info("lease: not here group=%s number=%d", "g", 1)
    *_, summed_up, last = stream.getvalue().splitlines()
    assert summed_up.endswith(
        "INFO    some: more lines of the same kind were left out count=99900 text='lease: not here group=%s number=%d'"
    )
    assert last.endswith("group=g number=1")


def test_what_was_left_out_last_is_told_at_the_end() -> None:
    stream = io.StringIO()
    handler = SummingHandler(stream, Clock())
    log = logger_to(handler)
    for _ in range(103):
        log.info("again")
    handler.close()
    assert stream.getvalue().splitlines()[100:] == ["more lines of the same kind were left out count=3 text='again'"]


def test_kinds_of_lines_take_bounded_memory() -> None:
    stream = io.StringIO()
    handler = SummingHandler(stream, Clock())
    log = logger_to(handler)
    for number in range(3_000):
        log.info("text %d" % number)  # noqa: G002, UP031 - as a library might
    assert len(stream.getvalue().splitlines()) == 3_000
    assert len(handler._windows) == 1_000


def test_what_was_left_out_is_told_at_the_end_of_the_window_though_no_record_follows() -> None:
    stream = io.StringIO()
    handler = SummingHandler(stream, window_s=0.05)
    log = logger_to(handler)

    def told() -> int:
        return stream.getvalue().count("left out count=")

    for already in (0, 1):  # not only once
        for _ in range(103):
            log.info("again")
        wait_until(lambda: told() > already)  # noqa: B023 - it is over before the next round
    handler.close()


def test_a_closed_handler_has_no_timer() -> None:
    handler = SummingHandler(io.StringIO())
    log = logger_to(handler)
    for _ in range(101):
        log.info("again")
    timer = handler._timer
    assert timer is not None
    handler.close()
    timer.join(5)
    assert not timer.is_alive()


def test_an_account_of_what_was_done_is_written_however_long_it_is() -> None:
    stream = io.StringIO()
    log = logger_to(SummingHandler(stream, Clock()))
    for number in range(1_000):
        log.info("deleted number=%d", number, extra=ALWAYS_WRITTEN)
    assert stream.getvalue().splitlines() == [f"deleted number={number}" for number in range(1_000)]
