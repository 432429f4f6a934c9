"""Records that clients log on their event loops reach handlers on a thread: all, in order, and within bounds."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from minimq.connection import client_log
from minimq.connection.fork_guard import loop_threads
from minimq_common.record_limit import RecordLimit

LOG = client_log.client_logger("minimq.test_client_log")


class Recorder(logging.Handler):
    """Keeps records and their threads, and may be blocked."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.threads: set[int] = set()
        self.may_return = threading.Event()
        self.may_return.set()

    def emit(self, record: logging.LogRecord) -> None:
        self.threads.add(threading.get_ident())
        self.may_return.wait(60)
        self.lines.append(record.getMessage())


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    handler = Recorder()
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    yield handler
    client_log.flush(60)
    LOG.removeHandler(handler)


@contextmanager
def on_loop() -> Iterator[None]:
    """Take this thread for that of an event loop."""
    loop_threads.add(threading.get_ident())
    try:
        yield
    finally:
        loop_threads.discard(threading.get_ident())


def test_records_of_an_event_loop_arrive_in_order_on_another_thread(recorder: Recorder) -> None:
    with on_loop():
        for number in range(500):
            LOG.info("line %d", number)
    client_log.flush(60)
    assert recorder.lines == [f"line {number}" for number in range(500)]
    assert threading.get_ident() not in recorder.threads


def test_an_event_loop_does_not_wait_for_a_handler_and_queues_a_bounded_number(recorder: Recorder) -> None:
    recorder.may_return.clear()
    with on_loop():
        for number in range(client_log._MAX_WAITING + 50):
            LOG.info("line %d", number)
    recorder.may_return.set()
    client_log.flush(60)
    assert client_log._MAX_WAITING <= len(recorder.lines) <= client_log._MAX_WAITING + 1


@pytest.mark.parametrize("is_on_loop", [False, True])
def test_errors_that_repeat_are_counted_instead_of_written(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, *, is_on_loop: bool
) -> None:
    now = 0.0

    def fail() -> None:
        nonlocal now
        for number in range(500):
            LOG.error("the listener failed number=%d", number)
        now = 10.0
        LOG.error("another error")

    monkeypatch.setattr(client_log._filter, "_limit", RecordLimit(client_log._MAX_RECORDS, lambda: now))
    if is_on_loop:
        with on_loop():
            fail()
    else:
        fail()
    client_log.flush(60)
    left_out = 500 - client_log._MAX_RECORDS
    summary = f"more lines of the same kind were left out count={left_out} text='the listener failed number=%d'"
    assert recorder.lines[-2:] == [summary, "another error"]
    assert len(recorder.lines) == client_log._MAX_RECORDS + 2
