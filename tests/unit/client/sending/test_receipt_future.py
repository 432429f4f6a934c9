"""The futures of receipts behave as any future, whichever comes first: the outcome, or somebody who looks."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, wait

import pytest

from minimq.sending.receipt import BatchReceipt, SendReceipt, SendStatus
from minimq.sending.receipt_future import ReceiptFuture
from minimq_common.model import MessageQueue

RECEIPT = SendReceipt(BatchReceipt(MessageQueue("t", "a", 0), 0, 0, 1, 1, 0, SendStatus.SEND_OK), 0)
TIMEOUT_S = 30.0


@pytest.fixture
def switching_often() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def test_one_that_waits_is_woken_and_one_that_called_back_is_called() -> None:
    future = ReceiptFuture()
    called = threading.Event()
    future.add_done_callback(lambda done: called.set())
    with pytest.raises(TimeoutError):
        future.result(0.01)
    waiting = threading.Thread(target=future.result)
    waiting.start()
    call = future(RECEIPT)
    waiting.join(TIMEOUT_S)
    assert not waiting.is_alive()
    assert not called.is_set(), "code of users was called where an event loop may run"
    assert call is not None
    call()
    assert called.is_set()


def cancelled_or_not(future: ReceiptFuture[SendReceipt]) -> None:
    if future.cancel():
        with pytest.raises(CancelledError):
            future.result(TIMEOUT_S)
    else:
        assert future.result(TIMEOUT_S) is RECEIPT


def waited_for(future: ReceiptFuture[SendReceipt]) -> None:
    assert wait([future], TIMEOUT_S).done == {future}
    assert future.result(0) is RECEIPT


def called_back(future: ReceiptFuture[SendReceipt]) -> None:
    called = threading.Semaphore(0)
    future.add_done_callback(lambda done: called.release())
    assert called.acquire(timeout=TIMEOUT_S)
    assert not called.acquire(blocking=False)


def asked(future: ReceiptFuture[SendReceipt]) -> None:
    assert future.result(TIMEOUT_S) is RECEIPT


@pytest.mark.parametrize("use", [cancelled_or_not, waited_for, called_back, asked])
@pytest.mark.usefixtures("switching_often")
def test_the_outcome_may_come_at_any_moment(use: Callable[[ReceiptFuture[SendReceipt]], None]) -> None:
    futures = [ReceiptFuture() for _ in range(1000)]

    def tell() -> None:
        for future in futures:
            for call in filter(None, (future(RECEIPT),)):
                call()

    telling = threading.Thread(target=tell)
    telling.start()
    for future in futures:
        use(future)
    telling.join(TIMEOUT_S)
    assert not telling.is_alive()
