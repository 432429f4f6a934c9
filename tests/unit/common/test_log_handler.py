from __future__ import annotations

import io
import logging

from minimq_common.record_limit import ALWAYS_WRITTEN
from minimq_common.serving.logs import RateLimitedHandler, formatter


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
    handler = RateLimitedHandler(stream, clock)
    handler.setFormatter(formatter("text"))
    log = logger_to(handler)

    for number in range(20_000):
        log.info("lease: not here group=%s number=%d", "g" * 1_000, number)
    log.info("another")
    assert len(stream.getvalue()) < 100_000
    assert len(stream.getvalue().splitlines()) == 101
    clock.now = 10.0
    log.info("lease: not here group=%s number=%d", "g", 1)
    *_, summed_up, last = stream.getvalue().splitlines()
    assert summed_up.endswith(
        "INFO    some: more lines of the same kind were left out count=19900 text='lease: not here group=%s number=%d'"
    )
    assert last.endswith("group=g number=1")


def test_what_was_left_out_last_is_told_at_the_end() -> None:
    stream = io.StringIO()
    handler = RateLimitedHandler(stream, Clock())
    log = logger_to(handler)
    for _ in range(103):
        log.info("again")
    handler.close()
    assert stream.getvalue().splitlines()[100:] == ["more lines of the same kind were left out count=3 text='again'"]


def test_kinds_of_lines_take_bounded_memory() -> None:
    stream = io.StringIO()
    handler = RateLimitedHandler(stream, Clock())
    log = logger_to(handler)
    for number in range(3_000):
        log.info(f"text {number} %s", "x")  # noqa: G004 - as a library might
    assert len(stream.getvalue().splitlines()) == 3_000
    assert len(handler._limit._windows) == 1_000


def test_lines_of_one_place_in_the_code_are_of_one_kind_if_their_text_has_its_values() -> None:
    stream = io.StringIO()
    handler = RateLimitedHandler(stream, Clock())
    log = logger_to(handler)
    for number in range(3_000):
        log.info("Task exception was never retrieved: task %d" % number)  # noqa: G002, UP031 - as asyncio does
    handler.close()
    *written, last = stream.getvalue().splitlines()
    assert len(written) == 100
    assert "were left out count=2900 text='Task exception was never retrieved: task 0'" in last


def test_tracebacks_that_repeat_do_not_fill_the_log() -> None:
    stream = io.StringIO()
    handler = RateLimitedHandler(stream, Clock())
    handler.setFormatter(formatter("json"))
    log = logger_to(handler)
    for number in range(1_000):
        log.error("failed number=%d", number, exc_info=ValueError("v" * 20_000))
    handler.close()
    assert len(stream.getvalue()) < 150_000
    assert "count=99" in stream.getvalue().splitlines()[-1] or '"count": 99' in stream.getvalue().splitlines()[-1]


def test_what_was_left_out_is_told_ahead_of_the_next_record_whatever_it_is() -> None:
    stream, clock = io.StringIO(), Clock()
    log = logger_to(RateLimitedHandler(stream, clock))
    for extra in ({}, ALWAYS_WRITTEN):
        for _ in range(103):
            log.info("again")
        clock.now += 10.0
        log.info("another", extra=extra)
        *_, summed_up, last = stream.getvalue().splitlines()
        assert summed_up == "more lines of the same kind were left out count=3 text='again'"
        assert last == "another"


def test_an_account_of_what_was_done_is_written_however_long_it_is() -> None:
    stream = io.StringIO()
    log = logger_to(RateLimitedHandler(stream, Clock()))
    for number in range(1_000):
        log.info("deleted number=%d", number, extra=ALWAYS_WRITTEN)
    assert stream.getvalue().splitlines() == [f"deleted number={number}" for number in range(1_000)]
