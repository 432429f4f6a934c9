"""Records of clients reach handlers on the log thread: all, in their order, and within bounds."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterator

import pytest

from minimq.connection import client_log
from minimq_common.record_limit import RecordLimit
from support.pages import ROOT

LOG = client_log.client_logger("minimq.test_client_log")
#: The log thread itself; a pure module, whose logger sender.py makes one of clients; commands, which hold no lock.
OTHERWISE = {"connection/client_log.py", "sending/pending_batch.py"}


class Recorder(logging.Handler):
    """Keeps records and the threads that have brought them, and may be held up."""

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


def test_records_arrive_in_order_on_another_thread(recorder: Recorder) -> None:
    for number in range(500):
        LOG.info("line %d", number)
    client_log.flush(60)
    assert recorder.lines == [f"line {number}" for number in range(500)]
    assert threading.get_ident() not in recorder.threads


def test_records_are_dropped_and_counted_while_a_handler_blocks(
    recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    recorder.may_return.clear()
    for number in range(client_log._MOST_WAITING + 51):
        LOG.info("line %d", number)
    recorder.may_return.set()
    client_log.flush(60)
    kept = len(recorder.lines)
    assert client_log._MOST_WAITING <= kept <= client_log._MOST_WAITING + 1
    assert f"client: log records were dropped number={client_log._MOST_WAITING + 51 - kept}" in caplog.messages


def test_errors_that_repeat_are_counted_instead_of_written(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(client_log._handover, "_limit", RecordLimit(client_log._MAX_RECORDS, lambda: now))
    for number in range(500):
        LOG.error("the listener failed number=%d", number)
        client_log.flush(60)  # the queue is bounded, too
    now = 10.0
    LOG.error("another error")
    client_log.flush(60)
    left_out = 500 - client_log._MAX_RECORDS
    summary = f"more lines of the same kind were left out count={left_out} text='the listener failed number=%d'"
    assert recorder.lines[-2:] == [summary, "another error"]
    assert len(recorder.lines) == client_log._MAX_RECORDS + 2


def test_a_child_logs_although_it_was_forked_while_a_handler_blocked(recorder: Recorder) -> None:
    recorder.may_return.clear()
    LOG.warning("parent")
    reading, writing = os.pipe()
    if not (child := os.fork()):
        recorder.createLock()  # logging does that for handlers that it knows of
        recorder.may_return = threading.Event()
        recorder.may_return.set()
        LOG.warning("child")
        client_log.flush(60)
        os.write(writing, " ".join(recorder.lines).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        assert told.read() == "child"
    os.waitpid(child, 0)
    recorder.may_return.set()


def test_all_loggers_of_clients_hand_their_records_over() -> None:
    client = ROOT / "client" / "minimq"
    direct = {
        str(path.relative_to(client))
        for path in client.rglob("*.py")
        if re.search(r"logging\.getLogger\(", path.read_text())
    }
    assert direct == OTHERWISE
