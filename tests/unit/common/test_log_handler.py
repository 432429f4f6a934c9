from __future__ import annotations

import io
import logging

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
